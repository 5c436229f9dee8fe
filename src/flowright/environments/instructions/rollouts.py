"""Answers to prompts as rollouts: graded all at once, each on its own, and as they are recorded."""

import asyncio
from collections.abc import Sequence
from typing import Any

from flowright.core.errors import boundary
from flowright.environments.instructions.grades import Grader, InstructionGrade
from flowright.environments.instructions.measures import grade_of
from flowright.environments.instructions.tasks import InstructionTask
from flowright.environments.reward import UNSCORED, Reward
from flowright.environments.rollout import Completion, Rollout

_KEPT_CHARS = 2_000  # of a criterion in a record


async def roll_out(grader: Grader, groups: Sequence[Sequence[Completion]]) -> list[list[Rollout]]:
    """The rollouts of groups, in their order."""
    graded = [_graded(grader, completion) for group in groups for completion in group]
    rollouts = iter(await asyncio.gather(*graded))
    return [[next(rollouts) for _ in group] for group in groups]


async def _graded(grader: Grader, completion: Completion) -> Rollout:
    task, sample = completion.task, completion.sample
    assert isinstance(task, InstructionTask)
    grade: InstructionGrade | None = None
    with boundary("grading") as caught:
        grade = await grader.grade(task, completion)
    if grade is None:
        return Rollout(task, sample, UNSCORED, caught.failure)
    value = grade.value
    reward = UNSCORED if value is None else Reward(value, {"correctness": value})
    return Rollout(task, sample, reward, grade.failure, grade.verdict, grade.gold, details=grade)


def record_of(rollout: Rollout) -> dict[str, Any]:
    """The fields of a record that are an answer's."""
    grade = grade_of(rollout)
    if grade is None:
        return {}
    parts = [
        {"text": part.text[:_KEPT_CHARS], "by": part.by, "met": part.met, "points": part.points}
        for part in grade.parts
    ]
    told = {"floored": grade.floored, "faults": [*grade.faults], "reason": grade.reason}
    return {"instructions": {"parts": parts, "words": grade.words, **told}}
