"""The text of a turn: a program, an edit of the newest one, or a submission."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowright.core.errors import FailureError, Reason
from flowright.environments.workflow.config import Feedback, WorkflowConfig
from flowright.llm.fences import fenced, fill
from flowright.llm.replies import spoken_answer
from flowright.policy.sampling import Sample
from flowright.workflows.prompt import Form
from flowright.workflows.source import has_entry

SUBMIT = "SUBMIT"
_SUBMISSION = re.compile(rf"[*_`#> \t]{{0,9}}{SUBMIT}[*_`.! \t]{{0,9}}")
_EDIT = re.compile(r"lines? (\d{1,5})(?: ?- ?(\d{1,5}))? ?:", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class TurnText:
    """A turn's text. ``completion`` holds its program, None for a bare submission; ``submits``: no
    feedback is wanted."""

    completion: str | None
    submits: bool = False
    is_edit: bool = False


def read_turn(sample: Sample, source: str | None) -> TurnText:
    """Read a turn: an edit of ``source`` if a line outside fences is an edit's head, else a whole
    program; a last line of ``SUBMIT`` submits it, or the newest valid one if there is none. Raises
    FailureError for an edit that cannot be made."""
    text = spoken_answer(sample.text.replace("\r\n", "\n"))
    lines = text.rstrip().split("\n")
    submits = _SUBMISSION.fullmatch(lines[-1]) is not None
    if submits:
        lines.pop()
    if edits := _edits(lines):
        if sample.finish_reason == "length" and not submits:
            raise FailureError(Reason.TRUNCATED, "the edit ended at its token limit")
        return TurnText(fenced(_edited(source, edits), "python"), submits, is_edit=True)
    if not submits:
        return TurnText(sample.text)
    program = "\n".join(lines)
    return TurnText(program if has_entry(program) else None, submits=True)


@dataclass(slots=True)
class _Edit:
    """New text for lines of a program; ``block`` is its fenced text."""

    first: int
    last: int
    plain: list[str] = field(default_factory=list)
    block: list[str] | None = None

    @property
    def lines(self) -> list[str]:
        if self.block is not None:
            return self.block
        text = "\n".join(self.plain).rstrip()
        return text.split("\n") if text else []


def _edits(lines: Sequence[str]) -> list[_Edit]:
    """Return the edits of a reply, in the order of their heads."""
    found: list[_Edit] = []
    fence = ""
    for line in lines:
        opening, edit = _FENCE.match(line), found[-1] if found else None
        if fence:
            if line.strip() == fence:
                fence = ""
            elif edit is not None and edit.block is not None:
                edit.block.append(line)
        elif head := _EDIT.fullmatch(line.strip()):
            found.append(_Edit(int(head[1]), int(head[2] or head[1])))
        elif opening:
            fence = opening[1]
            if edit is not None and edit.block is None:
                edit.block = []
        elif edit is not None:
            edit.plain.append(line)
    return found


def _edited(source: str | None, edits: Sequence[_Edit]) -> str:
    """Return a program with its lines replaced. Raises FailureError(NO_PROGRAM)."""
    if source is None:
        raise FailureError(Reason.NO_PROGRAM, "an edit, and there is no program yet")
    lines, end = source.split("\n"), 0
    for edit in (edits := sorted(edits, key=lambda edit: edit.first)):
        if not end < edit.first <= edit.last <= len(lines):
            raise FailureError(
                Reason.NO_PROGRAM,
                f"lines {edit.first}-{edit.last}: the program has lines 1-{len(lines)}, and edits "
                "may not overlap",
            )
        end = edit.last
    for edit in reversed(edits):
        lines[edit.first - 1 : edit.last] = edit.lines
    return "\n".join(lines)


def edit_between(old: str, new: str) -> str:
    """Return the edit that makes one program of another: the lines from the first to the last that
    differ, at least one of the old ones."""
    before, after = old.split("\n"), new.split("\n")
    shorter = min(len(before), len(after))
    head = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    head = min(head, len(before) - 1)
    rest = shorter - head
    tail = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    tail = min(tail, len(before) - head - 1)
    text = "\n".join(after[head : len(after) - tail])
    return f"lines {head + 1}-{len(before) - tail}:\n{text}".rstrip()


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
