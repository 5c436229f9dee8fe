"""Later turns in the embedded policy's cold start: programs with invented feedback, and replies."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from flowright.core.errors import FailureError
from flowright.data.task import Problem
from flowright.environments.base import Demonstration
from flowright.environments.workflow.config import WorkflowConfig
from flowright.environments.workflow.trials import SUBMIT, Trial, edit_between, feedback_text
from flowright.llm.chat import Message
from flowright.sandbox import TestReport, TestResult
from flowright.workflows.context import Budget
from flowright.workflows.grammar import name_models
from flowright.workflows.operators import OPERATORS, VOTE
from flowright.workflows.pool import PoolModel
from flowright.workflows.source import read_workflow, source_in
from flowright.workflows.trace import Execution, OperatorCall

BROKEN = 0.25
"""Share of the programs of earlier turns that lack a bracket."""

_CALL = re.compile(rf"\b({'|'.join(OPERATORS)})\((?:.*range\((\d+)\))?")


def expected_calls(program: str) -> list[str]:
    """Return the operators that a program of the grammar calls, those of a comprehension as often
    as its range has it."""
    return [name for name, times in _CALL.findall(program) for _ in range(int(times or 1))]


MIXED = 0.25
"""Share of the programs whose calls each name a model of their own; the others name one."""


def with_models(program: str, dealt: Sequence[PoolModel], rng: random.Random) -> str:
    """Return a program whose calls name models of ``dealt``, drawn uniformly."""
    one, is_mixed = rng.choice(dealt).label, rng.random() < MIXED
    return name_models(program, lambda: rng.choice(dealt).label if is_mixed else one)


def later_turn(
    messages: Sequence[Message],
    task: Problem,
    earlier: Sequence[str],
    programs: Sequence[str],
    own: WorkflowConfig,
    rng: random.Random,
) -> Demonstration:
    """Return a turn behind those of the ``earlier`` programs, with a reply for each of
    ``programs``: half of them submit, the others write it whole or edit the newest program. Neither
    feedback nor reply depends on what is right: answers, tests and votes are invented."""
    shown, budget = list(messages), Budget(own)
    trial = Trial(0)
    for turn, program in enumerate(earlier, start=1):
        if rng.random() < BROKEN:
            place = rng.choice([place for place, mark in enumerate(program) if mark == ")"])
            program = program[:place] + program[place + 1 :]
        trial = _invented_trial(turn, program, task, budget, rng)
        tests = _invented_tests(task, rng) if trial.failure is None else None
        text = feedback_text(own.feedback, trial, tests, budget, own.turns - turn)
        shown += [Message("assistant", program), Message("user", text)]
    newest, can_submit = trial.source or "", trial.failure is None

    def reply(program: str) -> str:
        if can_submit and rng.random() < 0.5:
            return SUBMIT
        is_whole = not newest or rng.random() < 0.5
        return program if is_whole else edit_between(newest, program)

    return Demonstration(shown, [reply(program) for program in programs])


def _invented_trial(
    turn: int, program: str, task: Problem, budget: Budget, rng: random.Random
) -> Trial:
    trial = Trial(turn, source_in(program))
    try:
        read_workflow(program)
    except FailureError as error:
        return replace(trial, failure=error.failure)
    calls = expected_calls(program)
    for _ in calls[: budget.left[0]]:
        budget.take_call()
        budget.spend(rng.randrange(60, 300))
    most = max(map(calls.count, calls), default=1)
    vote = OperatorCall(VOTE, {}, f"{rng.randint(1, most)} of {most} agree", None, 0.0, 0.0)
    trace = [
        OperatorCall(name, {}, "", None, 0.0, 0.0, children=(vote,) if name == "ensemble" else ())
        for name in calls
    ]
    return replace(trial, execution=Execution(_invented_answer(task, rng), None, tuple(trace)))


def _invented_answer(task: Problem, rng: random.Random) -> str:
    if task.kind == "code":
        return f"def {task.entry_point or 'solution'}(value):\n    return value"
    return str(rng.randrange(1000)) if task.kind == "math" else rng.choice(task.question.split())


def _invented_tests(task: Problem, rng: random.Random) -> TestReport | None:
    results = [
        TestResult(test, passed, "" if passed else "AssertionError")
        for test, passed in ((test, rng.random() < 0.5) for test in task.public_tests)
    ]
    passed = all(result.passed for result in results)
    return TestReport(passed, tuple(results), "ok") if results else None
