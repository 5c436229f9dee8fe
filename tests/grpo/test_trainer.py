"""The training loop with a toy environment and a random policy: what it keeps, skips and repeats.

The environment rewards completions that hold one of some tokens; nothing in it runs a program.
"""

import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_policy import same, tiny_policy, weights
from toy_run import TASKS, Killed, Toy, Wrapped, configured, train

from flowright.core.errors import RunError, RunPaused
from flowright.data.mixture import Mixture
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.policy.local import LocalSampler
from flowright.policy.model_thread import on_model_thread
from flowright.runs.run_files import read_metrics, read_rollouts, read_state, rollout_steps


async def test_two_steps_from_end_to_end(tmp_path: Path):
    config = configured({"steps": 2}, {"tensorboard": True}, {"every": 1})
    done = await train(tmp_path / "run", config=config)
    assert (done.step, done.reporter.steps) == (2, [1, 2])
    assert [row["step"] for row in done.metrics] == [0, 1, 2]
    for row in read_metrics(done.path)[1:]:
        names = {
            *("reward/mean", "reward/std", "reward/zero_variance_frac", "rollout/unscored"),
            *("policy/loss", "policy/kl", "policy/entropy", "policy/clip_frac", "policy/lr"),
            *("policy/grad_norm", "policy/sampler_logp_diff", "tokens/completion_mean"),
            *("time/sample", "time/rollout", "time/update", "time/step", "time/evaluate"),
            *("val/gold", "val/gold/math", "prompt/truncated", "tokens/cut_frac"),
        }
        assert names <= row.keys()
        assert "val/judge" not in row, "it has none"
        assert row["train/policy_loss"] == row["policy/pg_loss"], "another name of it"
        assert row["policy/sampler_logp_diff"] < 1e-5  # strictly on-policy
    assert done.metrics[0].keys() >= {"val/gold", "val/gold/math"}
    assert {0, 2} <= {*done.checkpoints}, "and step 1's where it was the best"
    assert not same(done.weights, weights(tiny_policy(trained=False)))
    state = read_state(done.path)
    assert (state["status"], state["step"], state["steps"]) == ("running", 2, 2)
    assert any((done.path / "tensorboard").iterdir())
    assert not list(done.path.rglob("*.part"))


async def test_sampling_and_updates_share_one_thread(tmp_path: Path):
    """Each thread's allocator would keep the memory of either for itself."""
    threads: Counter[int] = Counter()

    def watched(local: LocalSampler) -> LocalSampler:
        decoder = local._policy.causal_lm.model
        decoder.register_forward_pre_hook(lambda *_: threads.update([threading.get_ident()]))
        return local

    outcome = await train(tmp_path, config=configured({"steps": 2}), sampler=watched)
    assert outcome.step == 2
    assert len(threads) == 1 and threading.get_ident() not in threads
    assert await on_model_thread(threading.get_ident) in threads


async def test_the_rollouts_of_a_step_are_kept_with_their_advantages(tmp_path: Path):
    done = await train(tmp_path, config=configured({"steps": 2}))
    assert rollout_steps(tmp_path) == [1, 2]
    for step in (1, 2):
        rows = list(read_rollouts(tmp_path, step))
        batch = Mixture(TASKS, seed=1).batch(step - 1, 2)
        assert [(r["group"], r["index"]) for r in rows] == [
            (p, g) for p in (0, 1) for g in range(4)
        ]
        assert {r["policy_version"] for r in rows} == {step - 1}
        mean = sum(r["reward"]["value"] for r in rows) / len(rows)
        assert mean == pytest.approx(done.metrics[step]["reward/mean"])
        for p in (0, 1):
            group = [r for r in rows if r["group"] == p]
            assert {r["task"]["id"] for r in group} == {batch[p].id}
            assert sum(r["advantage"] for r in group) == pytest.approx(0.0, abs=1e-9)


async def test_the_policy_learns_what_is_rewarded(tmp_path: Path):
    config = configured(
        {"steps": 15, "prompts_per_step": 8, "group_size": 8, "learning_rate": 0.05},
        evaluation={"every": 0},
    )
    done = await train(tmp_path, config=config)
    rewards = [row["reward/mean"] for row in done.metrics[1:]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


async def test_groups_without_a_signal_leave_the_policy_as_it_is(tmp_path: Path):
    done = await train(
        tmp_path, Toy(reward=lambda completion: 1.0), configured({"kl_on": "signal"})
    )
    assert same(done.weights, weights(tiny_policy(trained=False)))
    for row in done.metrics[1:]:
        assert row["reward/zero_variance_frac"] == 1.0
        assert not {"policy/loss", "policy/kl", "policy/grad_norm"} & row.keys()


def third(completion: Episode) -> bool:
    return "evaluation" not in completion.key and completion.key.endswith("/2")


async def test_an_unscored_sample_leaves_the_update_as_if_it_had_not_been_there(tmp_path: Path):
    with_it = await train(
        tmp_path / "with", Toy(lost=third), configured({"group_size": 5, "max_unscored": 0.2})
    )
    without = await train(
        tmp_path / "without",
        sampler=lambda local: Wrapped(local, more=1, change=lambda g: [*g[:2], *g[3:]]),
        config=configured({"group_size": 4}, evaluation={"every": 0}),
    )
    assert same(with_it.weights, without.weights)
    for one, other in zip(with_it.metrics[1:], without.metrics[1:], strict=True):
        assert one["rollout/unscored"] == pytest.approx(0.2)
        for name in one:
            if name.startswith(("policy/", "reward/")):
                assert one[name] == other[name], name
    lost = [r for r in read_rollouts(with_it.path, 1) if r["index"] == 2]
    assert [(r["reward"]["value"], r["advantage"]) for r in lost] == [(None, 0.0)] * 2


async def test_a_group_with_one_scored_sample_is_dropped_and_counted(tmp_path: Path):
    def all_but_one(completion: Episode) -> bool:
        return re.search("/0/[123]$", completion.key) is not None

    config = configured({"steps": 1, "max_unscored": 0.5}, evaluation={"every": 0})
    done = await train(tmp_path, Toy(lost=all_but_one), config)
    assert done.metrics[1]["reward/dropped_groups_frac"] == 0.5
    assert all(r["advantage"] == 0.0 for r in read_rollouts(tmp_path, 1) if r["group"] == 0)


async def test_too_many_unscored_samples_pause_the_run_and_nothing_is_trained_on(tmp_path: Path):
    broken = Toy(lost=lambda c: c.key.startswith("1/3/") and c.key[-1] in "01")  # half of step 3
    config = configured({"max_unscored": 0.49})
    paused = await train(tmp_path / "run", broken, config, raises=RunPaused)
    assert paused.reporter.said[0].startswith("step 3: 4 of 8 samples could not be scored")
    assert "(limit 49%)" in paused.reporter.said[0]
    assert "  judge_failed: unavailable: connection refused" in paused.reporter.said
    assert [row["step"] for row in paused.metrics] == [0, 1, 2]
    assert rollout_steps(paused.path) == [1, 2, 3]  # the third shows what went wrong
    two = await train(tmp_path / "two", config=configured({"steps": 2}))
    assert same(paused.weights, two.weights)

    # The cause is mended: the run goes on with the step that could not be scored.
    mended = await train(paused.path, config=config, resume=True)
    whole = await train(tmp_path / "whole", config=config)
    assert mended.metrics == whole.metrics
    assert mended.reporter.steps == [3, 4]
    assert same(mended.weights, whole.weights)


async def test_a_pause_loses_no_step_between_checkpoints(tmp_path: Path):
    broken = Toy(lost=lambda c: c.key.startswith("1/4/"))
    paused = await train(tmp_path, broken, raises=RunPaused)
    assert paused.checkpoints == [0, 2, 3]


async def test_as_many_unscored_samples_as_allowed_do_not_pause(tmp_path: Path):
    half = Toy(lost=lambda c: c.key[-1] in "01")
    done = await train(tmp_path, half, configured({"max_unscored": 0.5, "steps": 1}))
    assert done.step == 1


def third_step(completion: Episode) -> bool:
    return completion.key.startswith("1/3/")


async def test_a_judge_that_is_found_out_stops_the_run_before_it_trains_on_it(tmp_path: Path):
    config = configured(judge={"min_agreement": 0.6, "low_agreement": "stop"})
    stopped = await train(tmp_path / "run", Toy(fooled=third_step), config, raises=RunPaused)
    assert stopped.reporter.said[0].startswith("step 3: the judge agreed with gold on 0%")
    assert "(judge.min_agreement 60%)" in stopped.reporter.said[0]
    assert rollout_steps(stopped.path) == [1, 2, 3] and stopped.checkpoints == [0, 2]
    two = await train(tmp_path / "two", config=configured({"steps": 2}))
    assert same(stopped.weights, two.weights)
    mended = await train(stopped.path, Toy(fooled=lambda c: False), config, resume=True)
    assert mended.reporter.steps == [3, 4]


async def test_a_judge_that_is_found_out_is_said_by_default(tmp_path: Path):
    config = configured({"steps": 3}, judge={"min_agreement": 0.6})
    done = await train(tmp_path, Toy(fooled=third_step), config)
    assert [line for line in done.reporter.said if "the judge agreed" in line] == [
        "step 3: the judge agreed with gold on 0% of the samples (judge.min_agreement 60%)"
    ]


class Audited(Toy):
    """Of whose judge an audit finds what a list says, step by step."""

    drifts = (0.0, 0.3, 0.3, 0.3)

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        version = rollouts[0].sample.version
        return {**super().summarise(rollouts), "judge/drift": self.drifts[version]}


async def test_a_judge_that_is_exploited_is_said_once(tmp_path: Path):
    config = configured(judge={"alarm": {"gap": 0.2, "steps": 2}})
    done = await train(tmp_path, Audited(), config)
    told = [line for line in done.reporter.said if "exploit" in line]
    assert len(told) == 1 and told[0].startswith("step 3: the judge calls 30.0 points more right")
    assert done.step == 4


async def test_a_judge_that_is_exploited_can_pause_the_run_which_goes_on_once_it_is_mended(
    tmp_path: Path,
):
    alarm = {"gap": 0.1, "steps": 2, "action": "stop"}
    stopped = await train(
        tmp_path / "run", Audited(), configured(judge={"alarm": alarm}), raises=RunPaused
    )
    assert stopped.reporter.steps == [1, 2] and stopped.checkpoints == [0, 2]
    # The steps before count in the resumed run, which has one of its own when it hears of them.
    again = await train(
        stopped.path, Audited(), configured(judge={"alarm": alarm}), resume=True, raises=RunPaused
    )
    assert again.reporter.steps == [3]
    mended = await train(
        stopped.path, Audited(), configured(judge={"alarm": {"gap": None}}), resume=True
    )
    assert mended.reporter.steps == [4] and mended.step == 4


@pytest.mark.parametrize("at", [1, 3, 4])
async def test_a_killed_run_resumed_repeats_the_uninterrupted_one(tmp_path: Path, at: int):
    def kill(step: int) -> None:
        if step == at:
            raise Killed

    whole = await train(tmp_path / "whole")
    killed = await train(tmp_path / "run", Toy(before=kill), raises=Killed)
    assert [row["step"] for row in killed.metrics] == list(range(at))
    resumed = await train(tmp_path / "run", resume=True)
    first = 2 * ((at - 1) // 2) + 1  # after the last checkpoint
    assert resumed.reporter.steps == list(range(first, 5))
    assert f"(step {first - 1})" in resumed.reporter.said[0]
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    for step in range(1, 5):
        assert list(read_rollouts(tmp_path / "run", step)) == list(
            read_rollouts(tmp_path / "whole", step)
        )


async def test_a_run_killed_before_its_first_checkpoint_is_begun_again(tmp_path: Path):
    whole = await train(tmp_path / "whole")

    def kill(version: int) -> None:
        if version:  # 0 is published before the first step
            raise Killed

    wrapped: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    await train(tmp_path / "run", **wrapped)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    resumed = await train(tmp_path / "run", resume=True)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)


async def test_a_corrupt_newest_checkpoint_is_passed_over_and_said(tmp_path: Path):
    whole = await train(tmp_path / "run")
    before = whole.metrics
    newest = tmp_path / "run" / "checkpoints" / "step_000004"
    (newest / "trainer.pt").write_bytes(b"torn")
    resumed = await train(tmp_path / "run", resume=True)
    assert resumed.reporter.said[0] == f"passed over {newest}: trainer.pt is corrupt"
    assert resumed.reporter.steps == [3, 4]
    assert resumed.metrics == before
    assert same(resumed.weights, whole.weights)


async def test_only_corrupt_checkpoints_are_an_error_not_a_new_start(tmp_path: Path):
    await train(tmp_path, config=configured({"steps": 1}))
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "manifest.json").unlink()
    stuck = await train(tmp_path, resume=True, raises=RunError)
    assert "no usable checkpoint to resume from" in stuck.reporter.said[0]
    assert [row["step"] for row in stuck.metrics] == [0, 1]


async def test_a_finished_run_resumed_trains_no_more(tmp_path: Path):
    whole = await train(tmp_path)
    again = await train(tmp_path, resume=True)
    assert (again.step, again.reporter.steps) == (4, [])
    assert again.metrics == whole.metrics
    assert same(again.weights, whole.weights)


def send_at(step: int, number: int) -> Callable[[int], None]:
    def send(now: int) -> None:
        if now == step:
            os.kill(os.getpid(), number)

    return send


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_finishes_the_step_and_saves(tmp_path: Path, number: signal.Signals):
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(n) for n in signals]
    config = configured({"steps": 5})
    stopped = await train(tmp_path / "run", Toy(before=send_at(3, number)), config)
    assert stopped.step == 3
    assert [row["step"] for row in stopped.metrics] == [0, 1, 2, 3]
    assert stopped.checkpoints == [0, 2, 3]
    assert read_state(stopped.path)["status"] == "interrupted"
    assert stopped.reporter.said[-1] == f"{number.name}: step 3 is saved; go on: --resume"
    assert [signal.getsignal(n) for n in signals] == handlers
    whole = await train(tmp_path / "whole", config=config)
    resumed = await train(tmp_path / "run", config=config, resume=True)
    assert resumed.reporter.steps == [4, 5]
    assert resumed.metrics == whole.metrics


async def test_a_signal_during_the_update_stops_after_the_same_step(tmp_path: Path):
    """The event loop does not turn between the update and the end of a step."""
    stopped = await train(
        tmp_path,
        sampler=lambda local: Wrapped(local, refreshed=send_at(2, signal.SIGTERM)),
        config=configured({"steps": 5}, evaluation={"every": 0}),
    )
    assert stopped.step == 2


async def test_a_second_signal_has_its_usual_effect(tmp_path: Path):
    def send(step: int) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    def usual(number: int, frame: object) -> None:
        raise Killed

    before = signal.signal(signal.SIGINT, usual)
    try:
        stopped = await train(tmp_path, Toy(before=send), raises=Killed)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [row["step"] for row in stopped.metrics] == [0, 1]
    assert stopped.checkpoints == [0]


async def test_a_signal_in_the_last_step_changes_nothing(tmp_path: Path):
    done = await train(tmp_path, Toy(before=send_at(4, signal.SIGTERM)))
    assert done.step == 4
    assert read_state(tmp_path)["status"] == "running"
