"""Rewards of rubrics, and of VerIF's constraints (arXiv 2506.09942).

Rules are decided by code, the other criteria by a judge. An ungraded criterion is never "not met"
(law 1): it leaves the sum with its weight, or the sample has no reward.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """Grade of one answer.

    ``value`` is the reward in [0, 1], or None with a ``failure`` of ours. ``share`` is the value
    before it is clipped at 0, as HealthBench reports it. ``met`` has every item of the rubric, None
    if ungraded; ``ungraded`` is their share of the weight. ``floored``: the answer is empty or
    prevents every verdict, and earns the minimum.
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


@dataclass(frozen=True, slots=True)
class RubricReward:
    """Rewards answers by their rows' rubrics.

    ``judge`` (:func:`~flowright.judging.rubrics.criteria_judge.criteria_judge`) is asked about
    criteria without a rule, in the words of ``instruction``, or in its own if that is empty. Up to
    ``most_ungraded`` of a rubric's absolute points may stay ungraded through no fault of the
    answer; beyond that the sample is unscored. ``calls`` is how the judge batches criteria. An
    empty answer earns the minimum; with ``grades_empty`` it is graded by its criteria like any
    other, as in HealthBench's figure: it does nothing that is penalised.
    """

    judge: Judge
    sandbox: Sandbox
    instruction: str = field(default_factory=lambda: standard_wording().rubric)
    most_ungraded: float = 0.0
    calls: CriteriaCalls = "together"
    grades_empty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.most_ungraded < 1:
            raise ValueError(f"most_ungraded is {self.most_ungraded}, not from 0 to below 1")

    async def grade(self, row: RubricRow, answer: str, key: str) -> RubricGrade:
        """Grade an answer to the row's conversation. ``key`` names the sample, for the judge's
        seeds."""
        asked = [place for place, item in enumerate(row.items) if item.rule is None]
        criteria = [row.items[place].criterion for place in asked]
        spoken = await off_loop(lambda: spoken_answer(answer), answer)
        asking = ask_criteria(
            self.judge,
            row.conversation,
            answer,
            criteria,
            self.instruction,
            key,
            self.calls,
            self.grades_empty,
        )
        judged, ruled = await asyncio.gather(
            asking, asyncio.gather(*(self._by_rule(item, spoken) for item in row.items))
        )
        met = [known for known, _ in ruled]
        for place, known in zip(asked, judged.met, strict=True):
            met[place] = known
        if judged.floored or not (spoken.strip() or self.grades_empty):
            least = least_share(row.items)
            why = judged.reason or "the answer is empty"
            return RubricGrade(
                0.0, least, tuple(met), floored=True, reason=why, verdicts=judged.verdicts
            )
        failures = [failure for _, failure in ruled if failure is not None]
        if None in judged.met:
            failures.append(Failure(Reason.JUDGE_FAILED, judged.reason))
        share, ungraded = points_share(row.items, met), ungraded_share(row.items, met)
        why = "; ".join(map(str, failures))
        if share is None or ungraded > self.most_ungraded:
            missing = f"{met.count(None)} of {len(met)} criteria could not be graded: {why}"
            reason = failures[0].reason if failures else Reason.JUDGE_FAILED
            failure = Failure(reason, missing)
            return RubricGrade(
                None, None, tuple(met), ungraded, failure=failure, verdicts=judged.verdicts
            )
        return RubricGrade(
            max(0.0, share), share, tuple(met), ungraded, reason=why, verdicts=judged.verdicts
        )

    async def _by_rule(self, item: Item, answer: str) -> tuple[bool | None, Failure | None]:
        if item.rule is None:
            return None, None
        with boundary(f"rule of {item.criterion[:60]!r}") as caught:
            return await is_met(item.rule, answer, self.sandbox), None
        return None, caught.failure


Rules = Literal["run", "skip", "ignore"]
"""``run`` the functions; ``skip`` them and give the rules' texts to the judge with the soft ones
(VERIF_SKIP_RULES); ``ignore`` the rules (VERIF_IGNORE_RULES)."""


@dataclass(frozen=True, slots=True)
class VerifGrade:
    """Grade of one answer.

    ``value`` is the reward in [0, 1], or None with a ``failure`` of ours. ``rules`` are the results
    of the functions, in order; ``rule_share`` is the mean of the conclusive ones, 1 if there are
    none, and ``faults`` names the others. ``soft`` is the judge's verdict, None if it was not asked
    or has none. ``floored``: the answer is empty or prevents every verdict, and earns 0.
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


@dataclass(frozen=True, slots=True)
class VerifReward:
    """Rewards answers by their rows' constraints: the share of the rules that an answer follows,
    times the judge's verdict on all soft constraints in one criterion, if there are any. The judge
    is asked in the words of ``instruction``, or in its own if that is empty."""

    judge: Judge
    sandbox: Sandbox
    rules: Rules = "run"
    instruction: str = field(default_factory=lambda: standard_wording().verif)

    async def grade(self, row: VerifRow, answer: str, key: str) -> VerifGrade:
        """Grade an answer to the row's conversation. ``key`` names the sample, for the judge's
        seeds."""
        soft, run = self._divided(row.constraints)
        if not soft and not run:
            why = "the row has rules alone, and rules are ignored: there is nothing to grade"
            return VerifGrade(None, 1.0, None, failure=Failure(Reason.JUDGE_FAILED, why))
        spoken = await off_loop(lambda: spoken_answer(answer), answer)
        if not spoken.strip():
            return VerifGrade(0.0, 0.0, None, floored=True, reason="the answer is empty")
        listed = ["\n".join(f"- {constraint.text}" for constraint in soft)] * bool(soft)
        calls = [run_rule(c.function, row.instruction, spoken, self.sandbox) for c in run]
        judged, results = await asyncio.gather(
            ask_criteria(self.judge, row.conversation, answer, listed, self.instruction, key),
            asyncio.gather(*calls),
        )
        verdict = judged.met[0] if judged.met else None
        ruled = [result.followed for result in results if result.followed is not None]
        share = sum(ruled) / len(ruled) if ruled else 1.0
        failure = next((result.failure for result in results if result.failure), None)
        if judged.met and verdict is None and not judged.floored:
            failure = failure or Failure(Reason.JUDGE_FAILED, judged.reason)
        faults = tuple(
            f"{row.id}: {constraint.text[:80]!r}: {result.fault}"
            for constraint, result in zip(run, results, strict=True)
            if result.followed is None and result.fault
        )
        if not ruled and not soft:
            why = f"no rule of the row can be run: {'; '.join(faults)}"
            failure = failure or Failure(Reason.JUDGE_FAILED, why)
        value = share * (verdict is not False and not judged.floored)
        return VerifGrade(
            None if failure else value,
            share,
            verdict,
            tuple(results),
            faults,
            judged.floored,
            failure,
            judged.reason,
            judged.verdicts,
        )

    def _divided(
        self, constraints: Sequence[Constraint]
    ) -> tuple[list[Constraint], list[Constraint]]:
        """Return the constraints for the judge, and those to run."""
        soft = [constraint for constraint in constraints if constraint.kind == "soft"]
        rules = [constraint for constraint in constraints if constraint.kind == "rule"]
        if self.rules == "skip":
            return [*soft, *rules], []
        return soft, rules if self.rules == "run" else []
