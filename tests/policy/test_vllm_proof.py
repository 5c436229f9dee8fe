"""What the probe's log-probabilities prove, by hand and in half precision."""

import pytest
import torch
from tiny_policy import shake, tiny_policy, whole_logits
from torch import Tensor

from flowright.core.errors import RunError
from flowright.policy.vllm.proof import (
    LARGEST_ERROR,
    ROUNDING,
    Evidence,
    Known,
    Proof,
    Share,
    Sums,
    consistent,
    learner_scores,
    probe_texts,
    prove_adapter,
    prove_base,
    prove_trial,
    scales,
)


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


BASE = Known("the base model", row(-1.0, -2.0, -3.0, -4.0, -5.0, -6.0))
WAY = row(0.2, 0.2, -0.2, 0.2, -0.2, 0.2)
WANTED = Known("version 2", BASE.scores + WAY)
BEFORE = Known("version 1", BASE.scores + WAY / 2)
ARITHMETIC = row(0.01, -0.01, 0.01, 0.01, -0.01, 0.01)  # what the server's does to all weights'
SERVED_BASE = BASE.scores + ARITHMETIC


def prove(served: Tensor, tolerance: float = 0.25, evidence: Evidence | None = None) -> Proof:
    others = [BEFORE]
    return prove_adapter(
        served, SERVED_BASE, WANTED, BASE, others, tolerance, evidence or Evidence()
    )


def test_the_right_adapter_by_hand() -> None:
    """gap: 0.01; the server moved by exactly what the learner did, so that nothing is missed."""
    proof = prove(WANTED.scores + ARITHMETIC)
    assert (proof.gap, proof.noise) == (pytest.approx(0.01), pytest.approx(0.01))
    assert proof.share == Share(pytest.approx(1.0), pytest.approx(0.0))
    assert proof.decided and proof.excluded == 2 and proof.lacking == 0


def test_the_error_is_the_jackknifes_by_hand() -> None:
    """x = (1, 1, 1, 1) and y = (1, 2, 0, 1): c = 1 and rests (0, 1, -1, 0), each over 1 - 1/4:
    sqrt(2) * 4/3 / 4. Of one token that moves alone nothing can be said."""
    share = Sums.of(row(1, 2, 0, 1), row(1, 1, 1, 1)).share
    assert share == Share(pytest.approx(1.0), pytest.approx(2**0.5 / 3))
    assert Sums.of(row(1, 0.1), row(1, 0)).share.error == float("inf")


def test_versions_add_up_token_by_token() -> None:
    """The same text twice is no more evidence than once; other tokens are."""
    once = Sums.of(row(1, 2, 0, 1), row(1, 1, 1, 1))
    assert (once + once).share.error == pytest.approx(once.share.error)
    longer = once + Sums.of(row(0, 0, 0, 0, 1, 2, 0, 1), row(0, 0, 0, 0, 1, 1, 1, 1))
    assert longer.share.value == pytest.approx(1.0) and longer.share.error < once.share.error


def test_part_of_the_way_counts_by_its_share() -> None:
    """60 % of the way from the base model is 20 % of that from version 1."""
    served = SERVED_BASE + 0.6 * WAY
    with pytest.raises(RunError, match=r"not serve version 2 but what version 1 was.*show 20%"):
        prove(served)
    proof = prove_adapter(served, SERVED_BASE, WANTED, BASE, [], 0.25, Evidence())
    assert proof.share is not None and proof.share.value == pytest.approx(0.6)


@pytest.mark.parametrize(("known", "name"), [(BASE, "the base model"), (BEFORE, "version 1")])
@pytest.mark.parametrize("tolerance", [0.25, 0.05])
def test_other_weights_are_called_by_their_name(known: Known, name: str, tolerance: float) -> None:
    """At 0.25 both are within the tolerance, at 0.05 beyond it."""
    with pytest.raises(RunError, match=f"it does not serve version 2.*{name}"):
        prove(known.scores + ARITHMETIC, tolerance)


def test_weights_that_nobody_knows_are_none_of_the_run() -> None:
    for served in (WANTED.scores + 3, WANTED.scores * float("nan")):
        with pytest.raises(RunError, match="no weights of this run either"):
            prove(served)


def versions(
    count: int, move: float, size: int, share: float, seed: int, kept: float = 1.0
) -> int | None:
    """After how many versions a server that shows this share of the learner's moves is refused,
    None where it never is. Each version moves ``move`` nats a token further; the server's
    arithmetic is 0.042 nats a token off, for each version and once for its base."""
    draw = torch.Generator().manual_seed(seed)

    def random() -> Tensor:
        return torch.randn(size, generator=draw, dtype=torch.float64)

    base, way = Known("the base model", random() - 3), random()
    served_base = base.scores + 0.053 * random()
    evidence = Evidence()
    for version in range(1, count + 1):
        scores = base.scores + version * move * way
        served = base.scores + share * version * move * way + 0.053 * random()
        wanted = Known(f"version {version}", scores, kept)
        try:
            prove_adapter(served, served_base, wanted, base, [], 9.0, evidence)
        except RunError:
            return version
    return None


def test_undecided_versions_add_up_to_a_decision() -> None:
    """By hand, with N = 255: one version's error is 0.053 sqrt(2 / N) / (0.002 v), at most 0.08
    from v = 30 on. Of all up to v it is 0.053 / (0.002 sqrt(N b)), where b, the sum of v^2 less
    the squared sum of v over v + 1, is 408 at v = 16 and 484.5 at 17: 0.082 and 0.075."""
    alone = 0.053 * (2 / 255) ** 0.5 / 0.002 / LARGEST_ERROR
    assert alone == pytest.approx(29.3, abs=0.1)
    found = [versions(40, 0.002, 255, 0.0, seed) for seed in range(5)]
    assert all(version is not None and 14 <= version <= 21 for version in found), found
    assert [versions(40, 0.002, 255, 1.0, seed) for seed in range(5)] == [None] * 5


def test_a_server_that_loses_what_half_precision_loses_is_not_refused() -> None:
    """It shows a third of the move: a wrong adapter, unless that is what its arithmetic leaves."""
    assert versions(20, 0.02, 255, 0.3, 1) is not None
    assert versions(20, 0.02, 255, 0.3, 1, kept=0.3) is None
    assert versions(20, 0.02, 255, 0.0, 1, kept=0.3) is not None
    assert versions(20, 0.02, 255, 1.0, 1, kept=0.3) is None, "an exact server shows all of it"


def test_the_move_that_was_left_open_is_judged_now() -> None:
    """0.072 nats a token beside a noise of 0.042: an ignored adapter is found at once."""
    found = [versions(1, 0.09, 255, 0.0, seed) for seed in range(5)]
    assert found == [1] * 5
    assert [versions(1, 0.09, 255, 1.0, seed) for seed in range(5)] == [None] * 5


def test_what_is_below_float32s_rounding_is_not_judged() -> None:
    small = Known("version 1", BASE.scores + 1e-3 * ROUNDING * WAY)
    proof = prove_adapter(BASE.scores, BASE.scores, small, BASE, [], 0.25, Evidence())
    assert proof.share is None and not proof.decided and proof.lacking == 0
    assert "policy/proof_share" not in proof.metrics()


def test_a_trial_that_shows_another_move_is_refused() -> None:
    prove_trial(WANTED.scores + ARITHMETIC, SERVED_BASE, WANTED, BASE)
    with pytest.raises(RunError, match=r"does not apply version 2 .* show 50% ± 0%"):
        prove_trial(SERVED_BASE + WAY / 2, SERVED_BASE, WANTED, BASE)


def test_a_trial_that_only_one_token_shows_proves_nothing_for_a_server_without_adapters() -> None:
    """Where nothing bounds the error, what is nearer to none than to all is refused."""
    trial = Known("trial weights", BASE.scores + row(1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    prove_trial(trial.scores + ARITHMETIC, SERVED_BASE, trial, BASE)
    with pytest.raises(RunError, match=r"does not apply trial weights .* show 0% ± inf%"):
        prove_trial(SERVED_BASE, SERVED_BASE, trial, BASE)


def test_another_base_model_is_refused() -> None:
    prove_base(SERVED_BASE, BASE, 0.05)
    with pytest.raises(RunError, match=r"base model is not the learner's: .* 0\.5 nats"):
        prove_base(BASE.scores + 0.5, BASE, 0.05)
    with pytest.raises(RunError, match="base model"):
        prove_base(BASE.scores * float("nan"), BASE, 0.05)


def test_drawn_and_scored_must_agree() -> None:
    consistent([-1.0, -2.0], [-1.05, -2.05], 0.1)
    with pytest.raises(RunError, match="draws tokens with other weights"):
        consistent([-1.0, -2.0], [-1.0, -2.5], 0.1)


def test_the_temperature_shows_in_the_spread_of_the_likeliest() -> None:
    """softmax of logits (2, 1, 0) at temperature 1 and at 1/2: spreads of 2 and 4."""
    plain = row(2, 1, 0).log_softmax(0).tolist()
    halved = row(4, 2, 0).log_softmax(0).tolist()
    assert scales(plain, halved)
    assert not scales(plain, plain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "granite", "cohere"])
def test_the_learners_scores_are_the_models_own_in_float32(architecture: str, dtype: str) -> None:
    """Whatever the weights are kept in: of bfloat16 ones, the products are float32's."""
    policy = tiny_policy(architecture, dtype=dtype)
    texts = probe_texts(policy)
    assert all(200 < len(text) <= 256 for text in texts) and len(texts) == 8
    found = learner_scores(policy, texts).scores
    with policy.reference():
        assert not torch.allclose(learner_scores(policy, texts).scores, found)
    policy.causal_lm.float()
    rows = [whole_logits(policy, text).double().log_softmax(-1) for text in texts]
    expected = [
        float(r[i, t]) for r, ids in zip(rows, texts, strict=True) for i, t in enumerate(ids[1:])
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_what_half_precision_keeps_of_an_adapter() -> None:
    """Next to nothing of a first update, all of a large one."""
    policy = tiny_policy(trained=False)
    texts = probe_texts(policy)[:1]
    shake(policy, scale=1e-5)
    assert learner_scores(policy, texts).kept < 0.05
    shake(policy, scale=0.05)
    assert learner_scores(policy, texts).kept == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_half_precision_passes_and_is_told_from_the_base(architecture: str) -> None:
    """The default tolerance, with a server that computes in bfloat16."""
    learner, server = (
        tiny_policy(architecture, trained=False, dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    texts = probe_texts(learner)

    def served() -> Tensor:
        rows = [whole_logits(server, text).float().log_softmax(-1) for text in texts]
        picked = [
            r[:-1].gather(1, torch.tensor(t[1:])[:, None]) for r, t in zip(rows, texts, strict=True)
        ]
        return torch.cat(picked)[:, 0].double()

    with learner.reference(), server.reference():
        base, served_base = learner_scores(learner, texts, "the base model"), served()
    earlier: list[Known] = []
    evidence = Evidence()
    for version in range(1, 5):
        shake(learner, seed=version, scale=0.006)
        server.load(learner.state())
        wanted = learner_scores(learner, texts, f"version {version}")
        proof = prove_adapter(served(), served_base, wanted, base, earlier, 0.1, evidence)
        earlier.append(wanted)
    assert proof.decided and proof.excluded > 1
    assert proof.share is not None and proof.share.value == pytest.approx(1.0, abs=0.2)
    for stale, name in (
        (served_base, "the base model"),
        (earlier[0].scores + served_base - base.scores, "version 1"),
    ):
        with pytest.raises(RunError, match=name):
            prove_adapter(stale, served_base, wanted, base, earlier[:-1], 0.1, Evidence())
