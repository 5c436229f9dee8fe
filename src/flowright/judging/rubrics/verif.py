"""The reward of VerIF (arXiv 2506.09942): the share of its rules that an answer follows, times a
judge's one verdict on all of its soft constraints.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flowright.core.errors import Failure, Reason
from flowright.core.off_loop import off_loop
from flowright.criteria.rubrics.checkers import RuleResult, run_rule
from flowright.criteria.rubrics.rows import Constraint, VerifRow
from flowright.criteria.rubrics.wording import standard_wording
from flowright.judging.rubrics.asking import ask_criteria
from flowright.judging.verdict import Judge, Verdict
from flowright.llm.replies import spoken_answer
from flowright.sandbox import Sandbox

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
