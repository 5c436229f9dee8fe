"""Asking a judge many queries at once, in order of number and of answer; what was said is kept.

No statistics here. A verdict that failed is kept as what it is (law 1).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.errors import UserError
from flowright.judging.measuring.exam.labelled import LabelledItem
from flowright.judging.verdict import Judge, JudgeQuery, Verdict

_PATIENCE = 20  # failures of transport in a row from the start after which a judge counts as down
_NO_REPLY = ("timeout", "unavailable")


class JudgeDown(UserError):
    """The judge that is to be examined does not answer."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Probe:
    """One query of the exam: an item in a variant, for the ``repeat``-th time."""

    item: LabelledItem
    variant: str
    query: JudgeQuery
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class AskedAnswer:
    """A probe and what the judge said to it."""

    probe: Probe
    verdict: Verdict

    def row(self) -> dict[str, Any]:
        """What is kept of it in a file."""
        query = self.probe.query
        told = {
            "id": self.probe.item.id,
            "variant": self.probe.variant,
            "repeat": self.probe.repeat,
            "label": self.probe.item.label,
            "answer_type": query.answer_type,
            "answer": query.answer,
            "rival": query.rival,
            **_told(self.verdict),
            "members": [_told(member) for member in self.verdict.members],
        }
        return {name: value for name, value in told.items() if value not in (None, [])}


def _told(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "score": verdict.score,
        "correct": verdict.correct,
        "source": verdict.source,
        "reason": verdict.reason,
        "attempts": verdict.attempts,
        "judge": verdict.judge,
        "seconds": round(verdict.seconds, 4),
        "prompt_tokens": verdict.usage.prompt_tokens,
        "completion_tokens": verdict.usage.completion_tokens,
    }


async def ask_all(
    judge: Judge, probes: Sequence[Probe], concurrency: int, tell: Callable[[AskedAnswer], None]
) -> list[AskedAnswer]:
    """The judge's verdicts, in the order of the probes; ``tell`` gets each as it comes.

    Raises JudgeDown where the first verdicts are failures of transport, one and all: the rest would
    be no other, and would take as long.
    """
    answers: list[AskedAnswer | None] = [None] * len(probes)
    waiting = iter(enumerate(probes))
    failures: list[Verdict] = []
    was_reached = False

    async def work() -> None:
        nonlocal was_reached
        for index, probe in waiting:
            verdict = await judge.judge(probe.query)
            answers[index] = answer = AskedAnswer(probe, verdict)
            tell(answer)
            if verdict.status not in _NO_REPLY:
                was_reached = was_reached or verdict.attempts > 0
            elif not was_reached:
                failures.append(verdict)
                if len(failures) >= min(_PATIENCE, len(probes)):
                    raise _down(judge, failures)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(probes))):
                group.create_task(work())
    except* JudgeDown as several:
        raise several.exceptions[0] from None
    return [answer for answer in answers if answer is not None]


def _down(judge: Judge, failures: Sequence[Verdict]) -> JudgeDown:
    status, count = Counter(verdict.status for verdict in failures).most_common(1)[0]
    reason = next(verdict.reason for verdict in failures if verdict.status == status)
    return JudgeDown(
        f"judge {judge.name!r} gives no verdict: the first {len(failures)} tries failed "
        f"({count} of them {status!r}: {reason[:300]})",
        "start its server, or check its address in the LLM file; nothing was measured",
    )
