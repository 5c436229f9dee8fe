"""Prompts with their instructions, answers, and others' verdicts, out of files.

Answers are joined to prompts by the prompt's exact text, as IFEval's own program does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.criteria.constraints.checkers import LANGUAGE, make
from flowright.criteria.constraints.table import KINDS, BadArguments
from flowright.data.sources.rows import UpstreamRow
from flowright.data.tables import read_table

_SHOWN = 10  # problems of a file


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row of a benchmark: what is asked, and the instructions with the arguments of each."""

    key: str
    text: str
    ids: tuple[str, ...]
    arguments: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Whether each instruction of a prompt was followed. None for a reading that nobody gave."""

    strict: tuple[bool, ...] | None
    loose: tuple[bool, ...] | None


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The rows of IFEval's, IFBench's or M-IFEval's English file: ``key``, ``prompt``,
    ``instruction_id_list`` and ``kwargs``. Raises DataError with the place of each row that cannot
    be used, an unknown id or argument included."""
    prompts: dict[str, Prompt] = {}
    problems: list[str] = []
    for row in read_table(path):
        try:
            prompt = prompt_of(row)
            if prompt.text in prompts:
                raise row.error(f"the prompt was that of key {prompts[prompt.text].key}, too")
        except DataError as error:
            problems += error.problems
            continue
        prompts[prompt.text] = prompt
    if problems or not prompts:
        raise DataError(*(problems[:_SHOWN] or [f"{path}: no prompt in it"]))
    return tuple(prompts.values())


def prompt_of(row: UpstreamRow) -> Prompt:
    """What a row asks, and by which instructions. Raises DataError."""
    key = str(row.values.get("key", row.name))
    ids, arguments = row.items("instruction_id_list"), row.items("kwargs")
    if not ids or len(ids) != len(arguments):
        raise row.error(f"key {key}: {len(ids)} instructions, arguments of {len(arguments)}")
    for name, values in zip(ids, arguments, strict=True):
        if not isinstance(name, str) or not isinstance(values, dict):
            raise row.error(f"key {key}: an instruction is a text, its arguments are an object")
        try:
            for kind in KINDS:
                make(name, values, kind)
        except BadArguments as error:
            raise row.error(f"key {key}: {error}") from None
    ids = tuple(name.removeprefix(LANGUAGE) for name in ids)
    return Prompt(key, _exact(row, "prompt"), ids, tuple(arguments))


def read_answers(paths: Iterable[Path]) -> dict[str, str]:
    """Answers by prompt, of rows ``prompt`` and ``response``. Raises DataError."""
    answers: dict[str, str] = {}
    for path in paths:
        for row in read_table(path):
            prompt, answer = _exact(row, "prompt"), _exact(row, "response")
            if answers.setdefault(prompt, answer) != answer:
                raise row.error("another answer to this prompt stands above; keep one of them")
    return answers


def read_verdicts(paths: Sequence[Path]) -> dict[str, Verdicts]:
    """Others' verdicts by prompt: rows ``prompt``, ``strict`` and ``loose``, or those of IFEval's
    program, ``prompt`` and ``follow_instruction_list``, whose file's name says strict or loose.
    Raises DataError."""
    found: dict[str, dict[str, tuple[bool, ...]]] = {}
    for path in paths:
        for row in read_table(path):
            readings = found.setdefault(_exact(row, "prompt"), {})
            if "follow_instruction_list" in row:
                readings[_reading(path)] = _flags(row, "follow_instruction_list")
            else:
                readings |= {name: _flags(row, name) for name in ("strict", "loose")}
    return {p: Verdicts(each.get("strict"), each.get("loose")) for p, each in found.items()}


def _reading(path: Path) -> str:
    for name in ("strict", "loose"):
        if name in path.name:
            return name
    raise DataError(f"{path}: the name of a file of verdicts says strict or loose")


def _flags(row: UpstreamRow, name: str) -> tuple[bool, ...]:
    values = row.items(name)
    if not all(isinstance(value, bool) for value in values):
        raise row.error(f"{name} is a list of true and false")
    return tuple(values)


def _exact(row: UpstreamRow, name: str) -> str:
    """Line ends included, unlike :meth:`UpstreamRow.text`: checkers see them."""
    value = row.get(name)
    if not isinstance(value, str):
        raise row.error(f"{name} is {type(value).__name__}, not a string")
    return value
