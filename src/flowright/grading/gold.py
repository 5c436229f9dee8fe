"""The gold check of an answer, beside the judge's verdict (law 3): equality, tests, verifiers.

Answers are compared in this trusted process and evaluated in the sandbox alone. A check that failed
for our reasons is undecided (``correct=None``), never wrong (law 1).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from flowright.core.errors import FailureError, Reason
from flowright.core.off_loop import off_loop
from flowright.data.task import Problem, Task, complete_solution
from flowright.grading.compare import AnswerComparison, asks_percent, compare
from flowright.grading.formulas import as_pair
from flowright.grading.statements import extract_answer
from flowright.grading.word_scores import OWN, SCORERS, final_words
from flowright.llm.replies import extract_code
from flowright.sandbox import Limits, Sandbox, TestReport

_SYMBOLIC_LIMITS = Limits(cpu_seconds=2.0, wall_seconds=20.0)


@dataclass(frozen=True, slots=True)
class Gold:
    """Outcome of a gold check.

    ``correct`` is None when the check itself failed for our reasons. ``method`` names the deciding
    rule, ``detail`` its findings; it may quote expected values, so it may not reach the policy.
    ``evidence`` is for the judge: how many tests passed and not a word more, because a solution
    chooses the message that it fails with. Of an answer in words (:func:`is_free_text`) ``f1`` is
    the token F1 and ``exact`` the dataset's own exact match, None without one; they decide nothing.
    """

    correct: bool | None
    method: str
    detail: str = ""
    evidence: str | None = None
    f1: float | None = None
    exact: float | None = None


async def gold_check(task: Problem, answer: str, sandbox: Sandbox) -> Gold:
    """Check ``answer`` (a solver's final text) by the task's own gold standard."""
    if task.kind == "code":
        return await _check_code(task, answer, sandbox)
    if task.verifier is not None and answer.strip():
        return await _check_by_verifier(task, answer)
    return await _check_answer(task, answer, sandbox)


# --- code -------------------------------------------------------------------------------------


async def _check_code(task: Problem, answer: str, sandbox: Sandbox) -> Gold:
    code = await off_loop(lambda: extract_code(answer, task.entry_point), answer)
    try:
        report = await run_tests(task, code, sandbox)
    except FailureError as error:
        return Gold(None, "tests", str(error))
    return Gold(report.passed, "tests", _detail(report), _outcome(report))


async def run_tests(task: Problem, code: str, sandbox: Sandbox) -> TestReport:
    """Run a code task's tests on a program. Raises FailureError if the sandbox is lost."""
    solution, limits = complete_solution(task, code), sandbox.limits
    if seconds := TEST_SECONDS.get(task.source):
        limits = replace(limits, cpu_seconds=seconds, wall_seconds=10 * seconds)
    return await sandbox.check(
        solution, task.test_setup, task.tests, task.entry_point, limits, reference=task.reference
    )


TEST_SECONDS: Mapping[str, float] = {"apps": 4.0, "livecodebench": 6.0}
"""CPU seconds of a test, upstream's wall seconds, of datasets that have their own."""


def _outcome(report: TestReport) -> str:
    return f"passed {report.count} of {len(report.results)} tests"


def _detail(report: TestReport) -> str:
    failed = [result for result in report.results if not result.passed]
    first = f"; first failure: {failed[0].message}" if failed else ""
    return (_outcome(report) + first)[:2000]


# --- mathematics and questions ----------------------------------------------------------------


async def _check_answer(task: Problem, answer: str, sandbox: Sandbox) -> Gold:
    """By :func:`~flowright.grading.compare.compare`; what that leaves open, math-verify decides."""
    accepted = (task.reference, *task.alternatives)
    percent = asks_percent(task.question)
    found = await off_loop(
        lambda: compare(accepted, answer, task.kind, task.choices, is_percent=percent), answer
    )
    detail = f"{found.final[:200]!r} against {' | '.join(found.expected)[:300]!r}"
    exact = f1 = None
    if is_free_text(task):
        scorer = SCORERS.get(task.source, OWN)
        exact, f1 = await off_loop(lambda: scorer.scores(final_words(answer), accepted), answer)
        exact = exact if scorer.is_official else None
        detail += f", F1 {f1:.2f}"
    if found.correct is None:
        try:
            found = await algebra(sandbox)(found)
        except FailureError as error:
            return Gold(None, found.method, str(error))
    return Gold(found.correct, found.method, detail, f1=f1, exact=exact)


def is_free_text(task: Task) -> bool:
    """Return whether an answer to the task is free text, for which an F1 is computed."""
    return (
        isinstance(task, Problem)
        and task.kind == "qa"
        and not task.choices
        and task.verifier is None
    )


Algebra = Callable[[AnswerComparison], Awaitable[AnswerComparison]]
"""Decides a comparison that was left open; raises FailureError where it failed for our reasons."""


def algebra(sandbox: Sandbox) -> Algebra:
    """math-verify in a sandbox, for gold and for rules that are to decide what gold does. An
    expression that is too hard to evaluate is not the expected one."""

    async def settle(found: AnswerComparison) -> AnswerComparison:
        for reference in found.expected:
            if await _verify_symbolically(reference, found.final, sandbox):
                return replace(found, correct=True, expected=(reference,))
        return replace(found, correct=False)

    return settle


# Runs in the sandbox: parsing an expression evaluates it, and 9^{9^{9^9}} would hang this process.
_VERIFY = """
import json, sys
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Float, N, Pow, Rational, log, simplify

# Letters are variables: what may be a unit was taken off before.
LATEX = LatexExtractionConfig(normalization_config=NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"))

def read(text):
    return parse("$" + text.strip(" $") + "$", [LATEX], parsing_timeout=None)

def near(a, b, digits):
    return abs(a - b) <= max(abs(a), abs(b)) * Rational(1, 10**digits)

def same_values(a, b):
    a, b = a.doit(), b.doit()
    if a == b:
        return True
    x, y = N(a, 60), N(b, 60)
    if not (x.is_finite and y.is_finite):
        return False
    if not a.has(Float) and not b.has(Float):
        return near(x, y, 40) if x and y else simplify(a - b) == 0
    is_whole = a.is_Integer or b.is_Integer  # 3400002.5 is not 3400000
    return bool(near(x, y, 6) and (not is_whole or abs(x - y) <= Rational(1, 10**4)))

def real(a, point):
    values = [N(part.subs(point), 30) for part in (a, *a.atoms(Pow, log))]
    return values[0] if all(v.is_number and v.is_finite and v.is_real for v in values) else None

# Equal wherever both are real in all their parts; None where they are at too few points.
def same_where_real(a, b, symbols):
    known = 0
    for turn in range(16):
        point = {}
        for i, symbol in enumerate(symbols):
            sign = -1 if turn % 2 and (turn >> i + 1) % 2 else 1
            point[symbol] = sign * Rational(7 + 13 * i + 5 * turn, 11 + 4 * i)
        x, y = real(a, point), real(b, point)
        if x is not None and y is not None:
            if not near(x, y, 15) and abs(x - y) > Rational(1, 10**20):
                return False
            known += 1
    return True if known >= 4 else None

def same_read(one, other):
    a, b = one[0], other[0]
    if isinstance(a, Expr) and isinstance(b, Expr):
        symbols = sorted(a.free_symbols | b.free_symbols, key=str)
        if not symbols:
            return bool(same_values(a, b))
        found = same_where_real(a.doit(), b.doit(), symbols) if len(symbols) <= 6 else None
        if found is not None:
            return found
    return verify(one, other, timeout_seconds=None, allow_set_relation_comp=True)

reference, answer = json.load(sys.stdin)
try:
    same = bool(same_read(read(reference), read(answer)))
except Exception:  # no text may make of a wrong answer one that could not be checked
    same = False
print(json.dumps(same))
"""


async def _verify_symbolically(reference: str, final: str, sandbox: Sandbox) -> bool:
    pair = as_pair(reference, final)
    if pair is None:
        return False
    result = await sandbox.run(_VERIFY, json.dumps(pair), _SYMBOLIC_LIMITS)
    if result.status in ("timeout", "memory", "killed"):
        return False  # what was evaluated brought that about; what is ours raises
    if result.status != "ok" or result.stdout.strip() not in ("true", "false"):
        message = f"math-verify failed: {result.stderr[-500:]}"
        raise FailureError(Reason.SANDBOX_LOST, message)
    return result.stdout.strip() == "true"


# --- verifiers --------------------------------------------------------------------------------

# Verifiers of reasoning-gym that compare text or numbers. Others evaluate the answer as Python (by
# eval or sympy's parse_expr: n_queens, countdown and more), which must not happen in this process.
_COMPARING = frozenset({
    "chain_sum", "fraction_simplification", "gsm_symbolic", "products", "spell_backward",
    "family_relationships",
})  # fmt: skip


async def _check_by_verifier(task: Problem, answer: str) -> Gold:
    verifier: dict[str, Any] = dict(task.verifier or {})
    if verifier.get("name") != "reasoning_gym":
        return Gold(None, "verifier", f"no verifier is called {verifier.get('name')!r}")
    name = str(verifier.get("dataset"))
    score_answer = await asyncio.to_thread(_score_function, name)  # the import takes seconds
    if score_answer is None:
        return Gold(
            None, "reasoning_gym", f"the verifier of {name!r} is not one that only compares"
        )
    final = extract_answer(answer)
    score = score_answer(final, verifier["entry"])
    return Gold(score == 1.0, "reasoning_gym", f"{final[:200]!r} scored {score:.2f} by {name}")


@cache
def _score_function(name: str) -> Any:
    """The family's scoring method, if it only compares; None otherwise or if there is none."""
    from reasoning_gym import get_score_answer_fn
    from reasoning_gym.factory import DATASETS, ProceduralDataset

    if name not in DATASETS:
        return None
    inherited = DATASETS[name][0].score_answer is ProceduralDataset.score_answer
    return get_score_answer_fn(name) if inherited or name in _COMPARING else None
