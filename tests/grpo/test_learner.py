"""The update: the same gradients whatever the layout, and metrics that mean what they say."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
import torch
from examples import up_to
from hypothesis import given, settings, strategies as st
from tiny_policy import random_groups, same, tiny_policy, weights, whole_logits
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.grpo.advantages import group_advantages
from flowright.grpo.batch import Group, Requested, Trained, TurnPlace, score
from flowright.grpo.learner import Learner, learning_rate
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy
from flowright.policy.sampling import Sampling

LONGEST = 8
SHAPES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=2, max_size=4)),
    min_size=1,
    max_size=4,
)


def section(**given: Any) -> GrpoSection:
    return GrpoSection(**{"learning_rate": 1e-3, "kl_coefficient": 0.1, **given})


def gradients(
    policy: Policy,
    groups: Sequence[Group],
    temperature: float = 1.0,
    asked: Requested | None = None,
    **given: Any,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Every gradient of one update, before clipping, and its metrics; the weights are put back."""
    before, found, handles = weights(policy), {}, []
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad:

            def keep(tensor: Tensor, name: str = name) -> None:
                assert tensor.grad is not None
                found[name] = tensor.grad.clone()  # the last micro-batch leaves the sum

            handles.append(parameter.register_post_accumulate_grad_hook(keep))
    try:
        learner = Learner(policy, section(**given), temperature, 0)
        metrics = learner.update(groups, 1, LONGEST, asked)
    finally:
        for handle in handles:
            handle.remove()
        policy.load(before)
    return found, metrics


def assert_same_update(one: tuple, other: tuple) -> None:
    (gradients_1, metrics_1), (gradients_2, metrics_2) = one, other
    assert gradients_1.keys() == gradients_2.keys()
    # A gradient that is 0 by definition (attention over one token) is rounding noise in both.
    noise = 1e-6 * max(float(gradient.abs().max()) for gradient in gradients_1.values())
    for name, gradient in gradients_1.items():
        largest = float(gradient.abs().max())
        assert float((gradient - gradients_2[name]).abs().max()) <= 1e-4 * largest + noise, name
    # A loss is a sum of terms up to 10 that may cancel: what is left carries their rounding.
    assert metrics_1 == pytest.approx(metrics_2, rel=1e-4, abs=3e-5)


POLICY = tiny_policy()
RECOMPUTING = {str(n): tiny_policy(gradient_checkpointing=n) for n in (True, 0, 1)}
FULL = tiny_policy(train="full")
LOSSES = st.sampled_from(["grpo", "dr_grpo", "dapo", "gspo", "cispo"])


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    """The run goes on: weights and AdamW's means would else never be finite again."""
    policy = tiny_policy()
    learner = Learner(policy, section(minibatches=2), 1.0, 0)
    good, bad = random_groups(0, [(3, [4, 5]), (5, [2, 3])])
    broken = Group(bad.prompt_ids, [replace(s, advantage=math.inf) for s in bad.samples])
    before = weights(policy)
    metrics = learner.update([broken], 1, LONGEST)
    assert same(weights(policy), before)
    assert metrics["policy/skipped_updates"] == 1.0
    assert "policy/grad_norm" not in metrics and all(map(math.isfinite, metrics.values()))
    metrics = learner.update([good, broken], 2, LONGEST)
    assert metrics["policy/skipped_updates"] == 1.0 and metrics["policy/grad_norm"] > 0
    assert not same(weights(policy), before)
    assert all(bool(p.isfinite().all()) for p in policy.trainable())
    assert learner.update([good], 3, LONGEST)["policy/skipped_updates"] == 0.0


@up_to(60)
@given(
    SHAPES,
    st.integers(0, 2**31),
    LOSSES,
    st.sampled_from(["k2", "k3", "k3_weighted"]),
    st.sampled_from([0, 10, 20, 40]),
)
def test_the_shared_prefix_gives_the_plain_batchs_update(
    shapes: list, seed: int, loss: str, estimator: str, template: int
):
    alike = [100 + n for n in range(template)]
    groups = [
        Group([*alike, *group.prompt_ids], group.samples) for group in random_groups(seed, shapes)
    ]
    options = {"loss": loss, "kl_estimator": estimator, "entropy_coefficient": 0.05}
    shared = gradients(POLICY, groups, prefix_sharing=True, **options)
    plain = gradients(POLICY, groups, prefix_sharing=False, **options)
    assert_same_update(shared, plain)
    assert any(float(g.abs().max()) > 0 for g in shared[0].values())


@settings(max_examples=8)
@given(SHAPES, st.integers(0, 2**31), st.sampled_from([0, 20]))
def test_the_shared_prefix_gives_the_plain_update_of_whole_layers(
    shapes: list, seed: int, template: int
):
    alike = [100 + n for n in range(template)]
    groups = [
        Group([*alike, *group.prompt_ids], group.samples) for group in random_groups(seed, shapes)
    ]
    shared, plain = (gradients(FULL, groups, prefix_sharing=sharing) for sharing in (True, False))
    assert_same_update(shared, plain)
    assert len(shared[0]) == len(FULL.trainable())


@settings(max_examples=30)
@given(SHAPES, st.integers(0, 2**31), st.booleans(), st.sampled_from([True, 0, 1]))
def test_gradient_checkpointing_changes_no_gradient(
    shapes: list, seed: int, sharing: bool, layers: bool | int
):
    groups = random_groups(seed, shapes)
    kept, metrics = gradients(POLICY, groups, prefix_sharing=sharing)
    again, same_metrics = gradients(RECOMPUTING[str(layers)], groups, prefix_sharing=sharing)
    assert same_metrics == pytest.approx(metrics, rel=1e-6)
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-6, atol=1e-6)


@settings(max_examples=30)
@given(SHAPES, st.integers(0, 2**31), LOSSES, st.integers(1, 60))
def test_the_micro_batch_budget_changes_no_gradient(
    shapes: list, seed: int, loss: str, budget: int
):
    groups = random_groups(seed, shapes)
    whole = gradients(POLICY, groups, loss=loss, micro_batch_tokens=100_000)
    cut = gradients(POLICY, groups, loss=loss, micro_batch_tokens=budget)
    assert_same_update(whole, cut)


def test_gradient_checkpointing_recomputes_the_layers_and_leaves_the_mode_as_it_was():
    """Those of the prompt in all layers, those of the texts behind it in the first."""
    groups = random_groups(0, [(4, [3, 2])])
    for policy, again in zip((POLICY, *RECOMPUTING.values()), (0, 4, 2, 3), strict=True):
        calls: list[int] = []
        layers = policy.causal_lm.model.layers
        handles = [
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
            for layer in layers
        ]
        gradients(policy, groups, kl_coefficient=0.0)
        for handle in handles:
            handle.remove()
        assert len(calls) == 2 * len(layers) + again
        assert not any(layer.training for layer in layers)


def silenced(groups: Sequence[Group]) -> list[Group]:
    """Groups without a signal."""
    return [
        replace(g, samples=[replace(s, advantage=0.0) for s in g.samples], has_signal=False)
        for g in groups
    ]


@pytest.mark.parametrize("loss_name", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("estimator", ["k3", "k3_weighted"])
def test_the_gradient_is_that_of_the_definition(loss_name: str, estimator: str):
    """Against a loss written out token by token from the model's whole logits: KL and entropy are
    those of the whole batch, a group without a signal included."""
    policy, groups = tiny_policy(), random_groups(3, [(3, [2, 4]), (5, [1, 3]), (4, [3, 2])])
    groups[1:2] = silenced(groups[1:2])
    options = {"loss": loss_name, "kl_estimator": estimator, "entropy_coefficient": 0.2}
    found, metrics = gradients(policy, groups, kl_coefficient=0.3, temperature=0.8, **options)

    def token_logprobs(group: Group, sample: Trained) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([[*group.prompt_ids, *sample.token_ids]])
        logprobs = (policy.causal_lm(input_ids=ids).logits[0] / 0.8).log_softmax(-1)
        rows = logprobs[len(group.prompt_ids) - 1 : -1]
        chosen = torch.stack([row[id_] for row, id_ in zip(rows, sample.token_ids, strict=True)])
        return chosen, -(rows.exp() * rows).sum(-1)

    loss, gained, nats, entropies = torch.zeros(()), 0.0, [], []
    for group in groups:
        for sample in group.samples:
            logprobs, entropy = token_logprobs(group, sample)
            with torch.no_grad(), policy.model.disable_adapter():
                reference, _ = token_logprobs(group, sample)
            ratio = (logprobs - torch.tensor(sample.sampled_logprobs)).exp()
            high = 1.28 if loss_name == "dapo" else 1.2
            bounded = ratio.clamp(0.8, high) * sample.advantage
            gain = torch.minimum(ratio * sample.advantage, bounded)
            if sample.advantage < 0:
                gain = gain.clamp(min=3.0 * sample.advantage)
            kl = (reference - logprobs).exp() - 1 + logprobs - reference
            nats += kl.tolist()
            entropies += entropy.tolist()
            kl = kl * ratio if estimator == "k3_weighted" else kl
            # 6 samples, 15 tokens, 8 the longest there may be.
            share = {"grpo": 6 * len(sample.token_ids), "dr_grpo": 6 * LONGEST, "dapo": 15}
            loss = loss + (0.3 * kl - 0.2 * entropy - gain).sum() / share[loss_name]
            gained += gain.sum().item() / share[loss_name]
    loss.backward()
    assert metrics["policy/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["policy/pg_loss"] == pytest.approx(-gained, rel=1e-4), "without the KL"
    assert metrics["policy/kl"] == pytest.approx(sum(nats) / 15, rel=1e-4)
    assert metrics["policy/entropy"] == pytest.approx(sum(entropies) / 15, rel=1e-4)
    assert metrics["policy/covered_frac"] == 1.0
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            noise = 1e-4 * float(parameter.grad.abs().max())
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=noise)


def definition(policy: Policy, groups: Sequence[Group], weight: Callable) -> dict[str, Tensor]:
    """Gradients of the mean over tokens of -weight(log p, log p of the sampler) A log p."""
    loss, count = torch.zeros(()), 0
    for group in groups:
        for sample in group.samples:
            ids = torch.tensor([[*group.prompt_ids, *sample.token_ids]])
            rows = policy.causal_lm(input_ids=ids).logits[0].log_softmax(-1)
            start = len(group.prompt_ids) - 1
            chosen = [rows[start + t, id_] for t, id_ in enumerate(sample.token_ids)]
            for logprob, sampled in zip(chosen, sample.sampled_logprobs, strict=True):
                loss = loss - weight(logprob.item(), sampled) * sample.advantage * logprob
                count += 1
    (loss / count).backward()
    found = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    for parameter in policy.trainable():
        parameter.grad = None
    return found


@pytest.mark.parametrize(
    ("off_policy", "weight"),
    [
        ("truncated", lambda now, sampled: min(math.exp(now - sampled), 1.5)),
        ("ignored", lambda now, sampled: 1.0),
    ],
)
def test_with_one_step_the_old_policy_is_the_new_one(off_policy: str, weight: Callable):
    """Then the ratio is 1 and nothing is clipped, however far off the sampler was."""
    policy, groups = tiny_policy(), random_groups(3, [(3, [2, 4]), (5, [1, 3])])
    wanted = definition(policy, groups, weight)
    calls: list[int] = []
    hook = policy.causal_lm.model.register_forward_hook(lambda *_: calls.append(1))
    options = {"off_policy": off_policy, "off_policy_cap": 1.5, "kl_coefficient": 0.0}
    found, metrics = gradients(policy, groups, **options)
    hook.remove()
    assert len(calls) == 2, "one pass over the prompts, one over the texts: none for the old"
    assert metrics["policy/clip_frac"] == 0.0
    for name, gradient in wanted.items():
        noise = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=noise)
    if off_policy == "truncated":
        tokens = [(g, s) for g in groups for s in g.samples]
        scores = score(policy, groups, section(), 1.0)
        ratios = [
            math.exp(float(now) - sampled)
            for (_, sample), now_T in zip(tokens, scores, strict=True)
            for now, sampled in zip(now_T, sample.sampled_logprobs, strict=True)
        ]
        capped = sum(ratio >= 1.5 for ratio in ratios) / len(ratios)
        assert 0 < capped < 1
        assert metrics["policy/off_policy_capped_frac"] == pytest.approx(capped)


def test_with_several_steps_the_old_policy_is_that_before_the_first():
    """Samples whose log-probabilities are the policy's own: then it is what the sampler said."""
    policy = tiny_policy()
    groups = draw(policy, 1.0)
    options = {"epochs": 2, "minibatches": 2, "learning_rate": 0.01}
    updated = []
    for off_policy in ("ratio", "truncated", "ignored"):
        before = weights(policy)
        Learner(policy, section(off_policy=off_policy, **options), 1.0, 0).update(
            groups, 1, LONGEST
        )
        updated.append(weights(policy))
        policy.load(before)
    for other in updated[1:]:
        for name, tensor in updated[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("off_policy", ["ratio", "truncated"])
@pytest.mark.parametrize("several", [{}, {"epochs": 2, "minibatches": 2}])
def test_what_the_policy_before_the_update_finds_is_kept_and_changes_nothing(
    off_policy: str, several: dict[str, Any]
) -> None:
    """One sample was drawn from a scaffold: its ratio is to the learner under ``ratio``, too."""
    policy = tiny_policy()
    first, *others = placed(random_groups(6, [(3, [2, 5, 1]), (4, [4, 4]), (6, [1])]))
    shown, *rest = first.samples
    groups = [replace(first, samples=[replace(shown, scaffolded=True), *rest]), *others]
    options = section(off_policy=off_policy, micro_batch_tokens=12, learning_rate=0.05, **several)
    before = weights(policy)
    wanted = [logprobs_T.tolist() for logprobs_T in score(policy, groups, options, 0.8)]
    metrics = Learner(policy, options, 0.8, 0).update(groups, 1, LONGEST)
    without = weights(policy)
    policy.load(before)
    found: dict[TurnPlace, list[float]] = {}
    assert Learner(policy, options, 0.8, 0).update(groups, 1, LONGEST, found=found) == metrics
    assert same(weights(policy), without)
    samples = [sample for group in groups for sample in group.samples]
    assert found.keys() == {(*sample.place, 0) for sample in samples if sample.place}
    for sample, logprobs in zip(samples, wanted, strict=True):
        assert sample.place is not None
        assert found[*sample.place, 0] == pytest.approx(logprobs, rel=1e-4, abs=1e-5)


def placed(groups: Sequence[Group]) -> list[Group]:
    """As the groups of a batch."""
    return [
        replace(group, samples=[replace(s, place=(p, g)) for g, s in enumerate(group.samples)])
        for p, group in enumerate(groups)
    ]


def test_a_samples_divergence_is_summed_over_its_tokens():
    policy, groups = tiny_policy(), random_groups(3, [(3, [2, 4]), (5, [1])])
    learner = Learner(policy, section(kl_in="reward"), 1.0, 0)
    wanted = []
    for group in groups:
        for sample in group.samples:
            with policy.model.disable_adapter():
                rows = whole_logits(policy, [*group.prompt_ids, *sample.token_ids]).log_softmax(-1)
            start = len(group.prompt_ids) - 1
            base = [rows[start + t, id_].item() for t, id_ in enumerate(sample.token_ids)]
            pairs = zip(sample.sampled_logprobs, base, strict=True)
            wanted.append(sum(sampled - reference for sampled, reference in pairs))
    assert learner.divergences(groups) == pytest.approx(wanted, rel=1e-4)


def test_a_kl_in_the_reward_is_none_in_the_loss():
    policy, groups = tiny_policy(), random_groups(3, [(3, [2, 4])])
    with_it, metrics = gradients(policy, groups, kl_in="reward", kl_coefficient=0.7)
    without, _ = gradients(policy, groups, kl_coefficient=0.0)
    assert "policy/kl" not in metrics
    assert all(torch.equal(with_it[name], without[name]) for name in without)


def test_a_kl_that_is_only_measured_changes_no_gradient():
    policy, groups = tiny_policy(), random_groups(3, [(3, [2, 4]), (2, [5, 5])])
    without, never = gradients(policy, groups, kl_coefficient=0.0)
    every_step, measured = gradients(policy, groups, kl_coefficient=0.0, kl_every=1)
    _, weighted = gradients(policy, groups, kl_coefficient=0.3)
    _, not_due = gradients(policy, groups, kl_coefficient=0.0, kl_every=2)
    assert all(torch.equal(every_step[name], without[name]) for name in without)
    assert measured == never | {"policy/kl": weighted["policy/kl"]}
    assert not_due == never


def test_the_reference_becomes_the_policy_of_a_step():
    policy, groups = tiny_policy(), random_groups(0, [(4, [3, 2]), (2, [5, 5])])
    learner = Learner(policy, section(reference_every=2, learning_rate=0.01), 1.0, 0)
    base = learner.update(groups, 1, LONGEST)["policy/kl"]
    assert learner.update(groups, 2, LONGEST)["policy/kl"] > 0.1 * base, "still the base model"
    before = weights(policy)
    assert learner.update(groups, 3, LONGEST)["policy/kl"] == pytest.approx(0.0, abs=1e-9)
    assert not same(weights(policy), before)
    learner.update(groups, 5, LONGEST)
    assert same({name: p.clone() for name, p in (learner.reference_state or {}).items()}, before)


def test_a_fresh_adapter_is_the_base_model():
    groups = random_groups(0, [(4, [3, 2]), (2, [5, 5])])
    fresh, moved = tiny_policy(trained=False), tiny_policy()
    _, metrics = gradients(fresh, groups)
    assert metrics["policy/kl"] == pytest.approx(0.0, abs=1e-9)
    _, metrics = gradients(moved, groups)
    assert metrics["policy/kl"] > 1e-3


def draw(policy: Policy, temperature: float, n: int = 4, top_p: float = 1.0) -> list[Group]:
    """Groups sampled from the policy, with advantages by the length of the completion."""
    prompts = [[60, 61, 62], [70, 71, 72, 73, 74]]
    sampling = Sampling(temperature, top_p, LONGEST, 11)
    drawn = anyio.run(LocalSampler(policy, 64).sample, prompts, n, sampling)
    advantages = group_advantages([[float(sum(s.token_ids)) for s in group] for group in drawn])
    return [
        Group(
            prompt,
            [Trained(s.token_ids, s.logprobs, a) for s, a in zip(group, found.values, strict=True)],
        )
        for prompt, group, found in zip(prompts, drawn, advantages, strict=True)
    ]


def test_sampler_and_learner_agree_on_the_first_pass_at_the_sampling_temperature():
    policy = tiny_policy()
    groups = draw(policy, temperature=0.7)
    _, metrics = gradients(policy, groups, temperature=0.7)
    assert metrics["policy/sampler_logp_diff"] < 1e-5
    assert metrics["policy/clip_frac"] == 0.0
    _, metrics = gradients(policy, groups, temperature=1.0)
    assert metrics["policy/sampler_logp_diff"] > 0.01


def test_the_metrics_are_means_over_tokens():
    policy = tiny_policy()
    groups = random_groups(2, [(3, [2, 5]), (4, [3])])
    _, metrics = gradients(policy, groups)
    entropies, gaps = [], []
    for group in groups:
        for sample in group.samples:
            ids = [*group.prompt_ids, *sample.token_ids]
            logprobs = whole_logits(policy, ids).log_softmax(-1)[len(group.prompt_ids) - 1 : -1]
            entropies += (-(logprobs.exp() * logprobs).sum(-1)).tolist()
            chosen = [row[id_].item() for row, id_ in zip(logprobs, sample.token_ids, strict=True)]
            gaps += [abs(a - b) for a, b in zip(chosen, sample.sampled_logprobs, strict=True)]
    assert metrics["policy/entropy"] == pytest.approx(sum(entropies) / 10, rel=1e-4)
    assert metrics["policy/sampler_logp_diff"] == pytest.approx(sum(gaps) / 10, rel=1e-4)


def test_the_loss_does_not_grow_with_the_number_of_minibatches():
    policy = tiny_policy()
    (group,) = draw(policy, 1.0)[:1]
    rate = {"learning_rate": 1e-9, "kl_coefficient": 0.5}
    _, one = gradients(policy, [group] * 4, minibatches=1, **rate)
    _, four = gradients(policy, [group] * 4, minibatches=4, **rate)
    assert one["policy/loss"] != 0.0
    assert four["policy/loss"] == pytest.approx(one["policy/loss"], rel=1e-4)
    assert four["policy/grad_norm"] == pytest.approx(one["policy/grad_norm"], rel=1e-4)


@settings(max_examples=10)
@given(SHAPES, SHAPES, st.integers(0, 2**31), LOSSES)
def test_a_group_without_a_signal_weighs_as_one_whose_advantages_are_0(
    shapes: list, others: list, seed: int, loss: str
):
    """Without KL and entropy it is left out of the passes, and not of the mean."""
    groups, silent = random_groups(seed, shapes), silenced(random_groups(seed + 1, others))
    every = len(groups) + len(silent)
    idle = [len(sample.token_ids) for group in silent for sample in group.samples]
    options: dict[str, Any] = {"loss": loss, "kl_coefficient": 0.0}
    whole, _ = gradients(POLICY, [*groups, *silent], **options)
    part, _ = gradients(POLICY, groups, asked=Requested(every, every, idle), **options)
    noise = 1e-6 * max(float(gradient.abs().max()) for gradient in whole.values())
    for name, gradient in whole.items():
        largest = float(gradient.abs().max())
        assert float((gradient - part[name]).abs().max()) <= 1e-4 * largest + noise, name


def test_what_further_rounds_drew_fills_the_step_that_was_asked_for():
    """Four groups asked for, eight drawn, four with a signal: the update of four of four."""
    groups = draw(POLICY, 1.0) * 2
    lengths = [len(sample.token_ids) for group in groups for sample in group.samples]
    whole = gradients(POLICY, groups, kl_on="signal")
    part = gradients(POLICY, groups, asked=Requested(4, 8, lengths), kl_on="signal")
    assert whole[1].pop("policy/covered_frac") == 2 * part[1].pop("policy/covered_frac") == 1.0
    assert_same_update(part, whole)


def test_the_kl_of_replaced_groups_is_a_part_of_the_mean_and_no_more():
    """Two groups asked for, three drawn: the KL is the mean of all three, and the signal that of
    two of two."""
    rate = {"kl_estimator": "k3", "loss": "grpo", "learning_rate": 1e-9}
    groups = random_groups(3, [(3, [2, 4]), (5, [1, 3])])
    silent = silenced(random_groups(1, [(3, [2, 4, 3, 1])]))
    _, whole = gradients(POLICY, [*groups, *silent], kl_coefficient=0.7, **rate)
    _, more = gradients(
        POLICY, [*groups, *silent], kl_coefficient=0.7, asked=Requested(2, 3, ()), **rate
    )
    assert more["policy/pg_loss"] == pytest.approx(1.5 * whole["policy/pg_loss"], rel=1e-4)
    kl = [found["policy/loss"] - found["policy/pg_loss"] for found in (whole, more)]
    assert kl[1] == pytest.approx(kl[0], rel=1e-4)


def test_clipping_and_optimizer_steps_are_those_of_the_groups_with_a_signal():
    policy = tiny_policy()
    groups, silent = draw(policy, 1.0), silenced(random_groups(4, [(3, [2, 4])] * 6))
    learner = Learner(policy, section(minibatches=4, clip_low=0.01, clip_high=0.01), 1.0, 0)
    metrics = learner.update([*silent, *groups], 1, LONGEST, Requested(8, 8, (3,) * 4))
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {1}
    assert metrics["policy/clip_frac"] == 0.0 and metrics["policy/ratio_std"] < 1e-4
    trained = sum(s.count for g in (*groups, *silent) for s in g.samples)
    assert metrics["policy/covered_frac"] == pytest.approx(trained / (trained + 12))
    moved = learner.update(silent, 2, LONGEST)
    assert "policy/clip_frac" not in moved and moved["policy/grad_norm"] > 0, "its KL alone"


@pytest.mark.parametrize("several", [{}, {"epochs": 2}])
def test_the_policy_learns_from_the_tokens_of_the_highest_entropy(several: dict[str, Any]):
    """Of those in groups with a signal, by the policy before the update; the KL is of all."""
    policy = tiny_policy()
    groups = random_groups(3, [(3, [2, 4]), (5, [1, 3]), (4, [3, 2])])
    groups[1:2] = silenced(groups[1:2])
    sampled = score(policy, groups, section(), 1.0)
    each = iter(sampled)
    groups = [  # at a ratio of 1
        replace(g, samples=[replace(s, sampled_logprobs=next(each).tolist()) for s in g.samples])
        for g in groups
    ]
    entropies = []
    for group in groups:
        for sample in group.samples:
            ids = [*group.prompt_ids, *sample.token_ids]
            rows = whole_logits(policy, ids).log_softmax(-1)[len(group.prompt_ids) - 1 : -1]
            entropies.append((-(rows.exp() * rows).sum(-1)).tolist())
    signal = [e for n in (0, 1, 4, 5) for e in entropies[n]]
    least = sorted(signal, reverse=True)[round(0.4 * len(signal)) - 1]  # of 11: quantile 0.6 is one
    samples = [sample for group in groups for sample in group.samples]
    gained = sum(
        sample.advantage * sum(e >= least for e in known)
        for sample, known in zip(samples, entropies, strict=True)
    )
    options = {"top_entropy": 0.4, "loss": "dapo", "learning_rate": 1e-12, **several}
    _, metrics = gradients(policy, groups, kl_coefficient=0.3, **options)
    assert metrics["policy/pg_loss"] == pytest.approx(-gained / 15, rel=1e-4)
    _, whole = gradients(policy, groups, kl_coefficient=0.3, learning_rate=1e-12, **several)
    assert metrics["policy/kl"] == pytest.approx(whole["policy/kl"], rel=1e-6)
    assert metrics["policy/pg_loss"] != pytest.approx(whole["policy/pg_loss"], rel=1e-3)


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("off_policy", ["ratio", "truncated"])
def test_a_selection_is_the_same_whatever_the_chunks(loss: str, off_policy: str):
    groups = random_groups(3, [(3, [2, 4]), (5, [1, 3]), (4, [3, 2])])
    options = {"loss": loss, "epochs": 2, "off_policy": off_policy, "top_entropy": 0.5}
    whole = gradients(tiny_policy(), groups, micro_batch_tokens=1000, **options)
    cut = gradients(tiny_policy(), groups, micro_batch_tokens=3, **options)
    assert_same_update(whole, cut)
    if off_policy == "ratio":  # at a ratio of 1, KL-Cov penalises nothing
        plain = gradients(tiny_policy(), groups, **options | {"loss": "dapo"})
        assert whole[1]["policy/pg_loss"] != pytest.approx(plain[1]["policy/pg_loss"], rel=1e-6)


@pytest.mark.parametrize("several", [{}, {"epochs": 2, "minibatches": 2}])
def test_below_a_full_nucleus_the_ratio_is_to_the_learner(several: dict[str, Any]):
    """Before an update it is 1, and the nucleus' mass is that of the policy's probabilities."""
    policy = tiny_policy()
    groups = draw(policy, 1.0, top_p=0.7)
    options = section(learning_rate=1e-12, **several)
    metrics = Learner(policy, options, 1.0, 0, top_p=0.7).update(groups, 1, LONGEST)
    assert metrics["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["policy/clip_frac"] == 0.0
    masses = []
    for group in groups:
        for sample in group.samples:
            ids = [*group.prompt_ids, *sample.token_ids]
            rows = whole_logits(policy, ids).softmax(-1)[len(group.prompt_ids) - 1 : -1]
            for row in rows:
                ordered = row.sort(descending=True).values
                masses.append(float(ordered[: int((ordered.cumsum(0) < 0.7).sum()) + 1].sum()))
    if not several:  # else of the first of several steps
        assert metrics["policy/nucleus_mass"] == pytest.approx(sum(masses) / len(masses), rel=1e-4)
    assert 0.7 <= metrics["policy/nucleus_mass"] < 0.95
    with_sampler = Learner(policy, options, 1.0, 0).update(groups, 1, LONGEST)
    assert with_sampler["policy/ratio_mean"] < 0.95, "of two distributions"
    learner = Learner(policy, section(kl_in="reward"), 1.0, 0, top_p=0.7)
    with policy.reference():
        reference = score(policy, groups, options, 1.0)
    own = score(policy, groups, options, 1.0)
    wanted = [float((a - b).sum()) for a, b in zip(own, reference, strict=True)]
    assert learner.divergences(groups) == pytest.approx(wanted, rel=1e-4)


@given(st.integers(1, 64), st.integers(1, 8), st.data())
def test_minibatches_shrink_with_the_groups(asked: int, most: int, data: st.DataObject):
    trained = data.draw(st.integers(1, asked))
    count = Requested(asked, asked, ()).minibatches(most, trained)
    whole = min(most, asked)
    assert Requested(asked, asked, ()).minibatches(most, asked) == whole
    assert 1 <= count <= whole
    sizes = [len(range(i, trained, count)) for i in range(count)]
    assert min(sizes) >= min(trained, asked // whole)


def test_few_groups_take_few_optimizer_steps():
    policy = tiny_policy()
    groups = draw(policy, 1.0)
    learner = Learner(policy, section(minibatches=4), 1.0, 0)
    learner.update(groups, 1, LONGEST, Requested(8, 8, (3,) * 24))
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {1}


@pytest.mark.parametrize("loss_name", ["grpo", "gspo", "cispo"])
def test_clipping_and_ratios_are_those_of_all_tokens_of_all_passes(loss_name: str):
    """With a rate that moves nothing, two passes over two minibatches meet every token twice."""
    policy, groups = tiny_policy(), random_groups(6, [(3, [2, 4]), (5, [1, 3]), (2, [5, 4])])
    options = {"epochs": 2, "minibatches": 2, "learning_rate": 1e-12, "loss": loss_name}
    bounds = {"clip_low": 0.3, "clip_high": 0.5, "dual_clip": 2.0}
    _, metrics = gradients(policy, groups, **options, **bounds)
    ratios, low, high, dual = [], 0, 0, 0
    samples = [sample for group in groups for sample in group.samples]
    for sample, now_T in zip(samples, score(policy, groups, section(), 1.0), strict=True):
        logs = [float(n) - s for n, s in zip(now_T, sample.sampled_logprobs, strict=True)]
        if loss_name == "gspo":
            logs = [sum(logs) / len(logs)] * len(logs)
        for ratio in map(math.exp, logs):
            ratios.append(ratio)
            better, clips = sample.advantage > 0, loss_name != "cispo"
            low += clips and not better and ratio < 0.7
            high += (better or not clips) and ratio > 1.5
            dual += clips and not better and ratio > 2.0
    mean = sum(ratios) / len(ratios)
    deviation = math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / len(ratios))
    assert low + high + dual > 0
    for name, count in (("low", low), ("high", high), ("dual", dual), ("frac", low + high + dual)):
        assert metrics[f"policy/clip_{name}"] == pytest.approx(count / len(ratios)), name
    assert metrics["policy/ratio_mean"] == pytest.approx(mean, rel=1e-4)
    assert metrics["policy/ratio_std"] == pytest.approx(deviation, rel=1e-4)


@pytest.mark.parametrize("off_policy", ["masked", "sequence_truncated", "sequence_masked"])
def test_a_correction_weighs_the_samples_whatever_the_chunks(off_policy: str):
    """Also where the old policy is that of before several steps, and chunks end anywhere."""
    groups = random_groups(3, [(3, [2, 4]), (5, [1, 3])])
    cap = 50.0 if off_policy == "sequence_masked" else 3.0
    options = {"off_policy": off_policy, "off_policy_cap": cap, "epochs": 2}
    whole = gradients(tiny_policy(), groups, micro_batch_tokens=1000, **options)
    cut = gradients(tiny_policy(), groups, micro_batch_tokens=3, **options)
    assert_same_update(whole, cut)
    assert 0 < whole[1]["policy/off_policy_capped_frac"] < 1
    assert whole[1]["policy/off_policy_weight"] > 0


def test_an_update_makes_better_samples_likelier_and_leaves_the_base_alone():
    policy = tiny_policy()
    groups = draw(policy, 1.0)
    base = {name: p.clone() for name, p in policy.model.named_parameters() if not p.requires_grad}
    learner = Learner(policy, section(learning_rate=0.01, kl_coefficient=0.0), 1.0, 0)
    before = score(policy, groups, section(), 1.0)
    metrics = learner.update(groups, 1, LONGEST)
    after = score(policy, groups, section(), 1.0)
    advantages = [sample.advantage for group in groups for sample in group.samples]
    moves = [float((b - a).sum()) for a, b in zip(before, after, strict=True)]
    assert sum(m * a for m, a in zip(moves, advantages, strict=True)) > 0
    assert metrics["policy/lr"] == 0.01
    for name, parameter in policy.model.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter, base[name]), name


def test_passes_and_minibatches_are_optimizer_steps_and_clipping_is_seen_after_the_first():
    policy = tiny_policy()
    groups = draw(policy, 1.0)
    learner = Learner(policy, section(learning_rate=0.05, epochs=3, minibatches=2), 1.0, 0)
    metrics = learner.update(groups, 1, LONGEST)
    steps = {int(state["step"]) for state in learner.optimizer.state.values()}
    assert steps == {6}
    assert metrics["policy/clip_frac"] > 0.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_an_update_without_groups_leaves_weights_and_optimizer():
    policy = tiny_policy()
    learner = Learner(policy, section(learning_rate=0.05), 1.0, 0)
    before = weights(policy)
    assert learner.update([], 1, LONGEST) == {"policy/lr": 0.05}
    assert same(weights(policy), before)
    assert not learner.optimizer.state


def test_the_same_update_twice_is_the_same_bit_for_bit():
    results = []
    for _ in range(2):
        policy = tiny_policy()
        learner = Learner(policy, section(epochs=2, minibatches=2, micro_batch_tokens=24), 1.0, 4)
        metrics = [learner.update(random_groups(s, [(3, [2, 4])] * 4), s, 8) for s in (1, 2)]
        results.append((metrics, weights(policy)))
    (metrics_1, weights_1), (metrics_2, weights_2) = results
    assert metrics_1 == metrics_2
    assert same(weights_1, weights_2)


def test_the_gradient_norm_is_that_before_clipping():
    policy, groups = tiny_policy(), random_groups(5, [(3, [2, 4])])
    found, metrics = gradients(policy, groups, max_grad_norm=1e-6)
    norm = torch.stack([g.square().sum() for g in found.values()]).sum().sqrt()
    # The hook sees the gradient before it is clipped in place.
    assert metrics["policy/grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_the_learning_rate_by_hand():
    def rates(**given: Any) -> list[float]:
        made = section(learning_rate=1.0, steps=10, **given)
        return [learning_rate(made, step) for step in range(1, 11)]

    assert rates() == [1.0] * 10
    assert rates(warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 7)
    # Linear: 10 steps from 1 by tenths. After 2 steps of warm-up: 8 steps by eighths.
    assert rates(schedule="linear") == pytest.approx([1 - k / 10 for k in range(10)])
    assert rates(schedule="linear", warmup_steps=2) == pytest.approx(
        [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    )
    # Cosine: (1 + cos(pi k / 10)) / 2; cos(pi / 5) = 0.809017, half-way exactly 1/2.
    cosine = rates(schedule="cosine")
    assert (cosine[0], cosine[2], cosine[5]) == pytest.approx((1.0, 0.9045085, 0.5))
    assert cosine == sorted(cosine, reverse=True)
