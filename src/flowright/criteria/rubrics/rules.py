"""Criteria that code decides: how many words an answer has, whether it comes to a value."""

from flowright.core.errors import FailureError, Reason
from flowright.criteria.rubrics.rows import Rule, WordCount
from flowright.data.task import Problem
from flowright.grading.gold import gold_check
from flowright.sandbox import Sandbox


async def is_met(rule: Rule, answer: str, sandbox: Sandbox) -> bool:
    """Whether the answer meets the rule. Words are what stands between white space, as
    ``str.split`` has it; values are compared as for any problem of mathematics, and what has to be
    evaluated is, by math-verify in the sandbox. Raises FailureError(SANDBOX_LOST) where that
    failed."""
    if isinstance(rule, WordCount):
        return rule.least <= len(answer.split()) <= rule.most
    problem = Problem(
        id="rule", kind="math", source="rubric", question="", reference=rule.reference
    )
    gold = await gold_check(problem, answer, sandbox)
    if gold.correct is None:
        raise FailureError(Reason.SANDBOX_LOST, f"math_verify: {gold.detail}")
    return gold.correct
