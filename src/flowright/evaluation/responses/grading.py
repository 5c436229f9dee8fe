"""What a row's rubric, checkers or instructions make of one response: a value, or none.

A grader takes the text of a response and the sample's key, from which a judge's seeds are derived.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flowright.core.errors import Failure
from flowright.core.off_loop import off_loop
from flowright.criteria.constraints.checkers import prompt_of, score
from flowright.criteria.constraints.language import NoTagger
from flowright.criteria.rubrics.rows import rubric_row, verif_row
from flowright.data.sources.rows import UpstreamRow
from flowright.judging.rubrics.criteria_judge import CriteriaCalls
from flowright.judging.rubrics.rewards import RubricReward, Rules, VerifReward
from flowright.judging.verdict import Judge
from flowright.llm.replies import spoken_answer
from flowright.sandbox import Sandbox

Reward = Literal["rubric", "verif", "constraints"]
REWARDS: Mapping[Reward, str] = {
    "rubric": "points of the criteria that are met, by a judge and by rules",
    "verif": "VerIF: the mean of the rules times a judge's verdict",
    "constraints": "1 where all instructions are followed (IFEval, IFBench; strict, canonical)",
}


@dataclass(frozen=True, slots=True)
class Grade:
    """``value`` in [0, 1]; ``share`` is a rubric's before it is kept from below 0, and otherwise
    the value. Both are None where nobody could grade the response, and ``why`` says why."""

    value: float | None
    share: float | None
    why: str = ""


Grader = Callable[[str, str], Awaitable[Grade]]
Graders = Callable[[Mapping[str, Any], str, Path], Grader]
"""From a row's columns, its place (file:row) and its file. Raises UnusableRow or DataError for a
row that has nothing to be graded by."""


def graders(
    reward: Reward,
    judge: Judge | None,
    sandbox: Sandbox | None,
    rules: Rules = "run",
    calls: CriteriaCalls = "together",
) -> Graders:
    """``judge`` and ``sandbox`` are None for constraints, which need neither. ``calls`` is how the
    judge puts a rubric's criteria into questions."""
    if reward == "constraints":
        return _of_constraints
    assert judge is not None
    assert sandbox is not None
    if reward == "verif":
        verif = VerifReward(judge, sandbox, rules)

        def of_verif(values: Mapping[str, Any], where: str, path: Path) -> Grader:
            row = verif_row(values, where, path)

            async def grade(text: str, key: str) -> Grade:
                found = await verif.grade(row, text, key)
                return _grade(found.value, found.value, found.failure)

            return grade

        return of_verif
    rubric = RubricReward(judge, sandbox, calls=calls)

    def of_rubric(values: Mapping[str, Any], where: str, path: Path) -> Grader:
        row = rubric_row(values, where, path)

        async def grade(text: str, key: str) -> Grade:
            found = await rubric.grade(row, text, key)
            return _grade(found.value, found.share, found.failure)

        return grade

    return of_rubric


def _grade(value: float | None, share: float | None, failure: Failure | None) -> Grade:
    return Grade(value, share, "" if failure is None else str(failure))


def _of_constraints(values: Mapping[str, Any], where: str, path: Path) -> Grader:
    prompt = prompt_of(UpstreamRow(values, where, where.rpartition(":")[2]))

    async def grade(text: str, key: str) -> Grade:
        try:
            scored = await off_loop(lambda: score(prompt, spoken_answer(text)), text)
        except NoTagger as error:
            return Grade(None, None, str(error))
        value = float(all(scored.followed["canonical"].strict))
        return Grade(value, value)

    return grade
