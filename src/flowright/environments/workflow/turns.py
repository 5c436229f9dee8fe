"""The text of a turn: a program, an edit of the newest one, or a submission."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowright.core.errors import FailureError, Reason
from flowright.environments.workflow.config import Feedback, WorkflowConfig
from flowright.llm.fences import fenced, fill
from flowright.llm.replies import code_blocks, spoken_answer
from flowright.policy.sampling import Sample
from flowright.workflows.prompt import Form
from flowright.workflows.source import source_in

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
