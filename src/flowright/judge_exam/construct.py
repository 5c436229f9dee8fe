"""A labelled set from tasks: each reference as a right answer, and a mistake as a wrong one.

Both labels go by the gold check, never by how an answer was made: a reference that its own check
refuses and a mistake that passes are left out. Programs are run, in the sandbox, and what was seen
of their tests is their evidence.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from flowright.data.task import Problem
from flowright.grading import gold_check
from flowright.judge.query import query_of
from flowright.judge_exam.labelled import LabelledItem
from flowright.judge_exam.mistakes import mistakes, pool_of
from flowright.sandbox import Sandbox

_TRIES = 6  # mistakes graded for one task at most
_IN_FLIGHT = 8
_WORDINGS = (
    "{}",
    "The answer is {}.",
    "Answer: {}",
    "Therefore, the final answer is {}.",
    "Going by what is given, the answer is {}.",
)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """``left_out`` counts tasks that gave no pair, by why."""

    items: Sequence[LabelledItem]
    left_out: Mapping[str, int] = field(default_factory=dict)


async def labelled_set(
    tasks: Sequence[Problem],
    sandbox: Sandbox,
    seed: int,
    limit: int | None = None,
    tell: Callable[[], None] = lambda: None,
) -> LabelledSet:
    """A right and a wrong answer to each task, two rows of the same question.

    ``limit`` takes so many tasks, the kinds in turn; ``tell`` is called as each is done. The same
    for the same tasks, seed and limit.
    """
    chosen = _chosen(tasks, seed, limit)
    pools: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        if task.kind != "code" and task.reference not in dict(task.choices):
            pools.setdefault(pool_of(task), []).append(task.reference)
    slots = asyncio.Semaphore(_IN_FLIGHT)

    async def one(task: Problem) -> tuple[LabelledItem, LabelledItem] | str:
        async with slots:
            found = await _pair(task, pools, sandbox, seed)
        tell()
        return found

    found = await asyncio.gather(*map(one, chosen))
    pairs = [pair for pair in found if not isinstance(pair, str)]
    left_out = Counter(reason for reason in found if isinstance(reason, str))
    return LabelledSet([item for pair in pairs for item in pair], left_out)


def _chosen(tasks: Sequence[Problem], seed: int, limit: int | None) -> list[Problem]:
    """Tasks of all kinds in turn, in an order that is drawn."""
    drawn = random.Random(f"{seed}/chosen").sample(list(tasks), len(tasks))
    rounds: defaultdict[str, count[int]] = defaultdict(count)
    ranked = sorted((next(rounds[task.kind]), order) for order, task in enumerate(drawn))
    return [drawn[order] for _, order in ranked][:limit]


async def _pair(
    task: Problem, pools: Mapping[tuple[str, str], Sequence[str]], sandbox: Sandbox, seed: int
) -> tuple[LabelledItem, LabelledItem] | str:
    """Both answers, or why there are none."""
    draw = random.Random(f"{seed}/worded/{task.id}")
    right = await _graded(task, task.reference, True, draw, sandbox)
    if right is None:
        return "the gold check does not accept the reference"
    for value in mistakes(task, pools, seed)[:_TRIES]:
        wrong = await _graded(task, value, False, draw, sandbox)
        if wrong is not None:
            return right, wrong
    return "no mistake was found that the gold check refuses"


async def _graded(
    task: Problem, value: str, label: bool, draw: random.Random, sandbox: Sandbox
) -> LabelledItem | None:
    """The value as an answer, if gold says what the label does; in plain form where its wording
    changes what gold makes of it."""
    for answer in dict.fromkeys((_worded(task, value, draw), _bare(task, value))):
        gold = await gold_check(task, answer, sandbox)
        if gold.correct is label:
            name = f"{task.id}/{'right' if label else 'wrong'}"
            query = query_of(task, answer, key=name, evidence=gold.evidence)
            return LabelledItem(
                id=name,
                question=query.question,
                answer=answer,
                reference=query.reference,
                label=label,
                answer_type=query.answer_type,
                alternatives=query.alternatives,
                evidence=query.evidence,
            )
    return None


def _worded(task: Problem, value: str, draw: random.Random) -> str:
    if task.kind == "code" or "\n" in value:
        return _bare(task, value)
    return draw.choice(_WORDINGS).format(value)


def _bare(task: Problem, value: str) -> str:
    return f"```python\n{value.strip()}\n```" if task.kind == "code" else value
