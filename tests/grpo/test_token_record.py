"""Runs whose records keep the log-probabilities of tokens, and runs whose do not."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tiny_policy import same
from toy_run import Toy, configured, train

from flowright.grpo.step_record import TOKENS, rounded
from flowright.policy.local import LocalSampler
from flowright.runs.run_files import read_rollouts, rollout_steps

KEEP = {"keep_logprobs": True}
ONCE = {"epochs": 1, "minibatches": 1}


def records_of(path: Path) -> list[dict[str, Any]]:
    return [record for step in rollout_steps(path) for record in read_rollouts(path, step)]


@pytest.mark.parametrize("passes", [ONCE, {"epochs": 2, "minibatches": 2}])
async def test_records_keep_what_sampler_and_learner_say(
    tmp_path: Path, passes: dict[str, Any]
) -> None:
    config = configured({"steps": 3, **passes}, KEEP)
    kept = await train(tmp_path / "kept", config=config)
    records, trained = records_of(kept.path), 0
    for record in records:
        told = record[TOKENS]
        assert {len(told[key]) for key in ("ids", "texts", "sampler")} == {record["tokens"]}
        assert "".join(told["texts"]) == record["completion"]
        assert all(-20 < value <= 0 for value in told["sampler"])
        if record["advantage"]:
            trained += 1
            assert told["learner"] == pytest.approx(told["sampler"], abs=2e-4)  # on policy
            assert all(value == round(value, 4) for value in told["learner"])
    assert trained >= 4
    # Nothing else is changed by it.
    plain = await train(tmp_path / "plain", config=configured({"steps": 3, **passes}))
    assert same(kept.weights, plain.weights) and kept.metrics == plain.metrics
    without = [{k: v for k, v in record.items() if k != TOKENS} for record in records]
    assert records_of(plain.path) == without


async def test_what_took_no_part_in_the_update_has_no_learner(tmp_path: Path) -> None:
    """A group without a signal, and an attempt that was not scored."""
    environment = Toy(
        reward=lambda c: float(c.key.endswith(("/1/1", "/1/2"))),
        lost=lambda c: c.key.endswith("/1/0"),
    )
    options = {"steps": 1, "max_unscored": 0.5, "kl_on": "signal"}
    config = configured(options, KEEP, {"every": 0})
    await train(tmp_path, environment, config)
    records = records_of(tmp_path)
    found = {(r["group"], r["index"]) for r in records if r[TOKENS]["learner"] is not None}
    assert found == {(1, 1), (1, 2), (1, 3)}
    assert all(len(r[TOKENS]["sampler"]) == r["tokens"] for r in records)


@pytest.mark.parametrize("kl_on", ["all", "signal"])
async def test_a_group_without_a_signal_keeps_the_samplers(tmp_path: Path, kl_on: str) -> None:
    config = configured({"steps": 1, "kl_on": kl_on}, KEEP, {"every": 0})
    await train(tmp_path, Toy(reward=lambda completion: 1.0), config)
    for record in records_of(tmp_path):
        assert record[TOKENS]["sampler"]
        assert (record[TOKENS]["learner"] is None) is (kl_on == "signal")


async def test_off_policy_the_learner_is_another_one(tmp_path: Path) -> None:
    config = configured({"steps": 4, "learning_rate": 0.2}, KEEP, {"every": 0}, max_staleness=1)
    await train(tmp_path, config=config)
    furthest: dict[bool, float] = {False: 0.0, True: 0.0}
    for record in records_of(tmp_path):
        told, stale = record[TOKENS], record["policy_version"] < record["step"] - 1
        for learner, sampler in zip(told["learner"] or (), told["sampler"], strict=False):
            furthest[stale] = max(furthest[stale], abs(learner - sampler))
    assert furthest[False] < 2e-4 and furthest[True] > 0.05


async def test_a_run_that_ends_in_an_update_leaves_the_samplers(tmp_path: Path) -> None:
    class Stopped(RuntimeError):
        """Of an update."""

    def broken(local: LocalSampler) -> LocalSampler:
        def stop(*_: object) -> None:
            raise Stopped

        local._policy.trainable()[0].register_hook(stop)
        return local

    config = configured({"steps": 1}, KEEP, {"every": 0})
    await train(tmp_path, config=config, sampler=broken, raises=Stopped)
    records = records_of(tmp_path)
    assert len(records) == 8
    assert all(r[TOKENS]["learner"] is None and r[TOKENS]["sampler"] for r in records)


def test_numbers_are_short_and_finite() -> None:
    values = rounded([-0.00001, -1.23456, -math.inf, math.nan])
    assert json.dumps(values) == "[0.0, -1.2346, null, null]"
