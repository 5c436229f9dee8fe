"""Rows of judges' training data: a type for each way of training, and the forms of OpenJudge's
files.

The four forms, by their columns:

- ``sft``: ``messages``;
- ``bradley_terry``: ``chosen`` and ``rejected``, message lists or JSON strings of them; optional
  ``margin`` (0 or above, the lead of the chosen one in the source's own unit), ``strength``,
  ``tie``; the row is a :class:`flowright.data.task.Pair` with the chosen answer first;
- ``pointwise``: ``input``, ``output[0].answer`` with ``label.helpfulness``; further answers are
  not read (:func:`further_answers`);
- ``pairwise``: ``input``, ``output[0].answer`` (A) and ``output[1].answer`` (B) with
  ``label.preference``; the row is a pair, too.

Nothing is repaired: text that is not text, an order of roles that no chat template takes, or a
label off its scale make a row unusable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from flowright.data.build import normalise
from flowright.data.row_files import (
    Fault,
    RowFile,
    UnusableRow,
    column,
    decoded,
    items_of,
    number_of,
    plain,
    read_row_files,
    short,
    source_of,
    text_of,
    turns_of,
)
from flowright.data.task import Conversation, Pair, Preferred

TOP_LABEL = 4
"""The highest label of an answer; the lowest is 0."""


@dataclass(frozen=True, slots=True)
class SftRow:
    """A conversation that ends with a turn of the assistant's; all of its turns are trained on."""

    messages: Conversation
    source: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class PointwiseRow:
    """One answer to a conversation that ends with the user, and its label from 0 to 4."""

    conversation: Conversation
    answer: str
    label: int
    source: str = ""
    id: str = ""


JudgedRow = PointwiseRow | Pair
"""Rows of a judge that writes its verdict."""

Row = SftRow | JudgedRow
AnyRow = TypeVar("AnyRow", bound=Row)


def prompt_of(row: Row) -> Conversation:
    """The conversation that is answered."""
    return row.messages[:-1] if isinstance(row, SftRow) else row.conversation


def conversation_key(row: Row) -> str:
    """Return a hash of the normalised text of what is answered."""
    turns = (f"{turn.role}\n{normalise(turn.content)}" for turn in prompt_of(row))
    return sha256("\n\n".join(turns).encode()).hexdigest()


def with_prompt(row: AnyRow, prompt: Conversation) -> AnyRow:
    """The row with another conversation before its answers."""
    if isinstance(row, SftRow):
        return replace(row, messages=(*prompt, row.messages[-1]))
    return replace(row, conversation=prompt)


Form = Literal["sft", "bradley_terry", "pointwise", "pairwise"]
FORMS: tuple[Form, ...] = get_args(Form)


def form_of(values: Mapping[str, Any], forms: Sequence[Form]) -> Form:
    """Return the form of a row. Raises UnusableRow if it has none of them."""
    if len(forms) == 1:
        return forms[0]
    if values.get("chosen") is not None:
        found: Form = "bradley_terry"
    elif values.get("output") is None:
        found = "sft"
    else:
        found = "pairwise" if len(items_of(values["output"], "output")) > 1 else "pointwise"
    if found not in forms:
        has = short(", ".join(map(str, values)) or "nothing")
        raise UnusableRow(Fault.FORM, f"none of the forms {', '.join(forms)}: it has {has}")
    return found


def typed(form: Form, values: Mapping[str, Any], id: str, source: str) -> Row:
    """Return the row of these columns. ``source`` is the default without such a column. Raises
    UnusableRow."""
    return _TYPED[form](values, id, source_of(plain(values.get("source")), source))


def further_answers(form: Form, row: Mapping[str, Any]) -> int:
    """Return the number of a row's answers that its form does not read."""
    return len(items_of(row["output"], "output")) - 1 if form == "pointwise" else 0


def _sft(values: Mapping[str, Any], id: str, source: str) -> SftRow:
    return SftRow(turns_of(column(values, "messages"), "messages", "assistant"), source, id)


def _bradley_terry(values: Mapping[str, Any], id: str, source: str) -> Pair:
    chosen, rejected = (
        turns_of(decoded(column(values, name), name), name, "assistant")
        for name in ("chosen", "rejected")
    )
    if chosen[:-1] != rejected[:-1]:
        raise UnusableRow(Fault.CONVERSATIONS, "chosen and rejected answer different conversations")
    given = plain(values.get("tie"))
    if not isinstance(given, bool | None):
        raise UnusableRow(Fault.PREFERENCE, f"tie is {short(given)}, not true or false")
    strength, margin = (_magnitude(values.get(name), name) for name in ("strength", "margin"))
    if given is not None and strength is not None and given is not (strength == 0):
        stated = f"tie is {str(given).lower()}, strength {strength:g}"
        raise UnusableRow(Fault.PREFERENCE, f"{stated}: 0 is a tie, and nothing else is")
    tie = bool(given) or strength == 0
    answers = chosen[-1].content, rejected[-1].content
    _require_difference(*answers, tie, "chosen and rejected")
    margin = strength if margin is None else margin
    label = "tie" if tie else "first"
    return Pair(id, source, chosen[:-1], *answers, label, strength=margin)


def _pointwise(values: Mapping[str, Any], id: str, source: str) -> PointwiseRow:
    conversation = turns_of(column(values, "input"), "input", "user")
    outputs = items_of(column(values, "output"), "output")
    if not outputs:
        raise UnusableRow(Fault.ANSWERS, "output holds no answer")
    answer, label = _answer(outputs[0], "output[0]")
    return PointwiseRow(conversation, answer, _grade(label.get("helpfulness")), source, id)


def _pairwise(values: Mapping[str, Any], id: str, source: str) -> Pair:
    conversation = turns_of(column(values, "input"), "input", "user")
    outputs = items_of(column(values, "output"), "output")
    if len(outputs) != 2:
        raise UnusableRow(Fault.ANSWERS, f"output holds {len(outputs)} answers, not two")
    (first, of_first), (second, of_second) = (
        _answer(output, f"output[{n}]") for n, output in enumerate(outputs)
    )
    for n, (label, name) in enumerate(((of_first, "A"), (of_second, "B"))):
        if label.get("response_id") not in (None, name):
            other = short(label["response_id"])
            raise UnusableRow(Fault.PREFERENCE, f"output[{n}] is {name}, its response_id {other}")
    stated: list[Preferred | None] = [_preference(label) for label in (of_first, of_second)]
    label = of_first if stated[0] is not None else of_second
    preferred = stated[0] or stated[1]
    if preferred is None:
        raise UnusableRow(Fault.PREFERENCE, "neither answer's label has a preference")
    if None not in stated and stated[0] != stated[1]:
        raise UnusableRow(Fault.PREFERENCE, "the labels of the two answers disagree")
    strength = number_of(label.get("preference_strength"), "preference_strength")
    if strength is not None and (strength == 0) is not (preferred == "tie"):
        pair = f"preference is {short(label['preference'])}, preference_strength {strength:g}"
        raise UnusableRow(Fault.PREFERENCE, f"{pair}: 0 is a tie, and nothing else is")
    _require_difference(first, second, preferred == "tie", "A and B")
    return Pair(
        id=id,
        source=source,
        conversation=conversation,
        first=first,
        second=second,
        label=preferred,
        # Of a signed one the sign names the preferred answer, which the preference does already.
        strength=None if strength is None else abs(strength),
    )


_TYPED: Mapping[Form, Callable[[Mapping[str, Any], str, str], Row]] = {
    "sft": _sft,
    "bradley_terry": _bradley_terry,
    "pointwise": _pointwise,
    "pairwise": _pairwise,
}


# Answers and labels.


def _answer(output: object, where: str) -> tuple[str, Mapping[str, Any]]:
    """An answer's text and its label, which may be empty."""
    answer = output.get("answer") if isinstance(output, Mapping) else None
    if not isinstance(answer, Mapping):
        raise UnusableRow(Fault.ANSWERS, f"{where} has no answer")
    if answer.get("role") not in (None, "assistant"):
        stated = short(answer["role"])
        raise UnusableRow(Fault.ROLES, f"{where}.answer is of {stated}, not of the assistant")
    label = answer.get("label")
    if not isinstance(label, Mapping | None):
        raise UnusableRow(Fault.LABEL, f"{where}.answer.label is {short(label)}, not an object")
    return text_of(answer.get("content"), f"{where}.answer"), label or {}


_PREFERENCES: Mapping[str, Preferred] = {"a": "first", "b": "second", "tie": "tie"}


def _preference(label: Mapping[str, Any]) -> Preferred | None:
    given = label.get("preference")
    if given is None:
        return None
    found = _PREFERENCES.get(given.strip().casefold()) if isinstance(given, str) else None
    if found is None:
        raise UnusableRow(Fault.PREFERENCE, f"preference is {short(given)}, not A, B or tie")
    return found


_GRADES: Sequence[object] = range(TOP_LABEL + 1)


def _grade(given: object) -> int:
    number = plain(given)
    if isinstance(number, bool) or number not in _GRADES:
        stated = "missing" if number is None else short(number)
        raise UnusableRow(
            Fault.LABEL, f"helpfulness is {stated}, not a whole number from 0 to {TOP_LABEL}"
        )
    return _GRADES.index(number)


def _magnitude(given: object, name: str) -> float | None:
    number = number_of(given, name)
    if number is not None and number < 0:
        raise UnusableRow(
            Fault.MARGIN, f"{name} is {number:g}, which calls the rejected answer the better one"
        )
    return number


def _require_difference(one: str, other: str, tie: bool, called: str) -> None:
    if one == other and not tie:
        raise UnusableRow(Fault.SAME_ANSWERS, f"{called} are the same answer, and it is no tie")


def read_rows(
    paths: Sequence[Path],
    forms: Sequence[Form],
    ordered: Callable[[Pair], Pair] = lambda pair: pair,
) -> RowFile[Row]:
    """The rows of files in any of the forms; of several forms each row is of that which its columns
    show. A row's id is its place, file:row. ``ordered`` is applied to chosen and rejected answers,
    whose places reveal the label.

    Raises DataError for files that cannot be read, all of them at once, and where no row is left.
    """
    unread = 0

    def row_of(values: Mapping[str, Any], where: str, path: Path) -> Row:
        nonlocal unread
        form = form_of(values, forms)
        row = typed(form, values, where, path.stem)
        unread += further_answers(form, values)
        return ordered(row) if form == "bradley_terry" and isinstance(row, Pair) else row

    found = read_row_files(paths, row_of, f"row of form {' or '.join(forms)}")
    return replace(found, report=replace(found.report, unread=unread))
