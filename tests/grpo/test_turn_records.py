"""Records of attempts of several turns: their turns, ends, credit and tokens."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from toy_run import TASKS, Toy, configured, train

from flowright.config.root import Config
from flowright.environments.episode import Episode, Observation, Turn
from flowright.environments.rollout import MOST_TURNS, Reward, Rollout, to_record
from flowright.grpo.batch import Group, Trained, TurnCredit
from flowright.grpo.learner import Minibatch
from flowright.grpo.step_record import TOKENS, add_learner_logprobs
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_rollouts, rollout_steps

QUIET = {"every": 0}
KEEP = {"keep_logprobs": True}


@dataclass
class Answering(Toy):
    """Answers turns until the third; every fifth of them cannot be parsed."""

    config: Config | None = None
    answers_at_once: ClassVar[bool] = True
    max_turns: ClassVar[int] = 3  # pyright: ignore

    async def respond(self, episode: Episode) -> Observation | None:
        sample, count = episode.sample, len(episode.turns)
        if sample.token_ids[0] % 7 == 0:
            return None
        failed = sample.token_ids[0] % 5 == 0
        reward = 0.0 if failed else 0.25
        return Observation(f"answer {count}", "user", reward, f"after {count}", failed, count)


async def played(path: Path, **turns: Any) -> list[dict[str, Any]]:
    config = configured({"steps": 3, "kl_on": "all", "turns": turns}, KEEP)
    await train(path, Answering(config=config), config)
    return [record for step in rollout_steps(path) for record in read_rollouts(path, step)]


@pytest.mark.parametrize("credit", ["outcome", "gigpo"])
async def test_a_record_has_its_turns(tmp_path: Path, credit: str) -> None:
    records, masked, followed = await played(tmp_path, credit=credit, mask_failed=True), 0, 0
    for record in records:
        turns, tokens = record["turns"], record[TOKENS]
        assert record["schema"] == 2
        assert record["tokens"] == sum(turn["tokens"] for turn in turns)
        assert record["completion"] == turns[-1]["completion"]
        assert record["stop"] == ("done" if turns[-1]["observation"] is None else "max_turns")
        assert "".join(tokens["texts"]) == "".join(turn["completion"] for turn in turns)
        assert tokens["turns"] == [turn["tokens"] for turn in turns]
        assert len(tokens["ids"]) == len(tokens["sampler"]) == record["tokens"]
        start = 0
        for number, turn in enumerate(turns):
            observation, end = turn["observation"], start + turn["tokens"]
            failed = bool(observation and observation["failed"])
            own, sampler = tokens["learner"][start:end], tokens["sampler"][start:end]
            assert own == ([None] * len(own) if failed else pytest.approx(sampler, abs=2e-4))
            masked += failed
            if failed:
                assert turn["advantage"] is None
            elif credit == "gigpo":
                assert isinstance(turn["advantage"], float)
            if observation:
                assert observation["text"] == f"answer {number + 1}"
                assert observation["state"] == f"after {number + 1}"
                assert "memory" not in observation
            if number:
                before = turns[number - 1]
                assert turn["continued"]
                assert turn["context_tokens"] > before["context_tokens"] + before["tokens"]
                followed += 1
            start = end
    assert masked and followed
    if credit == "outcome":  # the attempt's own advantage, but for turns that are left out
        plain = [r for r in records if not any("advantage" in turn for turn in r["turns"])]
        assert plain
        for record in records:
            known = {t["advantage"] for t in record["turns"] if t.get("advantage") is not None}
            assert known <= {record["advantage"]}


@pytest.mark.parametrize(("credit", "drawn"), [("outcome", 4), ("discounted", 2), ("gigpo", 2)])
async def test_a_signal_of_turns_alone_is_not_drawn_again(
    tmp_path: Path, credit: str, drawn: int
) -> None:
    turns = {"credit": credit, "discount": 0.5}
    config = configured({"steps": 1, "resample_rounds": 1, "turns": turns}, evaluation=QUIET)
    await train(tmp_path, Answering(config=config, reward=lambda episode: 1.0), config)
    records = [*read_rollouts(tmp_path, 1)]
    assert len({record["group"] for record in records}) == drawn
    credits = [turn.get("advantage") for record in records for turn in record["turns"]]
    assert any(credits) is (credit != "outcome")


async def test_a_held_out_attempt_has_its_turns(tmp_path: Path) -> None:
    await played(tmp_path)
    held_out = [*read_rollouts(tmp_path / "validation", 2)]
    assert held_out and all(record["stop"] and record["turns"] for record in held_out)
    assert not any("advantage" in turn for record in held_out for turn in record["turns"])


async def test_a_record_of_one_completion_has_none(tmp_path: Path) -> None:
    await train(tmp_path, config=configured({"steps": 1}, KEEP, QUIET))
    for record in read_rollouts(tmp_path, 1):
        assert not {"turns", "stop"} & record.keys()
        assert record[TOKENS].keys() == {"ids", "texts", "sampler", "learner"}


def rollout(turns: list[Turn]) -> Rollout:
    reward = Reward(1.0, {"correctness": 1.0})
    return Rollout(TASKS[0], turns[-1].sample, reward, turns=tuple(turns), stop="overflow")


@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_record_is_bounded(count: int) -> None:
    sample = Sample((1, 2), (-1.0, -1.0), "w" * 100_000, "length", 4)
    observation = Observation("o" * 1_000_000, "tool", 0.5, "s" * 10_000, memory="m" * 10_000)
    turns = [Turn((1,) * 7, sample, observation, (5,)) for _ in range(count)]
    record = to_record(rollout(turns), {}, 1, 0, 0, 0.5)
    kept = record["turns"]
    assert len(kept) == count and record["tokens"] == 2 * count
    assert len(json.dumps(kept)) < MOST_TURNS + 1000 * count
    text = kept[-1]["observation"]["text"]
    assert text.startswith("oo") and text.endswith("oo") and "characters left out here" in text
    assert "m" * 100 not in json.dumps(record)


def test_a_context_that_was_rendered_anew_is_marked() -> None:
    sample, observation = Sample((1,), (-1.0,), "a", "stop", 2), Observation("b", "tool")
    turns = [Turn((1, 2), sample, observation, ids) for ids in ((9, 9), (), ())]
    record = to_record(rollout(turns), {}, 1, 0, 0, None)
    assert [turn["continued"] for turn in record["turns"]] == [False, True, False]


def test_the_learners_values_are_in_the_order_of_turns() -> None:
    """Turns whose contexts were rendered anew are samples of their own, in any order and on any
    rank; one that took no part has no value."""
    second = Trained((7, 8), (-1.0, -1.0), 0.5, place=(3, 1), credits=(TurnCredit(2, 2, 0.5),))
    first = Trained(
        (4, 9, 6), (-1.0, -1.0), 0.5, [True, False, True], place=(3, 1),
        credits=(TurnCredit(0, 1, 0.5), TurnCredit(3, 1, 0.5)),
    )  # fmt: skip
    found = {0: torch.tensor([-0.5, -0.25]), 1: torch.tensor([-2.0, -4.0])}
    group = Group((1,), [second, first])
    minibatch = Minibatch([group], [second, first], torch.ones(2), found=found)
    values = minibatch.by_place()
    assert values == {(3, 1, 2): [-0.5, -0.25], (3, 1, 0): [-2.0], (3, 1, 3): [-4.0]}
    kept = {"ids": [4, 5, 7, 8, 6], "turns": [1, 1, 2, 1]}
    record: dict[str, Any] = {"group": 3, "index": 1, TOKENS: dict(kept)}
    absent: dict[str, Any] = {"group": 0, "index": 0, TOKENS: dict(kept)}
    add_learner_logprobs([record, absent], values)
    assert record[TOKENS]["learner"] == [-2.0, None, -0.5, -0.25, -4.0]
    assert absent[TOKENS]["learner"] is None
