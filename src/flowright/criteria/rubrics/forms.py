"""The columns of a row as RuscaRL, HealthBench and VerIF write them, made a typed row. Nothing is
repaired, and no file is opened here.

- Rubrics: ``prompt`` and ``reward_model`` (an object or its JSON) with ``style: rubric`` and
  ``rubrics``, or ``rubrics`` as a column, as in HealthBench's own files. An item is ``criterion``,
  ``points`` and ``tags``, an object or a list of ``"key:value"``.
- VerIF: ``prompt`` and ``reward_model.ground_truth``, a JSON text ``{"checkers", "functions"}`` of
  two lists of the same length.

What else a row has (``extra_info``) is not read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowright.criteria.rubrics.rows import (
    Constraint,
    Item,
    MathAnswer,
    RubricRow,
    Rule,
    VerifRow,
    WordCount,
)
from flowright.data.preferences import Conversation
from flowright.data.row_values import (
    Fault,
    UnusableRow,
    column,
    decoded,
    items_of,
    plain,
    short,
    text_of,
    turns_of,
)

FUNCTION = "check_following"
"""The name under which a rule of VerIF is called, with the instruction and the response."""


def rubric_row(values: Mapping[str, Any], where: str, path: Path) -> RubricRow:
    """The rubric row that the columns hold; ``path`` names its source where no column does. Raises
    UnusableRow."""
    model = values if values.get("reward_model") is None else _object(values, "reward_model")
    style = model.get("style")
    if style not in (None, "rubric"):
        raise UnusableRow(Fault.FORM, f"reward_model.style is {short(style)}, not rubric")
    given = items_of(column(model, "rubrics"), "rubrics")
    items = tuple(_item(value, f"rubrics[{n}]") for n, value in enumerate(given))
    if not items:
        raise UnusableRow(Fault.RUBRIC, "rubrics is empty")
    if all(item.points < 0 for item in items):
        raise UnusableRow(Fault.POINTS, "no item has points above 0, so there is nothing to earn")
    return RubricRow(
        _prompt(values), items, _source(values, path), _named(values, "ability"), where
    )


def verif_row(values: Mapping[str, Any], where: str, path: Path) -> VerifRow:
    """The row of VerIF's that the columns hold. Raises UnusableRow."""
    model = _object(values, "reward_model")
    truth = decoded(column(model, "ground_truth"), "reward_model.ground_truth")
    if not isinstance(truth, Mapping):
        why = f"reward_model.ground_truth is {short(truth)}, not a JSON text of an object"
        raise UnusableRow(Fault.CHECKERS, why)
    checkers = items_of(column(truth, "checkers"), "checkers")
    functions = items_of(column(truth, "functions"), "functions")
    if not checkers or len(checkers) != len(functions):
        why = f"{len(checkers)} checkers and {len(functions)} functions; one each is needed"
        raise UnusableRow(Fault.CHECKERS, why)
    constraints = tuple(
        _constraint(checker, function, n)
        for n, (checker, function) in enumerate(zip(checkers, functions, strict=True))
    )
    source, ability = _source(values, path), _named(values, "ability")
    return VerifRow(_prompt(values), constraints, source, ability, where)


def _prompt(values: Mapping[str, Any]) -> Conversation:
    return turns_of(decoded(column(values, "prompt"), "prompt"), "prompt", "user")


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = decoded(column(values, name), name)
    if not isinstance(value, Mapping):
        raise UnusableRow(Fault.FORM, f"{name} is {short(value)}, not an object")
    return value


def _source(values: Mapping[str, Any], path: Path) -> str:
    return _named(values, "data_source") or path.stem


def _named(values: Mapping[str, Any], name: str) -> str:
    value = plain(values.get(name))
    if not isinstance(value, str | None):
        raise UnusableRow(Fault.FORM, f"{name} is {short(value)}, not text")
    return value or ""


# Rubrics.


def _item(value: object, where: str) -> Item:
    if not isinstance(value, Mapping):
        raise UnusableRow(Fault.RUBRIC, f"{where} is {short(value)}, not an object")
    criterion = text_of(value.get("criterion"), f"{where}.criterion")
    points = plain(value.get("points"))
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < abs(points) < 1e9:
        why = f"{where}: points are {short(points)}; a number above or below 0 is needed"
        raise UnusableRow(Fault.POINTS, why)
    tags = _tags(value.get("tags"), where)
    shown = {key: str(tag) for key, tag in tags.items() if isinstance(tag, str | int | float)}
    return Item(criterion, float(points), _rule(tags, where), shown)


def _tags(given: object, where: str) -> dict[str, Any]:
    """Tags by name. A column of objects has every name in every row, with nothing behind most."""
    tags = plain(given)
    if isinstance(tags, list | tuple):
        pairs = [tag.partition(":") for tag in tags if isinstance(tag, str)]
        if len(pairs) < len(tags):
            raise UnusableRow(Fault.RULE, f'{where}: tags hold something other than "key:value"')
        return {key.strip(): value.strip() for key, _, value in pairs}
    if not isinstance(tags, Mapping | None):
        raise UnusableRow(Fault.RULE, f"{where}: tags are {short(tags)}, not an object or a list")
    found = {str(key): plain(value) for key, value in (tags or {}).items()}
    return {key: value for key, value in found.items() if value is not None}


def _rule(tags: Mapping[str, Any], where: str) -> Rule | None:
    verifier = tags.get("verifier", "llm")
    if verifier == "llm":
        return None
    name = tags.get("function")
    if verifier != "rule" or name not in ("math_verify", "word_count_range"):
        said = f"verifier {short(verifier)} with function {short(name)}"
        known = "llm, or rule with math_verify or word_count_range"
        raise UnusableRow(Fault.RULE, f"{where}: {said}; known is {known}")
    given = decoded(tags.get("parameters"), f"{where}.tags.parameters")
    if not isinstance(given, Mapping):
        raise UnusableRow(Fault.RULE, f"{where}: {name} needs parameters, not {short(given)}")
    if name == "math_verify":
        answer = plain(given.get("answer"))
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise UnusableRow(Fault.RULE, f"{where}: math_verify needs answer in its parameters")
        return MathAnswer(text_of(str(answer), f"{where}: answer of math_verify"))
    least, most = (_count(given.get(key), key, where) for key in ("min_count", "max_count"))
    if least > most:
        raise UnusableRow(Fault.RULE, f"{where}: min_count {least} is above max_count {most}")
    return WordCount(least, most)


def _count(given: object, key: str, where: str) -> int:
    value = plain(given)
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
        why = f"{where}: {key} of word_count_range is {short(value)}, not a whole number"
        raise UnusableRow(Fault.RULE, why)
    return int(value)


# VerIF.

_MARKED = re.compile(r"\[(llm|rule)\]")


def _constraint(checker: object, function: object, number: int) -> Constraint:
    where = f"checkers[{number}]"
    whole = text_of(checker, where).strip()
    mark = _MARKED.match(whole) or next(
        (found for found in _MARKED.finditer(whole) if found.end() == len(whole)), None
    )
    if mark is None:
        why = f"{where} has neither [llm] nor [rule] at its beginning or end"
        raise UnusableRow(Fault.CHECKERS, why)
    text = text_of((whole[: mark.start()] + whole[mark.end() :]).strip(), where)
    if mark[1] == "llm":
        return Constraint(text, "soft")
    source = text_of(function, f"functions[{number}]")
    if f"def {FUNCTION}" not in source:
        why = f"functions[{number}] of a rule does not define {FUNCTION}"
        raise UnusableRow(Fault.CHECKERS, why)
    return Constraint(text, "rule", source)
