"""A row of a file in the form of OpenJudge's training data as a typed row. No file is opened here.

The four forms, by their columns:

- ``sft``: ``messages``;
- ``bradley_terry``: ``chosen`` and ``rejected``, message lists or JSON strings of them; optional
  ``margin``, ``strength``, ``tie``;
- ``pointwise``: ``input``, ``output[0].answer`` with ``label.helpfulness``; further answers are
  not read (:func:`further_answers`);
- ``pairwise``: ``input``, ``output[0].answer`` (A) and ``output[1].answer`` (B) with
  ``label.preference``.

Nothing is repaired: text that is not text, an order of roles that no chat template takes, or a
label off its scale make a row unusable.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from flowright.data.preferences import Pair, Preferred
from flowright.data.row_files import (
    Fault,
    UnusableRow,
    column,
    decoded,
    items_of,
    number_of,
    plain,
    short,
    source_of,
    text_of,
    turns_of,
)
from flowright.environments.judging.rows import TOP_LABEL, PairRow, PointwiseRow, Row, SftRow

Form = Literal["sft", "bradley_terry", "pointwise", "pairwise"]
FORMS: tuple[Form, ...] = get_args(Form)


def form_of(values: Mapping[str, Any], forms: Sequence[Form]) -> Form:
    """Which of the forms a row has. Raises UnusableRow where it has none of them."""
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
    """The row that the columns hold. ``source`` is what it is from where no column says so. Raises
    UnusableRow."""
    return _TYPED[form](values, id, source_of(plain(values.get("source")), source))


def further_answers(form: Form, row: Mapping[str, Any]) -> int:
    """How many answers of a row its form does not read."""
    return len(items_of(row["output"], "output")) - 1 if form == "pointwise" else 0


def _sft(values: Mapping[str, Any], id: str, source: str) -> SftRow:
    return SftRow(turns_of(column(values, "messages"), "messages", "assistant"), source, id)


def _bradley_terry(values: Mapping[str, Any], id: str, source: str) -> PairRow:
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
        said = f"tie is {str(given).lower()}, strength {strength:g}"
        raise UnusableRow(Fault.PREFERENCE, f"{said}: 0 is a tie, and nothing else is")
    tie = bool(given) or strength == 0
    answers = chosen[-1].content, rejected[-1].content
    _require_difference(*answers, tie, "chosen and rejected")
    margin = strength if margin is None else margin
    return PairRow(chosen[:-1], *answers, tie, margin, source, id)


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
    said: list[Preferred | None] = [_preference(label) for label in (of_first, of_second)]
    label = of_first if said[0] is not None else of_second
    preferred = said[0] or said[1]
    if preferred is None:
        raise UnusableRow(Fault.PREFERENCE, "neither answer's label has a preference")
    if None not in said and said[0] != said[1]:
        raise UnusableRow(Fault.PREFERENCE, "the labels of the two answers disagree")
    strength = number_of(label.get("preference_strength"), "preference_strength")
    if strength is not None and (strength == 0) is not (preferred == "tie"):
        told = f"preference is {short(label['preference'])}, preference_strength {strength:g}"
        raise UnusableRow(Fault.PREFERENCE, f"{told}: 0 is a tie, and nothing else is")
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
        said = short(answer["role"])
        raise UnusableRow(Fault.ROLES, f"{where}.answer is of {said}, not of the assistant")
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
        said = "missing" if number is None else short(number)
        raise UnusableRow(
            Fault.LABEL, f"helpfulness is {said}, not a whole number from 0 to {TOP_LABEL}"
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
