"""A large model as judge: what it is asked for a query, and what its replies make of the answer.

How often it is asked until it says so clearly is :mod:`flowright.judge.attempts`'s. A failing
backend is a verdict with a status, never an exception.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowright.config import JudgeSection
from flowright.judge.attempts import Climbed, Climber
from flowright.judge.prompts import (
    OVERALL,
    Order,
    Question,
    criterion_key,
    how_likely_right,
    whether_right,
    which_better,
    which_grade,
    which_grades,
    which_met,
)
from flowright.judge.schemas import TOP_GRADE, Value
from flowright.judge.verdict import Criterion, JudgeQuery, Verdict
from flowright.llm.chat import ChatModel, Usage


class LlmJudge:
    """Judges by asking a chat model what ``section.ask`` says.

    Where a verdict takes several questions (both orders of a pair, a rubric in batches), they are
    asked at the same time, each with all of ``section.deadline_seconds`` and
    ``section.max_attempts``.
    """

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self._model = model
        self._section = section
        self._climber = Climber(model, section)

    @property
    def name(self) -> str:
        return self._model.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        problem = _unfit(query, self._section)
        if problem is not None:
            return Verdict(None, None, "llm", "abstain", problem, judge=self.name)
        began = time.monotonic()
        if self._section.ask == "pairwise":
            return await self._compare(query, began)
        if self._section.ask == "rubric":
            return await self._by_rubric(query, began)
        climbed = await self._climber.climb(self._question(query), query.key)
        parts: Mapping[str, float] = {}
        score: float | None = None
        if climbed.status == "ok":
            score, parts = self._score(climbed.values)
        return self._verdict([climbed], score, began, parts)

    def _question(self, query: JudgeQuery) -> Question:
        match self._section.ask:
            case "score":
                return how_likely_right(query)
            case "pointwise":
                return which_grade(query)
            case "multi_aspect":
                return which_grades(query, self._section.aspects)
            case _:
                return whether_right(query)

    def _score(self, values: Mapping[str, Value]) -> tuple[float, Mapping[str, float]]:
        """The score of one answer, and its parts."""
        match self._section.ask:
            case "pointwise":
                return float(values["score"]) / TOP_GRADE, {}
            case "score":
                return float(values["score"]), {}
            case "multi_aspect":
                shares = {name: float(grade) / TOP_GRADE for name, grade in values.items()}
                return shares.pop(OVERALL), shares
            case _:
                return float(values["verdict"]), {}

    async def _by_rubric(self, query: JudgeQuery, began: float) -> Verdict:
        """The points of the criteria that are met, over all that can be earned, kept within 0 and
        1 (HealthBench, Arora et al. 2025, arXiv 2505.08775, section 3)."""
        numbered = list(enumerate(query.criteria, start=1))
        size = self._section.criteria_per_call
        batches = [numbered[start : start + size] for start in range(0, len(numbered), size)]
        climbs = await asyncio.gather(
            *(self._ask(which_met(query, batch), query.key) for batch in batches)
        )
        met = {key: bool(value) for climbed in climbs for key, value in climbed.values.items()}
        parts = {
            f"criterion {number}": float(met[criterion_key(number)])
            for number, _ in numbered
            if criterion_key(number) in met
        }
        score = None
        if all(climbed.status == "ok" for climbed in climbs):
            score = _earned(query.criteria, [met[criterion_key(n)] for n, _ in numbered])
        return self._verdict(climbs, score, began, parts)

    async def _compare(self, query: JudgeQuery, began: float) -> Verdict:
        """In both orders, since judges favour a place; the members are the verdicts with the
        answer shown first and second. In one order alone the place is drawn from the query."""
        orders: Sequence[Order] = ("answer first", "rival first")
        if not self._section.both_orders:
            orders = [orders[_drawn_place(query)]]
        climbs = await asyncio.gather(
            *(self._ask(which_better(query, order), query.key) for order in orders)
        )
        wins = [_won(climbed, order) for climbed, order in zip(climbs, orders, strict=True)]
        members = tuple(
            self._verdict([climbed], won, began) for climbed, won in zip(climbs, wins, strict=True)
        )
        score = wins[0]
        note = ""
        if None in wins:
            score = None
        elif len(set(wins)) > 1:
            score = 0.5 if self._section.on_disagreement == "tie" else None
            note = "which is better depends on the order; "
        told = [f"{order}: {member.reason}" for order, member in zip(orders, members, strict=True)]
        verdict = self._verdict(climbs, score, began, members=members)
        return replace(verdict, reason=note + "; ".join(told))

    async def _ask(self, question: Question, key: str) -> Climbed:
        return await self._climber.climb(question, f"{key}/{question.name}")

    def _verdict(
        self,
        climbs: Sequence[Climbed],
        score: float | None,
        began: float,
        parts: Mapping[str, float] | None = None,
        members: tuple[Verdict, ...] = (),
    ) -> Verdict:
        correct = None if score is None else score >= self._section.right_from
        if self._section.ask == "pairwise":
            correct = None if score is None or score == 0.5 else score > 0.5
        failed = [climbed for climbed in climbs if climbed.status != "ok"]
        told = failed or climbs
        return Verdict(
            score=score,
            correct=correct,
            source="llm",
            status="ok" if score is not None else failed[0].status if failed else "abstain",
            reason="\n".join(climbed.reason for climbed in told if climbed.reason),
            attempts=sum(climbed.attempts for climbed in climbs),
            judge=self.name,
            usage=sum((climbed.usage for climbed in climbs), Usage()),
            seconds=time.monotonic() - began,
            parts=parts or {},
            members=members,
        )


def _unfit(query: JudgeQuery, section: JudgeSection) -> str | None:
    """Why a query can't be answered by what the judge is configured to ask."""
    if (query.rival is not None) != (section.ask == "pairwise"):
        what = "one answer" if query.rival is None else "two answers"
        return f"the query has {what}, and judge.ask is {section.ask}"
    if bool(query.criteria) != (section.ask == "rubric"):
        what = "criteria" if query.criteria else "no criteria"
        return f"the query has {what}, and judge.ask is {section.ask}"
    if section.ask == "rubric" and all(criterion.points < 0 for criterion in query.criteria):
        return "no criterion has points above 0: there is nothing to earn"
    return None


def _earned(criteria: Sequence[Criterion], met: Sequence[bool]) -> float:
    points = sum(c.points for c, is_met in zip(criteria, met, strict=True) if is_met)
    return min(1.0, max(0.0, points / sum(c.points for c in criteria if c.points > 0)))


def _won(climbed: Climbed, order: Order) -> float | None:
    """1 where the answer is the better one, 0 where its rival is."""
    better = climbed.values.get("better")
    if better is None or better == "tie":
        return None if better is None else 0.5
    return float((better == "A") == (order == "answer first"))


def _drawn_place(query: JudgeQuery) -> int:
    drawn = "\0".join([query.key, query.question, query.answer, query.rival or ""])
    return hashlib.sha256(drawn.encode("utf-8", "replace")).digest()[0] & 1
