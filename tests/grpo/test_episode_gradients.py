"""The update of episodes: that of each turn behind the context that its sampler saw, whatever the
layout; tokens of the environment change nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from made_episodes import ADDED, made_batch, turn_logprobs
from tiny_policy import same, tiny_policy, weights
from torch import Tensor
from vllm_double import BASE, VllmDouble

from flowright.config.grpo import GrpoSection, TeacherSection
from flowright.environments.episode import Observation
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.batch import (
    Batch,
    Group,
    Trained,
    by_episode,
    flattened,
    requested,
    trained_groups,
    whole_groups,
)
from flowright.grpo.learner import Learner
from flowright.grpo.step_record import episode_metrics
from flowright.grpo.teacher import LocalTeacher, ServedTeacher, Teacher
from flowright.policy.model import Policy

LONGEST, KL = 20, 0.3
POLICY = tiny_policy()
BOUNDS = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "gsspo": (3e-4, 4e-4)}


def update(
    groups: Sequence[Group], batch: Batch, policy: Policy = POLICY, **options: Any
) -> tuple[list[Tensor], dict[str, float], dict[str, Tensor]]:
    """The gradients of an optimizer step, its metrics, and the weights
    after it; the policy's are put back."""
    section = GrpoSection(**{"kl_coefficient": 0.0, "max_grad_norm": 1e9, **options})
    learner, found, before = Learner(policy, section, 0.8, 0), [], weights(policy)
    learner.optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad.clone() for p in policy.trainable())  # type: ignore[union-attr]
    )
    metrics = learner.update(groups, 1, LONGEST, requested(batch, groups, len(groups)))
    after = weights(policy)
    policy.load(before)
    return found[: len(policy.trainable())], metrics, after


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    largest = max(float(gradient.abs().max()) for gradient in theirs)
    assert largest > 0
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * largest)


def gains(ratio: Tensor, advantage: float, loss: str) -> Tensor:
    low, high = BOUNDS.get(loss, (0.2, 0.2))
    found = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return found if advantage >= 0 else found.clamp(min=3 * advantage)


def plain_loss(
    batch: Batch, advantages: Sequence[GroupAdvantages], loss: str, policy: Policy = POLICY
) -> Tensor:
    """The objectives' definitions, episode by episode and turn by turn."""
    total, scored = torch.zeros(()), []
    for p, group in enumerate(batch.episodes_P_G):
        for g, episode in enumerate(group):
            if batch.rollouts_P_G[p][g].reward.value is not None:
                scored.append((episode, advantages[p].turns[g]))
    tokens = sum(episode.length for episode, _ in scored)
    for episode, advantages_T in scored:
        new = [turn_logprobs(policy, turn, 0.8) for turn in episode.turns]
        old = [torch.tensor(turn.sample.logprobs) for turn in episode.turns]
        with torch.no_grad(), policy.model.disable_adapter():
            base = [turn_logprobs(policy, turn, 0.8) for turn in episode.turns]
        for turns in episode.chains():
            # The sequence of GSPO is what follows on one another.
            both = torch.cat([new[t] for t in turns]), torch.cat([old[t] for t in turns])
            of_chain = (both[0] - both[1]).mean().exp()
            for t in turns:
                log_ratio, advantage = new[t] - old[t], advantages_T[t]
                kl = (base[t] - new[t]).exp() - 1 + new[t] - base[t]
                if loss == "gspo":
                    # Its gradient is that of the mean log-ratio, shared among the tokens.
                    gain = gains(of_chain, advantage, loss).expand(len(new[t]))
                elif loss == "gsspo":
                    gain = gains(log_ratio.mean().exp(), advantage, loss).expand(len(new[t]))
                elif loss == "cispo":
                    gain = log_ratio.exp().clamp(max=5).detach() * advantage * new[t]
                else:
                    gain = gains(log_ratio.exp(), advantage, loss)
                shares = {
                    "grpo": len(scored) * episode.length,
                    "gspo": len(scored) * episode.length,
                    "gsspo": len(scored) * len(episode.turns) * len(new[t]),
                    "dr_grpo": len(scored) * LONGEST,
                }
                total = total + (KL * kl - gain).sum() / shares.get(loss, tokens)
    return total


def groups_of(batch: Batch, advantages: Sequence[GroupAdvantages], **options: Any) -> list[Group]:
    return trained_groups(batch, advantages, **options)


LOSSES = ["grpo", "dr_grpo", "dapo", "gspo", "gsspo", "cispo"]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_is_that_of_each_turn_behind_what_its_sampler_saw(loss: str) -> None:
    batch, advantages = made_batch(3)
    if loss == "gspo":  # one ratio of several turns, so one advantage
        advantages = [
            replace(found, turns=tuple(turns[:1] * len(turns) for turns in found.turns))
            for found in advantages
        ]
    groups = groups_of(batch, advantages)
    assert [len(group.others) for group in groups] == [1, 1]
    wanted = plain_loss(batch, advantages, loss)
    expected = torch.autograd.grad(wanted, POLICY.trainable())
    options = {"loss": loss, "kl_coefficient": KL, "kl_estimator": "k3"}
    for layout in ({}, {"prefix_sharing": False}, {"micro_batch_tokens": 12}):
        found, metrics, _ = update(groups, batch, **options, **layout)
        assert_close(found, expected)
        assert metrics["policy/loss"] == pytest.approx(wanted.item(), rel=1e-4, abs=1e-5)
        assert metrics["policy/covered_frac"] == 1.0


def test_the_weight_of_a_token_counts_trained_tokens_alone() -> None:
    """Answers of any length between the turns change no weight: with an advantage of 1 on policy
    the loss is minus the weights' sum, 1 for a mean over tokens, samples or turns."""
    batch, advantages = made_batch(4, unscored=False)
    ones = [replace(a, turns=tuple((1.0,) * len(t) for t in a.turns)) for a in advantages]
    groups = groups_of(batch, ones)
    for loss in ("grpo", "dapo", "gspo", "gsspo"):
        _, metrics, _ = update(groups, batch, loss=loss, off_policy="ignored")
        assert metrics["policy/pg_loss"] == pytest.approx(-1, rel=1e-5)
    _, metrics, _ = update(groups, batch, loss="dr_grpo", off_policy="ignored")
    tokens = sum(episode.length for group in batch.episodes_P_G for episode in group)
    count = sum(map(len, batch.episodes_P_G))
    assert metrics["policy/pg_loss"] == pytest.approx(-tokens / (count * LONGEST), rel=1e-5)


def failed(batch: Batch, p: int, g: int, t: int) -> Batch:
    """With a turn that could not be parsed."""
    episodes = [list(group) for group in batch.episodes_P_G]
    turns = list(episodes[p][g].turns)
    turns[t] = replace(turns[t], observation=Observation("no", failed=True))
    episodes[p][g] = replace(episodes[p][g], turns=tuple(turns))
    return replace(batch, episodes_P_G=episodes)


def test_masked_turns_are_as_if_they_were_the_environments() -> None:
    batch, advantages = made_batch(5, ((((ADDED, ADDED)), (ADDED,)),), unscored=False)
    masked = failed(failed(batch, 0, 0, 2), 0, 1, 0)
    groups = groups_of(masked, advantages, mask_failed=True)
    (group,) = groups
    first, second = group.samples
    assert [credit.turn for credit in first.credits] == [0, 1]
    assert [credit.turn for credit in second.credits] == [1]
    found = update(groups, masked, loss="gsspo")
    # Other ids in a masked turn at the end of a chain, where nothing stands behind it.
    last = batch.episodes_P_G[0][0].turns[2].sample
    tampered = [*first.token_ids]
    tampered[-len(last.token_ids) :] = [9] * len(last.token_ids)
    changed = replace(group, samples=[replace(first, token_ids=tampered), second])
    again = update([changed], masked, loss="gsspo")
    assert same(found[2], again[2])
    assert all(torch.equal(a, b) for a, b in zip(found[0], again[0], strict=True))
    # An attempt of which every turn is masked trains nothing, and counts as one that is idle.
    every = failed(failed(masked, 0, 1, 1), 0, 1, 0)
    (left,) = groups_of(every, advantages, mask_failed=True)
    assert len(left.samples) == 1
    assert requested(every, [left], 1).idle == (every.episodes_P_G[0][1].length,)


def test_no_gradient_comes_from_a_token_of_the_environment() -> None:
    """A final hidden state has a gradient where it predicts a trained token, else exactly 0."""
    batch, advantages = made_batch(6)
    groups = groups_of(batch, advantages)
    policy, states = tiny_policy(), list[Tensor]()

    def keep(module: object, inputs: object, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            states.append(output)

    handle = policy.causal_lm.model.norm.register_forward_hook(keep)
    update(groups, batch, policy, prefix_sharing=False, entropy_coefficient=0.1)
    handle.remove()
    rows = torch.cat([s.grad.flatten(0, -2) for s in states if s.grad is not None])
    learned = sum(s.count for group in flattened(groups) for s in group.samples)
    assert int((rows != 0).any(dim=-1).sum()) == learned
    assert learned == sum(
        episode.length
        for p, group in enumerate(batch.episodes_P_G)
        for g, episode in enumerate(group)
        if batch.can_train(p, g, needs_rewards=True)
    )


def test_a_tampered_token_is_seen_in_the_metrics() -> None:
    batch, advantages = made_batch(7)
    groups = groups_of(batch, advantages)
    assert episode_metrics(batch, groups, ())["tokens/trained_as_sampled"] == 1.0
    for number, group in enumerate(flattened(groups)):
        for place, sample in enumerate(group.samples):
            for at in range(len(sample.token_ids)):
                seen = episode_metrics(
                    batch, replaced(groups, number, place, other(sample, at)), ()
                )
                assert seen["tokens/trained_as_sampled"] < 1.0


def other(sample: Trained, at: int) -> Trained:
    ids = [*sample.token_ids]
    ids[at] = ids[at] % 200 + 10 + (ids[at] % 200 + 10 == ids[at])
    return replace(sample, token_ids=ids)


def replaced(groups: Sequence[Group], number: int, place: int, sample: Trained) -> list[Group]:
    """The groups with another sample in one of those of :func:`flattened`."""
    found = []
    for group in groups:
        parts = []
        for part in (replace(group, others=()), *group.others):
            samples = [*part.samples]
            if number == 0:
                samples[place] = sample
            number -= 1
            parts.append(replace(part, samples=samples))
        found.append(replace(parts[0], others=parts[1:]))
    return found


def test_the_divergence_of_an_episode_is_the_sum_over_all_its_turns() -> None:
    batch, _ = made_batch(8)
    groups = whole_groups(batch)
    learner = Learner(POLICY, GrpoSection(kl_in="reward"), 0.8, 0)
    found = by_episode(groups, learner.divergences(groups))
    assert list(found) == [(p, g) for p in range(2) for g in range(4)]
    for (p, g), nats in found.items():
        turns = batch.episodes_P_G[p][g].turns
        with torch.no_grad(), POLICY.model.disable_adapter():
            base = torch.cat([turn_logprobs(POLICY, turn, 0.8) for turn in turns])
        sampled = torch.tensor([value for turn in turns for value in turn.sample.logprobs])
        assert sum(nats) == pytest.approx(float((sampled - base).sum()), rel=1e-4, abs=1e-3)


async def taught(batch: Batch, teacher: Teacher) -> Batch:
    groups = whole_groups(batch)
    found = by_episode(groups, await teacher.score(groups))
    scores = [
        [[v for part in found[p, g] for v in part] for g in range(len(group))]
        for p, group in enumerate(batch.episodes_P_G)
    ]
    return replace(batch, teacher_P_G=scores)


def test_a_teacher_scores_each_turn_behind_its_context() -> None:
    """Also the turns of an episode whose contexts begin with the prompt, do not, and do again."""
    batch, advantages = made_batch(9)

    async def scored() -> list[tuple[Policy, Batch]]:
        local = LocalTeacher(POLICY, GrpoSection())
        async with VllmDouble() as server:
            served = ServedTeacher(TeacherSection(model=BASE, base_urls=(server.url,)))
            found = [
                (POLICY, await taught(batch, local)),
                (server.model.policy, await taught(batch, served)),
            ]
            await served.aclose()
        return found

    for model, found in asyncio.run(scored()):
        seen = 0
        for group in flattened(groups_of(found, advantages)):
            for sample in group.samples:
                p, g = sample.place or (0, 0)
                turns = [batch.episodes_P_G[p][g].turns[credit.turn] for credit in sample.turns]
                with torch.no_grad(), model.reference():
                    wanted = torch.cat([turn_logprobs(model, turn) for turn in turns])
                assert sample.teacher_logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
                seen += len(wanted)
        assert seen > 20
