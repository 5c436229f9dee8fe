"""The programs of an attempt: each is read and run in its turn, and its outcome is fed back.

Feedback holds the policy's own program and what its execution gave: no reference, no hidden test,
no verdict.
"""

from collections import Counter
from dataclasses import dataclass, replace

from flowright.core.errors import Blame, Failure, FailureError, Reason, boundary
from flowright.core.off_loop import in_thread
from flowright.core.untrusted import cut
from flowright.data.task import Problem
from flowright.environments.episode import Episode, Observation
from flowright.environments.workflow.config import Feedback, WorkflowConfig
from flowright.environments.workflow.turns import SUBMIT, TurnText, read_turn
from flowright.grading.gold import run_tests
from flowright.llm.fences import fenced
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox, TestReport
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
    edits refer to, the newest that is a program's. ``failure`` is the turn's or the execution's.
    ``gold``: 1 or 0 for its answer, set after the attempt; None where gold has no opinion."""

    turn: int
    source: str | None = None
    workflow: Workflow | None = None
    execution: Execution | None = None
    failure: Failure | None = None
    is_edit: bool = False
    gold: float | None = 0.0

    @property
    def answer(self) -> str | None:
        return None if self.execution is None else self.execution.answer

    @property
    def lost(self) -> bool:
        """True if a failure of ours ended it."""
        return self.failure is not None and self.failure.blame is Blame.INFRASTRUCTURE

    def check(self) -> None:
        """Raise its failure."""
        if self.failure is not None:
            raise FailureError(self.failure.reason, self.failure.message, self.failure.line)


class TrialRunner:
    """Reads and runs the programs of attempts, for one event loop. Trials are kept between an
    attempt's turns; :meth:`finish` drops them."""

    def __init__(self, executor: Executor, sandbox: Sandbox, own: WorkflowConfig) -> None:
        self._executor = executor
        self._sandbox = sandbox
        self._own = own
        self._kept: dict[str, tuple[Budget, list[Trial]]] = {}  # by the attempt's key

    async def respond(self, episode: Episode) -> Observation | None:
        """Return the feedback to the newest turn; None if it submits, and for a program in the last
        turn, which :meth:`finish` runs. Raises FailureError for a failure of ours."""
        number, task = len(episode.turns), episode.task
        assert isinstance(task, Problem)
        budget, trials = await self._tried(episode, number - 1)
        trial, submits = await self._read(episode.sample, number, trials)
        is_last = submits or (trial.failure is None and number >= self._own.turns)
        if is_last and trial.workflow is not None:
            self._kept[episode.key] = budget, trials
            return None
        trial = await self._run(trial, task, episode.key, budget)
        if trial.lost:
            trial.check()
        tests = None
        if self._own.feedback != "error" and trial.answer is not None and task.public_tests:
            tests = await run_tests(replace(task, hidden_tests=()), trial.answer, self._sandbox)
        self._kept[episode.key] = budget, [*trials, trial]
        text = feedback_text(self._own.feedback, trial, tests, budget, self._own.turns - number)
        return Observation(text, failed=trial.execution is None)

    async def finish(self, episode: Episode) -> list[Trial]:
        """Return the trials of a whole attempt, one a turn, which end early at one that was lost; a
        submission's is the submitted one. Those that are not kept are made again, with the same
        seeds."""
        _, trials = await self._tried(episode, len(episode.turns))
        return trials

    async def _tried(self, episode: Episode, turns: int) -> tuple[Budget, list[Trial]]:
        assert isinstance(episode.task, Problem)
        budget, trials = self._kept.pop(episode.key, None) or (Budget(self._executor.limits), [])
        while len(trials) < turns and not (trials and trials[-1].lost):
            number = len(trials) + 1
            trial, _ = await self._read(episode.turns[number - 1].sample, number, trials)
            trials = [*trials, await self._run(trial, episode.task, episode.key, budget)]
        return budget, trials

    async def _read(self, sample: Sample, number: int, trials: list[Trial]) -> tuple[Trial, bool]:
        """Return the trial of a turn, not yet run unless it submits an earlier one, and whether it
        submits."""
        turn, source = TurnText(sample.text), trials[-1].source if trials else None
        workflow: Workflow | None = None
        with boundary("rollout") as caught:
            if self._own.turns > 1:
                turn = await in_thread(lambda: read_turn(sample, source))
            if turn.completion is None:
                valid = [trial for trial in trials if trial.workflow is not None]
                if not valid:
                    raise FailureError(Reason.NO_PROGRAM, f"{SUBMIT}: no program so far is valid")
                return valid[-1], True
            workflow = await self._executor.validate(turn.completion, sample.finish_reason)
            source = workflow.source
        trial = Trial(number, source, workflow, None, caught.failure, turn.is_edit)
        if workflow is None and not trial.lost and self._own.turns > 1:
            source = await in_thread(lambda: source_in(turn.completion or "")) or source
        return replace(trial, source=source), turn.submits

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
    execution, parts = trial.execution, list[str]()
    if trial.is_edit and trial.source is not None:
        numbered = enumerate(trial.source.split("\n"), start=1)
        parts.append(cut("\n".join(f"{n} {line}" for n, line in numbered), MOST_PROGRAM))
    parts.append(cut(f"Error: {trial.failure}", MOST_TEXT) if trial.failure else "The program ran.")
    if level != "error" and trial.answer is not None:
        parts.append(f"Answer:{_shown(trial.answer)}")
        if tests is not None:
            failed = [r for r in tests.results if not r.passed]
            lines = [f"Public tests: {tests.count} of {len(tests.results)} passed"]
            lines += [f"{test.source.strip()}\n# {test.message.strip()}" for test in failed]
            parts.append(cut("\n".join(lines), MOST_TEXT))
    if level == "full":
        if execution is not None and execution.trace:
            counts = Counter(call.operator for call in execution.trace)
            parts.append(f"Operators: {', '.join(f'{name} {n}' for name, n in counts.items())}")
            steps = [step for call in execution.trace for step in call.children]
            parts += [f"Votes: {step.result}" for step in steps if step.operator == VOTE][:8]
        (calls, tokens), spent = budget.left, f"{budget.calls} calls, {budget.tokens} tokens"
        parts.append(f"Spent: {spent}; left: {calls} calls, {tokens} tokens")
    return "\n".join([*parts, f"Turns left: {turns_left}"])


def _shown(answer: str) -> str:
    answer = cut(answer, MOST_TEXT)
    return f"\n{fenced(answer)}" if "\n" in answer else f" {answer}"
