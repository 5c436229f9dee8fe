"""The objectives, against values and gradients worked out by hand."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.grpo import CORRECTIONS, KL_ESTIMATORS, OBJECTIVES
from flowright.grpo.objectives import (
    Correction,
    Objective,
    Statistics,
    Terms,
    Tokens,
    choices_of,
    covariances,
    high_entropy,
    k1,
    k2,
    k3,
)

LOW, HIGH = 0.2, 0.28
PPO_LIKE = ("grpo", "dr_grpo", "dapo")
EVERY = (*PPO_LIKE, "gspo", "gsspo", "gmpo", "cispo", "sapo", "clip_cov", "kl_cov")


def test_every_objective_is_here() -> None:
    given = ("sft", "bradley_terry")  # tests/grpo/test_given.py
    assert (*EVERY, *given) == tuple(OBJECTIVES)
    assert [name for name in OBJECTIVES if OBJECTIVES.load(name).fixed_data] == [*given]


def objective(loss: str) -> Objective:
    return OBJECTIVES.load(loss)


def play(
    loss: str,
    ratios: list[float],
    advantages: list[float],
    probabilities: list[float] | None = None,
    samples: list[int] | None = None,
    dual_clip: float | None = None,
    selected: list[int] | None = None,
) -> tuple[Terms, Tensor]:
    """Terms of tokens with the given ratios, and the gradient of their sum by each log-prob."""
    chosen = probabilities or [0.5] * len(ratios)
    logprobs = torch.tensor(chosen, dtype=torch.float64).log().requires_grad_()
    old = logprobs.detach() - torch.tensor(ratios, dtype=torch.float64).log()
    gains = torch.tensor(advantages, dtype=torch.float64)
    numbers = torch.tensor(samples or [0] * len(ratios))
    marks = torch.tensor([n in (selected or ()) for n in range(len(ratios))])
    tokens = Tokens(logprobs, old, gains, numbers, LOW, HIGH, dual_clip, marks)
    terms = objective(loss).terms(tokens)
    (gradient,) = torch.autograd.grad(terms.policy_N.sum(), logprobs)
    return terms, gradient


@pytest.mark.parametrize("loss", PPO_LIKE)
def test_the_clipped_objective_of_better_than_average_samples(loss: str):
    # A = 2. r = 1.5: min(3, 1.28 * 2) = 2.56, clipped. r = 0.5: min(1, 0.8 * 2) = 1, free.
    # r = 1.1: min(2.2, 2.2). The gradient of -r A by log p is -r A, and 0 where clipped.
    terms, gradient = play(loss, [1.5, 0.5, 1.1], [2.0, 2.0, 2.0])
    assert terms.policy_N.tolist() == pytest.approx([-2.56, -1.0, -2.2], rel=1e-5)
    assert terms.clipped_N.tolist() == [True, False, False]
    assert gradient.tolist() == pytest.approx([0.0, -1.0, -2.2], rel=1e-5)


@pytest.mark.parametrize("loss", PPO_LIKE)
def test_the_clipped_objective_of_worse_than_average_samples(loss: str):
    # A = -1. r = 1.5: min(-1.5, -1.28) = -1.5, free. r = 0.5: min(-0.5, -0.8) = -0.8, clipped.
    # r = 1.1: -1.1.
    terms, gradient = play(loss, [1.5, 0.5, 1.1], [-1.0, -1.0, -1.0])
    assert terms.policy_N.tolist() == pytest.approx([1.5, 0.8, 1.1], rel=1e-5)
    assert terms.clipped_N.tolist() == [False, True, False]
    assert gradient.tolist() == pytest.approx([1.5, 0.0, 1.1], rel=1e-5)


@pytest.mark.parametrize("loss", (*PPO_LIKE, "gspo"))
def test_the_dual_clip_bounds_what_a_likelier_worse_sample_costs(loss: str):
    # c = 3. A = -1: r = 5 costs 5 and is held at 3, r = 2 costs 2, r = 0.5 is held at 0.8 as ever.
    # A = 2: r = 5 earns 1.28 * 2, r = 0.5 earns 1, with the bound and without it.
    ratios, gains = [5.0, 2.0, 0.5, 5.0, 0.5], [-1.0, -1.0, -1.0, 2.0, 2.0]
    terms, gradient = play(loss, ratios, gains, samples=[0, 1, 2, 3, 4], dual_clip=3.0)
    assert terms.policy_N.tolist() == pytest.approx([3.0, 2.0, 0.8, -2.56, -1.0], rel=1e-5)
    assert gradient.tolist() == pytest.approx([0.0, 2.0, 0.0, 0.0, -1.0], rel=1e-5)
    assert terms.clipped_N.tolist() == [True, False, True, True, False]
    assert terms.dual_N is not None and terms.dual_N.tolist() == [True, *[False] * 4]
    assert terms.ratio_N is not None and terms.ratio_N.tolist() == pytest.approx(ratios)
    without, _ = play(loss, ratios, gains, samples=[0, 1, 2, 3, 4])
    assert without.policy_N.tolist() == pytest.approx([5.0, 2.0, 0.8, -2.56, -1.0], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "bounds"),
    [
        ("grpo", (0.2, 0.2)),
        ("dr_grpo", (0.2, 0.2)),
        ("dapo", (0.2, 0.28)),
        ("gspo", (3e-4, 4e-4)),
        ("gmpo", (1 - math.exp(-0.4), math.exp(0.4) - 1)),
        ("cispo", (0.2, 4.0)),
    ],
)
def test_every_objective_has_its_papers_bounds(loss: str, bounds: tuple[float, float]):
    found = objective(loss)
    assert (found.clip_low, found.clip_high) == pytest.approx(bounds, rel=1e-12)


def test_gspo_clips_a_sample_as_a_whole():
    # Sample 0: ratios 1.2 and 0.9, whose geometric mean is sqrt(1.08) = 1.0392305; times A = 2,
    # that is 2.0784610 for both tokens. Sample 1: r = 1.5 is clipped at 1.28.
    terms, gradient = play("gspo", [1.2, 0.9, 1.5], [2.0, 2.0, 1.0], samples=[0, 0, 1])
    assert terms.policy_N.tolist() == pytest.approx([-2.0784610, -2.0784610, -1.28], rel=1e-5)
    assert terms.clipped_N.tolist() == [False, False, True]
    assert gradient.tolist() == pytest.approx([-2.0784610, -2.0784610, 0.0], rel=1e-5)


def test_gspo_is_gspo_token_where_advantages_differ_within_a_sample():
    # arXiv 2507.18071, GSPO-token: every token has the sample's ratio, sqrt(1.08) = 1.0392305, its
    # own advantage, and the gradient of its own log-probability.
    terms, gradient = play("gspo", [1.2, 0.9], [2.0, -1.0])
    assert terms.policy_N.tolist() == pytest.approx([-2.0784610, 1.0392305], rel=1e-5)
    assert gradient.tolist() == pytest.approx([-2.0784610, 1.0392305], rel=1e-5)


def test_gmpo_takes_the_geometric_mean_of_clipped_ratios():
    # Bounds 0.8 and 1.28. A = 2: 1.5 is clipped to 1.28 and 0.5 is not; sqrt(0.64) = 0.8, times 2.
    # A = -1: 1.5 is not clipped, 0.5 is to 0.8; sqrt(1.2) = 1.0954451.
    terms, gradient = play(
        "gmpo", [1.5, 0.5, 1.5, 0.5], [2.0, 2.0, -1.0, -1.0], samples=[0, 0, 1, 1]
    )
    wanted = [-1.6, -1.6, 1.0954451, 1.0954451]
    assert terms.policy_N.tolist() == pytest.approx(wanted, rel=1e-5)
    assert terms.clipped_N.tolist() == [True, False, False, True]
    assert gradient.tolist() == pytest.approx([0.0, -1.6, 1.0954451, 0.0], rel=1e-5)


def test_sapo_closes_a_soft_gate():
    # r = 2, A = 2, t = 1: 4 sigmoid(1) = 4 x 0.7310586, times -2 = -5.8484686; its slope by log p
    # is r 4 s (1 - s) A = 2 x 4 x 0.1966119 x 2 = 3.1457907. A = -1, t = 1.05: sigmoid(1.05) =
    # 0.7407749, x 4 / 1.05 = 2.8219996; slope 2 x 4 x 0.1920275 = 1.5362196.
    terms, gradient = play("sapo", [2.0, 2.0], [2.0, -1.0])
    assert terms.policy_N.tolist() == pytest.approx([-5.8484686, 2.8219996], rel=1e-5)
    assert gradient.tolist() == pytest.approx([-3.1457907, 1.5362196], rel=1e-5)
    assert not terms.clipped_N.any()


def test_what_covaries_is_held_or_penalised():
    # log p = -1, -2, -3, -6 (mean -3), A = 2, 0, 0, -2 (mean 0): covariances 4, 0, 0, 6.
    logprobs, gains = torch.tensor([-1.0, -2.0, -3.0, -6.0]), torch.tensor([2.0, 0.0, 0.0, -2.0])
    found = Statistics(logprobs, torch.ones(4), gains)
    assert covariances(found).tolist() == pytest.approx([4.0, 0.0, 0.0, 6.0])
    draw = torch.Generator().manual_seed(0)
    clip, kl = (objective(name).selects for name in ("clip_cov", "kl_cov"))
    assert clip is not None and kl is not None
    assert clip(found, draw).tolist() == [True, False, False, False], "between 1 and 5"
    assert kl(found, draw).tolist() == [False, False, False, True], "the largest"
    # Clip-Cov: the second has neither a term nor a gradient. KL-Cov: -r A is not clipped, and the
    # second pays r - 1 - log r = 1 - ln 2 = 0.3068528, with the gradient r - 1.
    terms, gradient = play("clip_cov", [1.5, 1.1, 0.5], [2.0] * 3, selected=[1])
    assert terms.policy_N.tolist() == pytest.approx([-2.4 - 0.16, 0.0, -1.0], rel=1e-5)
    assert gradient.tolist() == pytest.approx([0.0, 0.0, -1.0], rel=1e-5)
    terms, gradient = play("kl_cov", [1.5, 2.0, 0.5], [2.0] * 3, selected=[1])
    assert terms.policy_N.tolist() == pytest.approx([-3.0, -4.0 + 0.3068528, -1.0], rel=1e-5)
    assert gradient.tolist() == pytest.approx([-3.0, -4.0 + 1.0, -1.0], rel=1e-5)


def test_a_fifth_of_the_tokens_has_the_highest_entropy():
    entropies = torch.tensor([0.1, 0.9, 0.3, 0.8, 0.2, 0.4, 0.0, 0.5, 0.6, 0.7])
    found = Statistics(torch.zeros(10), entropies, torch.zeros(10))
    assert high_entropy(found, 0.2).nonzero().flatten().tolist() == [1, 3]


def test_gspo_has_the_value_and_the_gradient_of_its_sequence_objective():
    # arXiv 2507.18071, equation 5: the mean over samples of min(s A, clip(s) A) with
    # s = exp(mean over tokens of log p - log p_old), differentiated as it stands.
    old = torch.tensor([0.5, 0.2, 0.9, 0.4, 0.7], dtype=torch.float64).log()
    ratios = torch.tensor([1.3, 0.8, 1.1, 0.7, 1.05], dtype=torch.float64)
    logprobs = (old + ratios.log()).requires_grad_()
    samples, lengths = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([3, 2])
    advantages = torch.tensor([1.5, 1.5, 1.5, -0.5, -0.5], dtype=torch.float64)
    terms = objective("gspo").terms(Tokens(logprobs, old, advantages, samples, LOW, HIGH))
    ours = (objective("gspo").weights(lengths, 8)[samples] * terms.policy_N).sum()

    log_ratio = logprobs - old
    means = torch.stack([log_ratio[:3].mean(), log_ratio[3:].mean()]).exp()
    gains = torch.tensor([1.5, -0.5], dtype=torch.float64)
    theirs = -torch.minimum(means * gains, means.clamp(1 - LOW, 1 + HIGH) * gains).mean()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    (one,), (two,) = torch.autograd.grad(ours, logprobs), torch.autograd.grad(theirs, logprobs)
    assert one.tolist() == pytest.approx(two.tolist(), rel=1e-6)


def test_cispo_caps_the_weight_and_keeps_every_gradient():
    # -min(r, 1.28) A log p with A = 2: 2.56 * -ln 0.3 = 3.0821705, 1 * -ln 0.1 = 2.3025851,
    # 2.2 * -ln 0.22 = 3.3310812; the gradient by log p is -min(r, 1.28) A.
    terms, gradient = play("cispo", [1.5, 0.5, 1.1], [2.0] * 3, probabilities=[0.3, 0.1, 0.22])
    assert terms.policy_N.tolist() == pytest.approx([3.0821705, 2.3025851, 3.3310812], rel=1e-5)
    assert gradient.tolist() == pytest.approx([-2.56, -1.0, -2.2], rel=1e-5)
    assert terms.clipped_N.tolist() == [True, False, False]


@pytest.mark.parametrize("cap", [0.9, 1.28, 5.0])
def test_the_cap_of_cispo_is_trls(cap: float):
    """TRL 1.16: -clamp(r, max=epsilon_high).detach() A log p."""
    choices = choices_of(GrpoSection(loss="cispo", ratio_cap=cap))
    generator = torch.Generator().manual_seed(3)
    old, now, gains = torch.randn(3, 50, generator=generator, dtype=torch.float64)
    logprobs = now.requires_grad_()
    bounds = choices.clip_low, choices.clip_high
    numbers = torch.zeros(50, dtype=torch.long)
    terms = objective("cispo").terms(Tokens(logprobs, old, gains, numbers, *bounds))
    theirs = -torch.clamp((logprobs - old).exp(), max=cap).detach() * gains * logprobs
    torch.testing.assert_close(terms.policy_N, theirs, rtol=1e-12, atol=0)
    for ours, wanted in zip(
        *(torch.autograd.grad(x.sum(), logprobs) for x in (terms.policy_N, theirs)), strict=True
    ):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=0)


def test_a_cap_is_for_cispo_and_is_one_with_clip_high():
    with pytest.raises(ValueError, match="ratio_cap: only cispo caps its ratio; dapo has"):
        GrpoSection(ratio_cap=5.0)
    with pytest.raises(ValueError, match="ratio_cap: 5 and clip_high: 3; give one"):
        GrpoSection(loss="cispo", ratio_cap=5.0, clip_high=3.0)
    assert GrpoSection(loss="cispo", ratio_cap=5.0, clip_high=4.0).ratio_cap == 5.0


def test_cispo_has_no_lower_bound():
    terms, gradient = play("cispo", [0.01, 0.01], [2.0, -2.0])
    assert gradient.tolist() == pytest.approx([-0.02, 0.02], rel=1e-5)
    assert not terms.clipped_N.any()


@pytest.mark.parametrize("loss", EVERY)
def test_on_policy_every_objective_is_the_policy_gradient(loss: str):
    # At r = 1 nothing is clipped, and the gradient by log p is -A.
    terms, gradient = play(loss, [1.0, 1.0, 1.0], [2.0, 2.0, -3.0], samples=[0, 0, 1])
    assert gradient.tolist() == pytest.approx([-2.0, -2.0, 3.0], rel=1e-5)
    assert not terms.clipped_N.any()


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("grpo", [1 / (2 * 2), 1 / (2 * 3)]),
        ("gspo", [1 / (2 * 2), 1 / (2 * 3)]),
        ("gmpo", [1 / (2 * 2), 1 / (2 * 3)]),
        ("sapo", [1 / (2 * 2), 1 / (2 * 3)]),
        ("clip_cov", [1 / 5, 1 / 5]),
        ("kl_cov", [1 / 5, 1 / 5]),
        ("dr_grpo", [1 / (2 * 8), 1 / (2 * 8)]),
        ("dapo", [1 / 5, 1 / 5]),
        ("cispo", [1 / 5, 1 / 5]),
    ],
)
def test_token_weights_of_samples_of_two_and_three_tokens(loss: str, expected: list[float]):
    assert objective(loss).weights(torch.tensor([2, 3]), 8).tolist() == pytest.approx(expected)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_the_weights_of_all_tokens_sum_to_one_or_to_the_share_of_the_longest(lengths: list[int]):
    for loss in EVERY:
        weights = objective(loss).weights(torch.tensor(lengths), 64)
        total = sum(float(w) * n for w, n in zip(weights, lengths, strict=True))
        expected = sum(lengths) / (64 * len(lengths)) if loss == "dr_grpo" else 1.0
        assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # p = 1/2, reference 1/4: d = ln 2. p = 1/5, reference 2/5: d = -ln 2. Equal: d = 0.
        ("k1", [0.693147, -0.693147, 0.0]),
        ("k2", [0.240227, 0.240227, 0.0]),  # (ln 2)^2 / 2
        ("k3", [0.193147, 0.306853, 0.0]),  # 1/2 - 1 + ln 2, and 2 - 1 - ln 2
    ],
)
def test_kl_estimators(estimator: str, expected: list[float]):
    logprobs = torch.tensor([0.5, 0.2, 0.7]).log()
    reference = torch.tensor([0.25, 0.4, 0.7]).log()
    found = KL_ESTIMATORS.load(estimator)(logprobs, reference)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@given(st.integers(0, 2**31), st.integers(2, 6))
def test_k1_and_k3_are_unbiased_and_k3_is_never_negative(seed: int, size: int):
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = torch.randn(2, size, generator=generator, dtype=torch.float64).log_softmax(-1)
    exact = math.fsum(float(p.exp() * (p - q)) for p, q in zip(ours, theirs, strict=True))
    for estimate in (k1, k3):
        mean = float((ours.exp() * estimate(ours, theirs)).sum())
        assert mean == pytest.approx(exact, rel=1e-9, abs=1e-12)
    assert (k3(ours, theirs) >= 0).all()


REFERENCE = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()


def kl_and_gradient(estimator: str, sampler: Tensor | None) -> tuple[float, Tensor, Tensor]:
    """An estimator's expectation in the loss and its gradient by the logits, with every token of a
    small softmax drawn with its probability (the policy's own by default); and the exact KL's. A
    drawn token's term is differentiated with the draw held fixed."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    drawn = logprobs.detach() if sampler is None else sampler.log()
    found = choices_of(GrpoSection(kl_estimator=estimator, kl_coefficient=0.0)).kl
    ratio = (logprobs - drawn).exp() if found.weighted else torch.ones(3)
    mean = (drawn.exp() * ratio * found.estimate(logprobs, REFERENCE)).sum()
    exact = (logprobs.exp() * (logprobs - REFERENCE)).sum()
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    return mean.item(), torch.autograd.grad(mean, logits)[0], wanted


def test_the_kl_in_the_loss_has_the_gradient_of_the_kl_only_where_it_is_said() -> None:
    exact = kl_and_gradient("k1", None)[0]
    other = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)  # an older policy

    def cosine(estimator: str, sampler: Tensor | None) -> float:
        _, got, wanted = kl_and_gradient(estimator, sampler)
        return float(torch.cosine_similarity(got, wanted, dim=0))

    for sampler in (None, other):
        value, got, wanted = kl_and_gradient("k3_weighted", sampler)
        assert value == pytest.approx(exact, rel=1e-5)
        assert got.tolist() == pytest.approx(wanted.tolist(), rel=1e-5)
    assert kl_and_gradient("k1", None)[1].tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert cosine("k2", None) == pytest.approx(1.0, rel=1e-9) and cosine("k2", other) < 0.999
    # k3: E[(1 - p_ref / p) grad log p] = p - p_ref, the gradient of KL(reference || policy).
    _, got, _ = kl_and_gradient("k3", None)
    policy = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64).softmax(-1)
    assert got.tolist() == pytest.approx((policy - REFERENCE.exp()).tolist(), rel=1e-9)
    assert cosine("k3", None) < 0.999


def test_the_kl_in_the_reward_has_its_gradient_with_k1_alone() -> None:
    # The gradient of a reward -b(x) is -E[b grad log p].
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    _, _, wanted = kl_and_gradient("k1", None)
    for estimate, exact in ((k1, True), (k2, False), (k3, False)):
        costs = estimate(logprobs, REFERENCE).detach()
        mean = (logprobs.detach().exp() * costs * logprobs).sum()
        (got,) = torch.autograd.grad(mean, logits, retain_graph=True)
        assert (got.tolist() == pytest.approx(wanted.tolist(), rel=1e-9)) is exact


def test_an_estimator_without_the_kls_gradient_is_refused_by_name() -> None:
    for options, said in (
        ({"kl_estimator": "k1"}, "kl_estimator: k1: in the loss it has no gradient"),
        ({"kl_estimator": "k3", "kl_in": "reward"}, "k3: in the reward .* give k1"),
        ({"kl_estimator": "k3_weighted", "kl_in": "reward"}, "give k1"),
    ):
        with pytest.raises(ValueError, match=said):
            GrpoSection.model_validate(options)
        GrpoSection.model_validate({**options, "kl_coefficient": 0.0})
    assert GrpoSection().divergence == "k3_weighted"
    assert GrpoSection(kl_in="reward").divergence == "k1"
    GrpoSection(kl_estimator="my_rl:own", kl_in="reward")


def correction(name: str) -> Correction:
    return CORRECTIONS.load(name)


def weights(name: str, ratios: Sequence[float], samples: Sequence[int], cap: float) -> list[float]:
    made = correction(name).weights
    assert made is not None
    logs = torch.tensor(ratios, dtype=torch.float64).log()
    return made(logs, torch.tensor(samples), cap).tolist()


WEIGHTED = ("truncated", "masked", "sequence_truncated", "sequence_masked")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Two samples, of 3, 1.5 and 0.02, and of 0.5 and 1.6: their products are 0.09 and 0.8.
        ("truncated", [2.0, 1.5, 0.02, 0.5, 1.6]),
        ("masked", [0.0, 1.5, 0.0, 0.5, 1.6]),
        ("sequence_truncated", [0.09, 0.09, 0.09, 0.8, 0.8]),
        ("sequence_masked", [0.0, 0.0, 0.0, 0.8, 0.8]),
    ],
)
def test_importance_weights_by_hand(name: str, expected: list[float]):
    found = weights(name, [3.0, 1.5, 0.02, 0.5, 1.6], [0, 0, 0, 1, 1], 2.0)
    assert found == pytest.approx(expected, rel=1e-6)


RATIOS = st.lists(st.lists(st.floats(0.05, 20), min_size=1, max_size=6), min_size=1, max_size=5)


@given(RATIOS, st.sampled_from(WEIGHTED), st.floats(1, 10))
def test_importance_weights_are_those_of_a_loop_over_samples(
    batch: list[list[float]], name: str, cap: float
):
    expected = []
    for ratios in batch:
        for ratio in ratios:
            weight = math.prod(ratios) if name.startswith("sequence") else ratio
            inside = 1 / cap <= weight <= cap
            dropped = 0.0 if not inside else weight
            expected.append(dropped if name.endswith("masked") else min(weight, cap))
    samples = [number for number, ratios in enumerate(batch) for _ in ratios]
    found = weights(name, [ratio for ratios in batch for ratio in ratios], samples, cap)
    for one, other in zip(found, expected, strict=True):
        at_the_edge = 0.0 in (one, other) and (one or other) == pytest.approx(cap, rel=1e-9)
        at_the_edge |= 0.0 in (one, other) and (one or other) == pytest.approx(1 / cap, rel=1e-9)
        assert one == pytest.approx(other, rel=1e-9) or at_the_edge


@pytest.mark.parametrize("name", WEIGHTED)
def test_importance_weights_stay_finite_however_far_the_policies_are_apart(name: str):
    made = correction(name).weights
    assert made is not None
    far = torch.tensor([500.0, 400.0, -600.0, -700.0])
    found = made(far, torch.tensor([0, 0, 1, 1]), 2.0)
    high = 0.0 if name.endswith("masked") else 2.0
    assert found.tolist() == [high, high, 0.0, 0.0]


def test_without_weights_the_ratio_is_all_there_is():
    assert correction("ratio") == Correction(to_sampler=True)
    assert correction("ignored") == Correction(to_sampler=False)
    assert not any(correction(name).to_sampler for name in WEIGHTED)


def test_gspo_weighs_by_sample_whatever_the_correction_is_called():
    for name in ("truncated", "masked", "sequence_truncated", "sequence_masked"):
        found = choices_of(GrpoSection(loss="gspo", off_policy=name)).correction.weights
        assert found is not None
        logs = torch.tensor([3.0, 1.5, 0.02, 0.5, 1.6]).log()
        weight_N = found(logs, torch.tensor([0, 0, 0, 1, 1]), 2.0).tolist()
        assert len(set(weight_N[:3])) == len(set(weight_N[3:])) == 1
    of_tokens = choices_of(GrpoSection(loss="dapo", off_policy="truncated")).correction
    assert of_tokens is correction("truncated")
