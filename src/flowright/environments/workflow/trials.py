"""The programs of an attempt: each is read and run in its turn, and its outcome is fed back. A turn
holds a program, an edit of the newest one, or a submission.

Feedback holds the policy's own program and what its execution gave: no reference, no hidden test,
no verdict.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flowright.core.errors import Blame, Failure, FailureError, Reason, boundary
from flowright.core.off_loop import in_thread
from flowright.core.untrusted import cut
from flowright.data.task import Problem
from flowright.environments.episode import Episode, Observation
from flowright.environments.workflow.config import Feedback, WorkflowConfig
from flowright.grading.gold import run_tests
from flowright.llm.control_tokens import fenced, fill
from flowright.llm.replies import code_blocks, spoken_answer
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox, TestReport
from flowright.workflows.context import Budget
from flowright.workflows.executor import Executor
from flowright.workflows.operators import VOTE
from flowright.workflows.prompt import Form
from flowright.workflows.source import Workflow, source_in
from flowright.workflows.trace import Execution

SUBMIT = "SUBMIT"
_SUBMISSION = re.compile(rf"[*_`#> \t]{{0,9}}{SUBMIT}[*_`.! \t]{{0,9}}")
_EDIT = re.compile(
    r"^[ \t]*lines? (\d{1,5})(?: ?- ?(\d{1,5}))? ?:[ \t]*$", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class TurnText:
    """``completion`` holds the program of a turn, None for a bare submission; ``submits``: no
    feedback is wanted."""

    completion: str | None
    submits: bool = False
    is_edit: bool = False


def read_turn(sample: Sample, source: str | None) -> TurnText:
    """Read a turn: an edit of ``source`` if a line outside a block is an edit's head, else a whole
    program; a last line of ``SUBMIT`` submits it, or the newest valid one if there is none. Raises
    FailureError for an edit that cannot be made."""
    text = spoken_answer(sample.text.replace("\r\n", "\n")).rstrip()
    before, _, last = text.rpartition("\n")
    submits = _SUBMISSION.fullmatch(last) is not None
    lead, *parts = _EDIT.split(before if submits else text)
    if parts and lead.count("```") % 2 == 0:
        if sample.finish_reason == "length" and not submits:
            raise FailureError(Reason.TRUNCATED, "the edit ended at its token limit")
        edits = [
            (int(first), int(end or first), _new_lines(body))
            for first, end, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        ]
        return TurnText(fenced(_edited(source, sorted(edits)), "python"), submits, is_edit=True)
    if not submits:
        return TurnText(sample.text)
    return TurnText(before if source_in(before) is not None else None, submits=True)


def _new_lines(body: str) -> list[str]:
    blocks = code_blocks(body)
    text = (blocks[0][1] if blocks else body).strip("\n").rstrip()
    return text.split("\n") if text else []


def _edited(source: str | None, edits: Sequence[tuple[int, int, list[str]]]) -> str:
    """Return a program with its lines replaced. Raises FailureError(NO_PROGRAM)."""
    if source is None:
        raise FailureError(Reason.NO_PROGRAM, "an edit, and there is no program yet")
    lines, before = source.split("\n"), 0
    for first, last, _ in edits:
        if not before < first <= last <= len(lines):
            raise FailureError(
                Reason.NO_PROGRAM,
                f"lines {first}-{last}: the program has lines 1-{len(lines)}, and edits may not "
                "overlap",
            )
        before = last
    for first, last, text in reversed(edits):
        lines[first - 1 : last] = text
    return "\n".join(lines)


def edit_between(old: str, new: str) -> str:
    """Return the edit that makes one program of another: the lines from the first to the last that
    differ, at least one of the old ones."""
    before, after = old.split("\n"), new.split("\n")
    head = min(_equal(before, after), len(before) - 1)
    tail = _equal(before[:head:-1], after[head:][::-1])
    text = "\n".join(after[head : len(after) - tail])
    return f"lines {head + 1}-{len(before) - tail}:\n{text}".rstrip()


def _equal(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def turns_text(own: WorkflowConfig, form: Form) -> str:
    """Return the part of the prompt about turns; empty for attempts of one."""
    if own.turns == 1:
        return ""
    if form == "compact":
        return f" {own.turns} turns; {SUBMIT} ends them."
    seen = _SEEN[own.feedback]
    return fill(_TURNS, turns=str(own.turns), seen=seen, submit=SUBMIT)


_SEEN: Mapping[Feedback, str] = {
    "error": "whether it failed, and where",
    "result": "its error with the line, or its answer and the outcome of the public tests",
    "full": "its error with the line, or its answer and the outcome of the public tests; the "
    "operators that it called, how far votes agreed, and the calls and tokens that are spent and "
    "left",
}

_TURNS = """
## Turns

You have {turns} turns. Your program is run on the problem, and you see {seen}. Then you reply \
with one of these:

- a whole program, as in the first turn;
- an edit of your newest program: a line such as `lines 3-5:` and below it, in a ```python block, \
the lines that replace these. Several edits of one reply all count lines as they were before it;
- `{submit}`: the newest valid program is submitted with the answer that it gave.

The program of the last turn is submitted as it is. Only the submitted answer counts; the calls \
and tokens of all turns add up.
"""


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
