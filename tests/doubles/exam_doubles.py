"""Doubles for the judge's exam: labelled answers, and judges whose faults are known by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowright.judging.measuring.exam_probes import ExamProbe, ProbeResult
from flowright.judging.measuring.labelled_answers import LabelledItem
from flowright.judging.verdict import JudgeQuery, Status, Verdict
from flowright.llm.chat import Usage


def items(count: int) -> list[LabelledItem]:
    """A right and a wrong answer to each of ``count`` questions."""
    return [
        LabelledItem(
            id=f"{number}/{label}",
            question=f"What is {number} + 1?",
            answer=f"The answer is {number + (1 if label else 3)}.",
            reference=str(number + 1),
            label=label,
            answer_type="number",
        )
        for number in range(count)
        for label in (True, False)
    ]


def verdict(said: bool | None, score: float | None = None, status: Status = "ok") -> Verdict:
    if said is None:
        return Verdict(None, None, "llm", status, attempts=1, judge="double")
    given = float(said) if score is None else score
    return Verdict(
        given, said, "llm", "ok", attempts=1, judge="double", usage=Usage(1, 100, 10), seconds=0.5
    )


def outcome(
    label: bool, said: bool | None, score: float | None = None, question: str = "q"
) -> ProbeResult:
    item = LabelledItem(f"{question}/{label}", question, "a", "r", label)
    given = verdict(said, score, "parse_error")
    return ProbeResult(ExamProbe(item, "plain", item.query("")), given)


def never(query: JudgeQuery) -> bool:
    return False


@dataclass
class Gullible:
    """Right about every answer of :func:`items`, but for those that ``fooled`` says yes to, which
    it calls right, and those that ``silent`` says yes to, on which it has no verdict."""

    fooled: Callable[[JudgeQuery], bool] = never
    silent: Callable[[JudgeQuery], bool] = never
    status: Status = "abstain"
    name: str = "gullible"
    queries: list[JudgeQuery] = field(default_factory=list)

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.queries.append(query)
        if self.silent(query):
            return verdict(None, status=self.status)
        is_right = query.answer.endswith(f" {query.reference}.")
        return verdict(is_right or self.fooled(query))


@dataclass
class Comparing:
    """Says of every pair what ``scores`` does: the answer's score where it is shown first, and
    where it is shown second."""

    scores: Callable[[JudgeQuery], Sequence[float | None]]
    name: str = "comparing"

    async def judge(self, query: JudgeQuery) -> Verdict:
        members = tuple(_compared(score) for score in self.scores(query))
        known = [member.score for member in members if member.score is not None]
        if len(known) < 2:
            return Verdict(None, None, "llm", "parse_error", members=members)
        mean = sum(known) / 2
        said = None if mean == 0.5 else mean > 0.5
        return Verdict(mean, said, "llm", "ok", attempts=2, members=members)


def _compared(score: float | None) -> Verdict:
    if score is None:
        return verdict(None, status="parse_error")
    said = None if score == 0.5 else bool(score)
    return Verdict(score, said, "llm", "ok", attempts=1)
