"""Batches ahead of the learner: who samples what, what overlaps, what a resumed run repeats."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tiny_policy import same, tiny_policy, weights
from toy_run import TASKS, Killed, Toy, Wrapped, configured, train

from flowright.config.grpo import GrpoSection
from flowright.core.errors import RunPaused
from flowright.data.mixture import Mixture
from flowright.environments.episode import Episode
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.grpo.advantages import group_advantages
from flowright.grpo.batch import (
    Group,
    Requested,
    Trained,
    overlong,
    penalised,
    requested,
    trained_groups,
)
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import SEED_STRIDE, Batch
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Prompt, Sample, Sampling, render
from flowright.runs.run_files import read_metrics, read_rollouts

QUIET = {"every": 0}


@dataclass
class Timed(Toy):
    """Rolls out each batch in so many seconds, and writes down when it began and ended."""

    seconds: Callable[[int], float] = lambda step: 0.0
    events: list[str] = field(default_factory=list)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        place = groups[0][0].key.split("/")[1]
        if place != "evaluation":
            self.events.append(f"begin {place}")
            await asyncio.sleep(self.seconds(int(place)))
            self.events.append(f"end {place}")
        return await super().rollout(groups)


@pytest.mark.parametrize("kl_on", ["all", "signal"])
async def test_without_staleness_the_run_is_the_sequential_loop_bit_for_bit(
    tmp_path: Path, kl_on: str
):
    config = configured({"steps": 3, "kl_on": kl_on}, evaluation=QUIET)
    done = await train(tmp_path, config=config)

    policy, toy = tiny_policy(trained=False), Toy()
    sampler, learner = LocalSampler(policy, 64), Learner(policy, config.grpo, 1.0, config.seed)
    for step in (1, 2, 3):
        tasks = Mixture(TASKS, config.seed).batch(step - 1, 2)
        prompts = [render(toy.messages(task), policy.tokenizer, 100).token_ids for task in tasks]
        sampling = Sampling(1.0, 1.0, 6, config.seed * SEED_STRIDE + step)
        drawn = await sampler.sample(prompts, 4, sampling)
        groups = [
            [Episode.single(task, sample, f"1/{step}/0/0") for sample in group]
            for task, group in zip(tasks, drawn, strict=True)
        ]
        rewards = [[r.reward.value for r in group] for group in await toy.rollout(groups)]
        advantages = group_advantages(rewards)
        trained = [
            Group(
                prompt,
                [Trained(s.token_ids, s.logprobs, a) for s, a in zip(g, f.values, strict=True)],
                f.signal == "ok",
            )
            for prompt, g, f in zip(prompts, drawn, advantages, strict=True)
            if f.signal == "ok" or kl_on == "all"
        ]
        idle = [
            len(sample.token_ids)
            for samples, f in zip(drawn, advantages, strict=True)
            for sample in samples
            if f.signal != "ok" and kl_on == "signal"
        ]
        learner.update(trained, step, 6, Requested(2, 2, idle))
    assert same(done.weights, weights(policy))
    assert any(row["reward/zero_variance_frac"] > 0 for row in done.metrics[1:])
    covered = {row["policy/covered_frac"] for row in done.metrics[1:] if len(row) > 20}
    assert (covered == {1.0}) is (kl_on == "all")


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_a_batch_is_sampled_as_early_as_allowed_and_no_earlier(
    tmp_path: Path, staleness: int
):
    config = configured({"steps": 6}, evaluation=QUIET, max_staleness=staleness)
    done = await train(tmp_path, config=config)
    versions = [{r["policy_version"] for r in read_rollouts(tmp_path, s)} for s in range(1, 7)]
    assert versions == [{max(0, step - 1 - staleness)} for step in range(1, 7)]
    found = [row["pipeline/staleness"] for row in done.metrics[1:]]
    assert found == [min(step - 1, staleness) for step in range(1, 7)]


async def test_a_batch_is_rolled_out_while_the_one_before_is_trained_on(tmp_path: Path):
    toy = Timed(seconds=lambda step: 0.02)
    config = configured({"steps": 4}, evaluation=QUIET, max_staleness=1)

    def trained(version: int) -> None:
        toy.events.append(f"trained {version}")

    await train(tmp_path, toy, config, sampler=lambda local: Wrapped(local, refreshed=trained))
    for step in (1, 2, 3):
        began, trained_on = (
            toy.events.index(f"begin {step + 1}"),
            toy.events.index(f"trained {step}"),
        )
        assert began < trained_on, "while the one before is trained on"
    for step in (2, 3):
        began, ready = (
            toy.events.index(f"begin {step + 1}"),
            toy.events.index(f"trained {step - 1}"),
        )
        assert began > ready, "not by a policy that is older than allowed"
    for step in (1, 2, 3, 4):
        assert toy.events.index(f"end {step}") < toy.events.index(f"trained {step}")


async def test_who_is_slow_changes_nothing_but_the_clock(tmp_path: Path):
    config = configured({"steps": 5}, max_staleness=2)
    even = await train(tmp_path / "even", Timed(), config)
    uneven = Timed(seconds=lambda step: 0.1 if step % 2 else 0.0)
    other = await train(tmp_path / "uneven", uneven, config)
    assert even.metrics == other.metrics
    assert same(even.weights, other.weights)


async def test_the_clock_of_a_step_says_who_waited_for_whom(tmp_path: Path):
    config = configured({"steps": 3}, evaluation=QUIET, max_staleness=1)
    late = Timed(seconds=lambda step: 1.0 if step == 1 else 0.0)
    slow = await train(tmp_path / "slow", late, config)
    first = read_metrics(slow.path)[1]
    assert first["time/wait_for_llm"] > 0.0 and first["time/rollout"] > 0.9
    assert first["time/wait_for_learner"] == 0.0
    assert 0 < first["time/busy_frac"] < 1
    fast = await train(tmp_path / "fast", Timed(), config)
    for row in read_metrics(fast.path)[2:]:
        assert row["time/wait_for_llm"] == 0.0 and row["time/wait_for_learner"] > 0.0


@pytest.mark.parametrize("at", [2, 4, 5])
async def test_a_killed_run_resumed_trains_on_the_samples_that_were_waiting(
    tmp_path: Path, at: int
):
    def kill(version: int) -> None:
        if version == at:
            raise Killed

    config = configured({"steps": 6}, max_staleness=2)
    whole = await train(tmp_path / "whole", config=config)
    killed: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    await train(tmp_path / "run", config=config, **killed)
    resumed = await train(tmp_path / "run", config=config, resume=True)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    for step in range(1, 7):
        assert list(read_rollouts(tmp_path / "run", step)) == list(
            read_rollouts(tmp_path / "whole", step)
        )


async def test_a_pause_keeps_the_samples_that_could_not_be_scored(tmp_path: Path):
    config = configured({"steps": 6}, max_staleness=1)
    whole = await train(tmp_path / "whole", config=config)
    broken = Toy(lost=lambda c: c.key.startswith("1/4/"))
    paused = await train(tmp_path / "run", broken, config, raises=RunPaused)
    assert paused.checkpoints == [0, 2, 3]
    mended = await train(tmp_path / "run", config=config, resume=True)
    assert mended.metrics == whole.metrics
    assert same(mended.weights, whole.weights)


async def test_what_is_still_rolled_out_is_stopped_with_the_run(tmp_path: Path):
    toy = Timed(seconds=lambda step: 60.0 if step > 1 else 0.0)
    config = configured({"steps": 4}, evaluation=QUIET, max_staleness=2)

    def kill(version: int) -> None:
        if version:  # 0 is published before the first step
            raise Killed

    broken: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    before = asyncio.all_tasks()
    await train(tmp_path, toy, config, **broken)
    assert sorted(toy.events) == ["begin 1", "begin 2", "begin 3", "end 1"]
    assert asyncio.all_tasks() == before


def dull(completion: Episode) -> float:
    """No signal on the first round of a step; afterwards by the parity of the first token."""
    if "/round-" not in completion.key:
        return 1.0
    return float(completion.sample.token_ids[0] % 2)


async def test_groups_without_a_signal_are_replaced_by_new_problems(tmp_path: Path):
    config = configured({"steps": 2, "resample_rounds": 3}, evaluation=QUIET)
    done = await train(tmp_path, Toy(reward=dull), config)
    assert not same(done.weights, weights(tiny_policy(trained=False)))
    for step in (1, 2):
        rows = list(read_rollouts(tmp_path, step))
        groups = {r["group"] for r in rows}
        informative = {r["group"] for r in rows if r["advantage"]}
        assert groups == set(range(len(groups))) and {0, 1}.isdisjoint(informative)
        # Until there are two with a signal, and never more than the rounds may bring.
        assert len(informative) == 2 or len(groups) == 2 + 3 * 2
        assert {r["policy_version"] for r in rows} == {step - 1}
        row = done.metrics[step]
        assert row["reward/resampled_groups"] == len(groups) - 2 > 0
        assert row["reward/zero_variance_frac"] == 1 - len(informative) / len(groups)


async def test_rounds_have_a_cap_and_other_draws(tmp_path: Path):
    config = configured({"steps": 1, "resample_rounds": 2}, evaluation=QUIET)
    done = await train(tmp_path, Toy(reward=lambda completion: 1.0), config)
    rows = list(read_rollouts(tmp_path, 1))
    assert len({r["group"] for r in rows}) == 6
    texts = [tuple(r["completion"] for r in rows if r["group"] == p) for p in range(6)]
    assert len(set(texts)) == 6
    assert same(done.weights, weights(tiny_policy(trained=False)))


async def test_a_signal_in_every_group_asks_for_no_further_round(tmp_path: Path):
    by_place = Toy(reward=lambda completion: float(completion.key[-1] == "0"))
    config = configured({"steps": 1, "resample_rounds": 2}, evaluation=QUIET)
    done = await train(tmp_path, by_place, config)
    assert done.metrics[1]["reward/resampled_groups"] == 0


async def test_what_nobody_can_score_is_not_resampled_but_pauses(tmp_path: Path):
    config = configured({"resample_rounds": 5}, evaluation=QUIET)
    broken = Toy(lost=lambda completion: True)
    paused = await train(tmp_path, broken, config, raises=RunPaused)
    assert paused.reporter.said[0].startswith("step 1: 8 of 8 samples could not be scored")


@pytest.mark.parametrize("staleness", [0, 1])
async def test_rounds_are_repeated_by_a_resumed_run(tmp_path: Path, staleness: int):
    def kill(version: int) -> None:
        if version == 3:
            raise Killed

    config = configured({"resample_rounds": 2}, max_staleness=staleness)
    whole = await train(tmp_path / "whole", Toy(reward=dull), config)
    killed: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    await train(tmp_path / "run", Toy(reward=dull), config, **killed)
    resumed = await train(tmp_path / "run", Toy(reward=dull), config, resume=True)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)


def played(rewards: Sequence[float | None], finish: Sequence[Any]) -> Batch:
    """One group of samples of two tokens."""
    samples = [Sample((5, 6 + i), (-1.0, -2.0), "", f, 0) for i, f in enumerate(finish)]
    given = [UNSCORED if r is None else Reward(r, {"correctness": r}) for r in rewards]
    rollouts = [Rollout(TASKS[0], s, r) for s, r in zip(samples, given, strict=True)]
    prompts, bare = [Prompt((1, 2, 3), False)] * len(samples), [None] * len(samples)
    episodes = [Episode.single(TASKS[0], sample, "") for sample in samples]
    return Batch([prompts], [bare], [episodes], [rollouts])


def test_what_was_cut_leaves_the_loss_but_counts_in_its_group():
    # Rewards 1, 0, 0 have the mean 1/3 and the deviation sqrt(1/3): advantages 1.1547 and -0.5774.
    batch = played([1.0, None, 0.0, 0.0], ["stop", "stop", "length", "stop"])
    advantages = group_advantages([[r.reward.value for r in batch.rollouts]])
    (kept,) = trained_groups(batch, advantages, filter_overlong=True)
    assert [s.token_ids for s in kept.samples] == [(5, 6), (5, 9)]
    assert [s.advantage for s in kept.samples] == pytest.approx([1.1547, -0.57735], rel=1e-4)
    (whole,) = trained_groups(batch, advantages)
    assert [s.token_ids for s in whole.samples] == [(5, 6), (5, 8), (5, 9)]
    assert requested(batch, [kept], 1) == Requested(1, 1, (2,)), "asked for, and nothing unscored"
    cut = played([1.0, 0.0], ["length", "length"])
    assert trained_groups(cut, group_advantages([[1.0, 0.0]]), filter_overlong=True) == []


def test_a_group_without_a_signal_is_trained_by_its_kl():
    # Its rewards are equal, its KL 2, 0 and 1 nats at a coefficient of 0.1: centred, -0.1, 0.1, 0.
    batch = played([1.0, None, 1.0, 1.0], ["stop"] * 4)
    section = GrpoSection(kl_in="reward", kl_coefficient=0.1)
    paid = penalised(batch, section, 8, [2.0, 9.0, 0.0, 1.0])
    found = group_advantages(
        paid.task_rewards_P_G, "group", paid.penalties_P_G, paid.divergences_P_G
    )
    assert found[0].signal == "zero_variance"
    assert found[0].values == pytest.approx((-0.1, 0.0, 0.1, 0.0), abs=1e-12)
    assert trained_groups(paid, found) == []
    (group,) = trained_groups(paid, found, trains_all=section.trains_all)
    assert not group.has_signal and len(group.samples) == 3
    assert requested(paid, [group], 1) == Requested(1, 1, ())
    for options, trains_all in (
        ({"kl_coefficient": 0.0}, False),
        ({"kl_coefficient": 0.0, "entropy_coefficient": 0.1}, True),
        ({"kl_on": "signal"}, False),
        ({}, True),
    ):
        assert GrpoSection.model_validate(options).trains_all is trains_all


def told_and_made(rows: Sequence[dict], part: str) -> tuple[list[float], list[float]]:
    """The advantages that a step's records have, and those of their rewards and penalties."""
    groups = [[r for r in rows if r["group"] == p] for p in {r["group"] for r in rows}]
    rewards = [[r["reward"].get("unpenalised") for r in group] for group in groups]
    paid = [[r["reward"]["parts"].get(part, 0.0) for r in group] for group in groups]
    made = group_advantages(rewards, "group", paid, paid if part == "kl" else None)
    told = [r["advantage"] for group in groups for r in group]
    return told, [value for group in made for value in group.values]


async def test_long_completions_pay_for_their_length(tmp_path: Path):
    """Of 6 tokens at most the last 4 cost a quarter each; who is unscored pays nothing."""
    config = configured({"overlong": "soft", "overlong_buffer": 4, "steps": 1}, evaluation=QUIET)
    toy = Toy(lost=lambda completion: completion.key == "1/1/0/0")

    def cut(group: list[Sample]) -> list[Sample]:
        return [
            replace(s, token_ids=s.token_ids[: 3 + g], logprobs=s.logprobs[: 3 + g])
            for g, s in enumerate(group)
        ]

    done = await train(tmp_path, toy, config, sampler=lambda local: Wrapped(local, change=cut))
    (row,) = done.metrics[1:]
    rows = list(read_rollouts(tmp_path, 1))
    lost = [r["reward"] for r in rows if r["reward"]["value"] is None]
    assert lost == [{"value": None, "parts": {}}]
    scored = [r for r in rows if r["reward"]["value"] is not None]
    for r in scored:
        reward, penalty = r["reward"], max(0.0, (r["tokens"] - 2) / 4)
        assert reward["parts"]["overlong"] == pytest.approx(-penalty)
        assert reward["value"] == pytest.approx(reward["unpenalised"] - penalty)
    paid = [r["reward"]["parts"]["overlong"] for r in scored]
    assert {*paid} == {-0.25, -0.5, -0.75, -1.0}
    assert row["reward/overlong"] == pytest.approx(sum(paid) / len(paid))
    told, made = told_and_made(rows, "overlong")
    assert told == pytest.approx(made, abs=1e-9)
    assert any(told)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 400))
def test_the_penalty_of_length_is_dapos_with_a_minus(longest: int, buffer: int, length: int):
    # arXiv 2503.14476, equation 13, as it stands.
    buffer = min(buffer, longest)
    if length <= longest - buffer:
        published = 0.0
    elif length <= longest:
        published = ((longest - buffer) - length) / buffer
    else:
        published = -1.0
    assert overlong(length, longest, buffer) == pytest.approx(-published)


async def test_a_kl_in_the_reward_is_a_part_of_it(tmp_path: Path):
    config = configured({"kl_in": "reward", "kl_coefficient": 0.5}, evaluation=QUIET)
    third = Toy(lost=lambda completion: completion.key == "1/4/0/0")
    done = await train(tmp_path, third, config)
    assert all(
        r["reward"]["parts"]["kl"] == pytest.approx(0, abs=1e-4) for r in read_rollouts(tmp_path, 1)
    )
    rows = list(read_rollouts(tmp_path, 4))
    assert [r["reward"]["value"] for r in rows].count(None) == 1
    scored = [r["reward"] for r in rows if r["reward"]["value"] is not None]
    assert any(abs(reward["parts"]["kl"]) > 1e-3 for reward in scored)
    for reward in scored:
        assert reward["value"] == pytest.approx(sum(reward["parts"].values()))
        assert reward["value"] == pytest.approx(reward["unpenalised"] + reward["parts"]["kl"])
    steps = [told_and_made(list(read_rollouts(tmp_path, step)), "kl") for step in (2, 3, 4)]
    assert all(told == pytest.approx(made, abs=1e-9) for told, made in steps)
    assert any(any(told) for told, _ in steps)
    mean = sum(reward["parts"]["kl"] for reward in scored) / len(scored)
    assert done.metrics[4]["reward/kl"] == pytest.approx(mean)
    assert "policy/kl" not in done.metrics[4]
