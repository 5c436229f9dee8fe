"""The programs of an attempt: each is read and run in its turn, and its outcome is fed back.

Feedback holds the policy's own program and what its execution gave: no reference, no hidden test,
no verdict.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from flowright.core.errors import Blame, Failure, FailureError, Reason, boundary
from flowright.core.off_loop import in_thread, off_loop
from flowright.data.task import Problem
from flowright.environments.episode import Episode, Observation
from flowright.environments.workflow.config import Feedback
from flowright.environments.workflow.turns import SUBMIT, TurnText, read_turn
from flowright.grading import Gold
from flowright.llm.fences import fenced
from flowright.policy.sampling import Sample
from flowright.sandbox import TestReport
from flowright.workflows.context import Budget
from flowright.workflows.executor import Executor
from flowright.workflows.operators import VOTE
from flowright.workflows.source import Workflow, source_in
from flowright.workflows.trace import Execution

MOST_TEXT = 1000
"""Characters of an answer, of an error and of failed tests in feedback, each."""
MOST_PROGRAM = 4000
"""Characters of an edited program in feedback."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A program that was written in ``turn`` (from 1), and its execution. ``source``: the text that
    edits refer to, None where there is none yet. ``failure`` is the text's or the execution's.
    ``gold``: of its answer, checked after the attempt."""

    turn: int
    source: str | None = None
    workflow: Workflow | None = None
    execution: Execution | None = None
    failure: Failure | None = None
    is_edit: bool = False
    gold: Gold | None = None

    @property
    def lost(self) -> bool:
        """True if a failure of ours ended it."""
        return self.failure is not None and self.failure.blame is Blame.INFRASTRUCTURE

    @property
    def gold_score(self) -> float | None:
        """1 or 0 by gold, 0 without an answer; None where gold has no opinion."""
        if self.gold is None:
            return 0.0
        return None if self.gold.correct is None else float(self.gold.correct)

    @property
    def error(self) -> FailureError:
        """The failure, which there is, as an exception."""
        assert self.failure is not None
        return FailureError(self.failure.reason, self.failure.message, self.failure.line)


@dataclass(slots=True)
class Trials:
    """The trials of an attempt, one a turn, and the budget that they share. A submission's trial is
    the submitted one."""

    budget: Budget
    trials: list[Trial] = field(default_factory=list)

    @property
    def source(self) -> str | None:
        """The newest program's text, valid or not."""
        return next((t.source for t in reversed(self.trials) if t.source is not None), None)

    @property
    def submitted(self) -> Trial:
        """The trial of a submission. Raises FailureError(NO_PROGRAM)."""
        for trial in reversed(self.trials):
            if trial.workflow is not None:
                return trial
        raise FailureError(Reason.NO_PROGRAM, f"{SUBMIT}: there is no valid program yet")

    @property
    def programs(self) -> tuple[Trial, ...]:
        """The trials, each once, in the order of their turns."""
        return tuple({trial.turn: trial for trial in self.trials}.values())


class TrialRunner:
    """Reads and runs the programs of attempts of at most ``turns``, for one event loop. Trials are
    kept between an attempt's turns; :meth:`finish` drops them."""

    def __init__(self, executor: Executor, turns: int = 1, feedback: Feedback = "full") -> None:
        self._executor = executor
        self._turns = turns
        self._feedback: Feedback = feedback
        self._kept: dict[str, Trials] = {}  # by the attempt's key

    async def respond(self, episode: Episode) -> Observation | None:
        """Return the feedback to the newest turn; None if it submits, and for a program in the last
        turn, which :meth:`finish` runs. Raises FailureError for a failure of ours."""
        number, task = len(episode.turns), episode.task
        assert isinstance(task, Problem)
        attempt = await self._tried(episode, number - 1)
        trial, submits = await self._read(episode.sample, number, attempt)
        if trial.failure is None and (submits or number >= self._turns):
            self._kept[episode.key] = attempt
            return None
        trial = await self._run(trial, task, episode.key, attempt.budget)
        if trial.lost:
            raise trial.error
        attempt.trials.append(trial)
        tests = None
        if self._feedback != "error" and trial.execution and trial.execution.answer is not None:
            tests = await self._executor.run_public_tests(task, trial.execution.answer)
        self._kept[episode.key] = attempt
        left = self._turns - number
        text = feedback_text(self._feedback, trial, tests, attempt.budget, left)
        return Observation(text, failed=trial.execution is None)

    async def finish(self, episode: Episode) -> Trials:
        """Return the trials of a whole attempt, which ends early at one that was lost. Those that
        are not kept are made again, with the same seeds."""
        return await self._tried(episode, len(episode.turns))

    async def _tried(self, episode: Episode, turns: int) -> Trials:
        assert isinstance(episode.task, Problem)
        attempt = self._kept.pop(episode.key, None) or Trials(self._executor.new_budget())
        while len(attempt.trials) < turns and not (attempt.trials and attempt.trials[-1].lost):
            number = len(attempt.trials) + 1
            trial, _ = await self._read(episode.turns[number - 1].sample, number, attempt)
            trial = await self._run(trial, episode.task, episode.key, attempt.budget)
            attempt.trials.append(trial)
        return attempt

    async def _read(self, sample: Sample, number: int, attempt: Trials) -> tuple[Trial, bool]:
        """Return the trial of a turn, not yet run unless it submits an earlier one, and whether it
        submits."""
        reply, source = TurnText(sample.text), attempt.source
        workflow: Workflow | None = None
        with boundary("rollout") as caught:
            if self._turns > 1:
                reply = await off_loop(lambda: read_turn(sample, source), sample.text)
            if reply.completion is None:
                return attempt.submitted, True
            workflow = await self._executor.validate(reply.completion, sample.finish_reason)
            source = workflow.source
        if workflow is None and self._turns > 1:
            text = reply.completion or ""
            source = await in_thread(lambda: source_in(text)) or source
        trial = Trial(number, source, workflow, None, caught.failure, reply.is_edit)
        return trial, reply.submits

    async def _run(self, trial: Trial, task: Problem, key: str, budget: Budget) -> Trial:
        """Return a trial with its execution, unless its text failed or it has one."""
        if trial.workflow is None or trial.execution is not None:
            return trial
        key = key if trial.turn == 1 else f"{key}/turn_{trial.turn}"
        execution: Execution | None = None
        with boundary("rollout") as caught:
            execution = await self._executor.execute(trial.workflow, task, key, budget=budget)
        failure = caught.failure or (execution.failure if execution else None)
        return replace(trial, execution=execution, failure=failure)


def feedback_text(
    level: Feedback, trial: Trial, tests: TestReport | None, budget: Budget, turns_left: int
) -> str:
    """Return what the policy is shown of a trial; ``tests`` is the outcome of the public tests."""
    parts: list[str] = []
    if trial.is_edit and trial.source is not None:
        numbered = enumerate(trial.source.split("\n"), start=1)
        parts.append(_cut("\n".join(f"{n} {line}" for n, line in numbered), MOST_PROGRAM))
    failure, execution = trial.failure, trial.execution
    if failure is not None:
        parts.append(_cut(f"Error: {failure}"))
    else:
        parts.append("The program ran.")
    if level != "error" and execution is not None:
        if execution.answer is not None:
            parts.append(f"Answer:{_shown(execution.answer)}")
        if tests is not None:
            parts.append(_outcome(tests))
    if level == "full":
        parts += _costs(execution, budget)
    parts.append(f"Turns left: {turns_left}")
    return "\n".join(parts)


def _outcome(tests: TestReport) -> str:
    lines = [f"Public tests: {tests.count} of {len(tests.results)} passed"]
    failed = [r for r in tests.results if not r.passed]
    lines += [f"{result.source.strip()}\n# {result.message.strip()}" for result in failed]
    return _cut("\n".join(lines))


def _costs(execution: Execution | None, budget: Budget) -> list[str]:
    """Return the lines on operators, votes, and what was spent and is left."""
    found: list[str] = []
    if execution is not None and execution.trace:
        counts = Counter(call.operator for call in execution.trace)
        found.append(f"Operators: {', '.join(f'{name} {n}' for name, n in counts.items())}")
        steps = [step for call in execution.trace for step in call.children]
        found += [f"Votes: {step.result}" for step in steps if step.operator == VOTE][:8]
    calls, tokens = budget.left
    found.append(
        f"Spent: {budget.calls} calls, {budget.tokens} tokens; left: {calls} calls, {tokens} tokens"
    )
    return found


def _shown(answer: str) -> str:
    answer = _cut(answer)
    return f"\n{fenced(answer)}" if "\n" in answer else f" {answer}"


def _cut(text: str, most: int = MOST_TEXT) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[... {len(text) - most} characters cut ...]\n{text[-most // 2 :]}"
