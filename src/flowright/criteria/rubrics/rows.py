"""Rows of rubric files and of VerIF's: types, forms and reading."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flowright.core.errors import DataError
from flowright.core.tables import read_object
from flowright.data.contamination import conversation_key
from flowright.data.row_files import (
    Fault,
    RowFile,
    UnusableRow,
    column,
    decoded,
    items_of,
    plain,
    read_row_files,
    short,
    text_of,
    turns_of,
)
from flowright.data.task import Conversation


@dataclass(frozen=True, slots=True)
class WordCount:
    """Met by an answer with this number of words between white space; both ends count."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class MathAnswer:
    """Met by an answer whose final value is this one."""

    reference: str


Rule = WordCount | MathAnswer
"""A criterion that code decides."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a rubric: a statement about the answer, and what it is worth where it holds;
    ``points`` below 0 are for what an answer must not do. The judge decides it where there is no
    ``rule``. ``tags`` are the row's own labels, such as axis and level."""

    criterion: str
    points: float
    rule: Rule | None = None
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class RubricRow:
    """A conversation that ends with the user, and the rubric of its answer, of which at least one
    item has points above 0. ``id`` is the place in its file, file:row."""

    conversation: Conversation
    items: tuple[Item, ...]
    source: str = ""
    ability: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One of VerIF's: ``soft`` ones are the judge's, a ``rule`` has a ``function``, the source of
    Python that a model wrote and that runs in the sandbox alone."""

    text: str
    kind: Literal["soft", "rule"]
    function: str = ""


@dataclass(frozen=True, slots=True)
class VerifRow:
    """A conversation that ends with the user, and the constraints on its answer, one or more."""

    conversation: Conversation
    constraints: tuple[Constraint, ...]
    source: str = ""
    ability: str = ""
    id: str = ""

    @property
    def instruction(self) -> str:
        """The user's last request, with the constraints in it."""
        return self.conversation[-1].content


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
        rule = f"verifier {short(verifier)} with function {short(name)}"
        known = "llm, or rule with math_verify or word_count_range"
        raise UnusableRow(Fault.RULE, f"{where}: {rule}; known is {known}")
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


def read_rubrics(paths: Sequence[Path]) -> RowFile[RubricRow]:
    """The rubric rows of files, in their order. Raises DataError for files that cannot be read, all
    of them at once, where no row is left, and for criteria that a manifest has frozen otherwise."""
    found = read_row_files(paths, rubric_row, "rubric row")
    for path in paths:
        frozen = manifest_path(path)
        rows = [row for row in found.rows if row.id.rpartition(":")[0] == str(path)]
        if frozen.is_file() and read_object(frozen).get(FROZEN) != criteria_sha256(rows):
            raise DataError(
                f"{path}: its criteria are not those that {frozen.name} has frozen and measured; "
                "restore the file, make it again, or remove the manifest"
            )
    return found


FROZEN = "criteria_sha256"


def manifest_path(path: Path) -> Path:
    """Return the manifest of frozen rubrics: ``bank.jsonl`` has ``bank.rubrics.json``."""
    return path.with_name(f"{path.stem}.rubrics.json")


def criteria_sha256(rows: Iterable[RubricRow]) -> str:
    """Return the digest of rows' conversations, criteria and points, in any order."""
    lines = (
        json.dumps(
            [conversation_key(row.conversation), [(i.criterion, i.points) for i in row.items]]
        )
        for row in rows
    )
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def read_verif(paths: Sequence[Path]) -> RowFile[VerifRow]:
    """The rows of VerIF's files, in their order. Raises DataError as :func:`read_rubrics`."""
    return read_row_files(paths, verif_row, "row with checkers")
