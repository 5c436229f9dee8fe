"""A judge out of order, over HTTP: the environment's answers attempt by attempt against a run whose
judge is sound. Each score is the same or none; no criterion is "not met" for a failure."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from flowright.config import Config
from flowright.data.task import Task
from flowright.environments.environment import make_environment
from flowright.environments.rollout import Completion, Rollout
from flowright.errors import Reason
from flowright.instructions.environment import InstructionsEnvironment
from flowright.instructions.grades import InstructionGrade
from flowright.instructions.known_rule import WORDS
from flowright.policy.sampler import Sample

SOUND: Mapping[str, float] = {}
OUT_OF_ORDER = {"empty": 0.13, "error_500": 0.05}
DEAD = {"error_500": 1.0}
KINDS: Mapping[str, Mapping[str, object]] = {
    "rubric": {"reward": "rubric"},
    "rubric, each": {"reward": "rubric", "criteria_calls": "each"},
    "verif": {"reward": "verif"},
    "verif, brackets": {"reward": "verif", "reply": "brackets"},
}
TASKS, ATTEMPTS = 12, 4


def environment_of(
    kind: str, faults: Mapping[str, float], judge: Mapping[str, object]
) -> InstructionsEnvironment:
    config = Config.model_validate(
        {
            "environment": "instructions",
            "instructions": {"known_rule": {"train": TASKS, "held_out": 2}, **KINDS[kind]},
            "simulated": {"faults": faults},
            "judge": {"model": "simulated", **judge},
            "llm": {"backoff_seconds": 0.001, "attempts": 2},
        }
    )
    made = make_environment(config)
    assert isinstance(made, InstructionsEnvironment)
    return made


@asynccontextmanager
async def opened(
    kind: str, faults: Mapping[str, float] = SOUND, **judge: object
) -> AsyncIterator[tuple[InstructionsEnvironment, Sequence[Task]]]:
    made = environment_of(kind, faults, judge)
    tasks = made.tasks().train
    async with made.open(tasks):
        yield made, tasks


def groups_of(tasks: Sequence[Task]) -> list[list[Completion]]:
    """Some of the words that each task asks for, and an answer that says none."""
    groups = []
    for task in tasks:
        words = [word for word in WORDS if word in task.question]
        answers = [", ".join(words[:n]) or "Nothing at all." for n in range(ATTEMPTS)]
        groups.append(
            [
                Completion(task, Sample((1,), (0.0,), text, "stop", 0), f"1/{task.id}/{n}")
                for n, text in enumerate(answers)
            ]
        )
    return groups


async def rolled(
    kind: str, faults: Mapping[str, float] = SOUND, **judge: object
) -> tuple[list[Rollout], dict[str, float], float]:
    """The rollouts, their metrics, and how many requests were sent."""
    async with opened(kind, faults, **judge) as (made, tasks):
        groups = await made.rollout(groups_of(tasks))
        rollouts = [rollout for group in groups for rollout in group]
        sent = sum(counters.role("judge")["calls"] for counters in made.counters())
        return rollouts, made.summarise(rollouts), sent


def grade(rollout: Rollout) -> InstructionGrade:
    assert isinstance(rollout.details, InstructionGrade)
    return rollout.details


def assert_equal_or_unscored(found: Sequence[Rollout], right: Sequence[Rollout]) -> int:
    """How many have no score."""
    unscored = 0
    for one, other in zip(found, right, strict=True):
        for part, known in zip(grade(one).parts, grade(other).parts, strict=True):
            assert part.met in (None, known.met) and part.text == known.text
        assert not grade(one).floored
        if one.reward.value is None:
            unscored += 1
            assert one.failure is not None and one.failure.reason is Reason.JUDGE_FAILED
        else:
            assert one.reward.value == other.reward.value and one.failure is None
    return unscored


@pytest.mark.parametrize("kind", KINDS)
async def test_a_judge_out_of_order_changes_no_score(kind: str) -> None:
    """Empty 13 % of the time and 500 5 %; then with one attempt at a question, so that many are
    lost; then dead: not one answer is scored, and none gets less for it."""
    sound, _, asked = await rolled(kind)
    assert {r.reward.value for r in sound} >= {0.0, 1.0} and asked > 0
    faulty, metrics, sent = await rolled(kind, OUT_OF_ORDER)
    assert assert_equal_or_unscored(faulty, sound) <= 1
    assert metrics["rollout/unscored"] <= 1 / len(sound)
    assert sent > asked, "what was asked again is counted"
    hasty, metrics, _ = await rolled(kind, {"empty": 0.4, "error_500": 0.05}, max_attempts=1)
    lost = assert_equal_or_unscored(hasty, sound)
    assert 0 < lost < len(sound) and metrics["rollout/unscored"] == lost / len(sound)
    dead, metrics, _ = await rolled(kind, DEAD, max_attempts=2)
    assert assert_equal_or_unscored(dead, sound) == len(sound)
    assert metrics["rollout/unscored"] == 1.0 and "reward/mean" not in metrics
