"""The reward of a rubric: what an answer earns by the criteria that it meets.

Rules are decided by code, the other criteria by a judge that is not told their points. Law 1 is
kept here: what could not be graded is never "not met". It leaves the sum with its weight, or the
sample has no reward at all.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flowright.core.errors import Failure, Reason, boundary
from flowright.core.off_loop import off_loop
from flowright.criteria.rubrics.checkers import RuleResult, run_rule
from flowright.criteria.rubrics.points import is_met, least_share, points_share, ungraded_share
from flowright.criteria.rubrics.rows import Constraint, Item, RubricRow, VerifRow
from flowright.criteria.rubrics.scaffolding import standard_wording
from flowright.judging.rubrics.criteria_judge import CriteriaCalls, ask_criteria
from flowright.judging.verdict import Judge, Verdict
from flowright.llm.replies import spoken_answer
from flowright.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class RubricGrade:
    """What became of one answer.

    ``value`` is the reward in [0, 1], None where there is none, and ``failure`` then says why; it
    is ours. ``share`` is the value before it is kept from below 0, as HealthBench counts it.
    ``met`` has every item of the rubric, None for those that nobody graded; ``ungraded`` is their
    weight among all. ``floored``: the answer is empty or keeps the judge from judging it, and earns
    the least. ``verdicts`` are the judge's own.
    """

    value: float | None
    share: float | None
    met: tuple[bool | None, ...]
    ungraded: float = 0.0
    floored: bool = False
    failure: Failure | None = None
    reason: str = ""
    verdicts: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        if (self.value is None) != (self.failure is not None):
            raise ValueError(f"a value of {self.value} with the failure {self.failure}")


class RubricReward:
    """Rewards answers by their rows' rubrics.

    ``judge`` is asked about criteria without a rule
    (:func:`~flowright.judging.rubrics.criteria_judge.criteria_judge` makes one), in the words of ``instruction``;
    an empty one leaves the judge its own. Up to ``most_ungraded`` of a rubric's absolute points may
    stay ungraded through no fault of the answer's; beyond it the sample is unscored. ``calls`` is
    how the judge puts criteria into questions.
    """

    def __init__(
        self,
        judge: Judge,
        sandbox: Sandbox,
        instruction: str | None = None,
        most_ungraded: float = 0.0,
        calls: CriteriaCalls = "together",
    ) -> None:
        if not 0 <= most_ungraded < 1:
            raise ValueError(f"most_ungraded is {most_ungraded}, not from 0 to below 1")
        self._judge = judge
        self._sandbox = sandbox
        self._instruction = standard_wording().rubric if instruction is None else instruction
        self._most_ungraded = most_ungraded
        self._calls: CriteriaCalls = calls

    async def grade(self, row: RubricRow, answer: str, key: str) -> RubricGrade:
        """The grade of an answer to the row's conversation. ``key`` names the sample; the judge's
        seeds are derived from it."""
        asked = [place for place, item in enumerate(row.items) if item.rule is None]
        criteria = [row.items[place].criterion for place in asked]
        spoken = await off_loop(lambda: spoken_answer(answer), answer)
        said, ruled = await asyncio.gather(
            ask_criteria(
                self._judge,
                row.conversation,
                answer,
                criteria,
                self._instruction,
                key,
                self._calls,
            ),
            asyncio.gather(*(self._by_rule(item, spoken) for item in row.items)),
        )
        met = [known for known, _ in ruled]
        for place, known in zip(asked, said.met, strict=True):
            met[place] = known
        if said.floored or not spoken.strip():
            least = least_share(row.items)
            why = said.reason or "the answer is empty"
            return RubricGrade(
                0.0, least, tuple(met), floored=True, reason=why, verdicts=said.verdicts
            )
        failures = [failure for _, failure in ruled if failure is not None]
        if None in said.met:
            failures.append(Failure(Reason.JUDGE_FAILED, said.reason))
        share, ungraded = points_share(row.items, met), ungraded_share(row.items, met)
        told = "; ".join(map(str, failures))
        if share is None or ungraded > self._most_ungraded:
            missing = f"{met.count(None)} of {len(met)} criteria could not be graded: {told}"
            reason = failures[0].reason if failures else Reason.JUDGE_FAILED
            failure = Failure(reason, missing)
            return RubricGrade(
                None, None, tuple(met), ungraded, failure=failure, verdicts=said.verdicts
            )
        return RubricGrade(
            max(0.0, share), share, tuple(met), ungraded, reason=told, verdicts=said.verdicts
        )

    async def _by_rule(self, item: Item, answer: str) -> tuple[bool | None, Failure | None]:
        if item.rule is None:
            return None, None
        with boundary(f"rule of {item.criterion[:60]!r}") as caught:
            return await is_met(item.rule, answer, self._sandbox), None
        return None, caught.failure


Rules = Literal["run", "skip", "ignore"]
"""``run`` the functions; ``skip`` them and give the rules' texts to the judge with the soft ones
(VERIF_SKIP_RULES); ``ignore`` the rules (VERIF_IGNORE_RULES)."""


@dataclass(frozen=True, slots=True)
class VerifGrade:
    """What became of one answer.

    ``value`` is the reward in [0, 1], None where there is none, and ``failure`` then says why; it
    is ours. ``rules`` are the results of the functions, in order; ``rule_share`` is the mean of
    those that said something, 1 where there are none, and ``faults`` names the others.
    ``soft`` is the judge's verdict, None where it was not asked or could not say. ``floored``: the
    answer is empty or keeps the judge from judging it, and earns 0.
    """

    value: float | None
    rule_share: float
    soft: bool | None
    rules: tuple[RuleResult, ...] = ()
    faults: tuple[str, ...] = ()
    floored: bool = False
    failure: Failure | None = None
    reason: str = ""
    verdicts: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        if (self.value is None) != (self.failure is not None):
            raise ValueError(f"a value of {self.value} with the failure {self.failure}")


class VerifReward:
    """Rewards answers by their rows' constraints.

    ``judge`` is asked about all soft constraints in one criterion, in the words of ``instruction``
    (an empty one leaves it its own), and not at all where there is none.
    """

    def __init__(
        self,
        judge: Judge,
        sandbox: Sandbox,
        rules: Rules = "run",
        instruction: str | None = None,
    ) -> None:
        self._judge = judge
        self._sandbox = sandbox
        self._rules = rules
        self._instruction = standard_wording().verif if instruction is None else instruction

    async def grade(self, row: VerifRow, answer: str, key: str) -> VerifGrade:
        """The grade of an answer to the row's conversation. ``key`` names the sample; the judge's
        seeds are derived from it."""
        soft, run = self._divided(row.constraints)
        if not soft and not run:
            why = "the row has rules alone, and rules are ignored: there is nothing to grade"
            return VerifGrade(None, 1.0, None, failure=Failure(Reason.JUDGE_FAILED, why))
        spoken = await off_loop(lambda: spoken_answer(answer), answer)
        if not spoken.strip():
            return VerifGrade(0.0, 0.0, None, floored=True, reason="the answer is empty")
        listed = ["\n".join(f"- {constraint.text}" for constraint in soft)] * bool(soft)
        calls = [run_rule(c.function, row.instruction, spoken, self._sandbox) for c in run]
        said, results = await asyncio.gather(
            ask_criteria(self._judge, row.conversation, answer, listed, self._instruction, key),
            asyncio.gather(*calls),
        )
        verdict = said.met[0] if said.met else None
        told = [result.followed for result in results if result.followed is not None]
        share = sum(told) / len(told) if told else 1.0
        failure = next((result.failure for result in results if result.failure), None)
        if said.met and verdict is None and not said.floored:
            failure = failure or Failure(Reason.JUDGE_FAILED, said.reason)
        faults = tuple(
            f"{row.id}: {constraint.text[:80]!r}: {result.fault}"
            for constraint, result in zip(run, results, strict=True)
            if result.followed is None and result.fault
        )
        if not told and not soft:
            why = f"no rule of the row can be run: {'; '.join(faults)}"
            failure = failure or Failure(Reason.JUDGE_FAILED, why)
        value = share * (verdict is not False and not said.floored)
        return VerifGrade(
            None if failure else value,
            share,
            verdict,
            tuple(results),
            faults,
            said.floored,
            failure,
            said.reason,
            said.verdicts,
        )

    def _divided(
        self, constraints: Sequence[Constraint]
    ) -> tuple[list[Constraint], list[Constraint]]:
        """What the judge is asked about, and what is run."""
        soft = [constraint for constraint in constraints if constraint.kind == "soft"]
        rules = [constraint for constraint in constraints if constraint.kind == "rule"]
        if self._rules == "skip":
            return [*soft, *rules], []
        return soft, rules if self._rules == "run" else []
