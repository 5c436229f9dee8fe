"""All checkers by id, and how one is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowright.constraints import (
    ifbench_counts,
    ifbench_custom,
    ifbench_form,
    ifbench_words,
    ifeval_form,
    ifeval_words,
)
from flowright.constraints.table import Arguments, BadArguments, Factory, Kind, Met, Table
from flowright.plugins import suggest

BENCHMARKS: Mapping[str, tuple[Table, ...]] = {
    "ifeval": (ifeval_words.TABLE, ifeval_form.TABLE),
    "ifbench": (
        ifbench_counts.TABLE,
        ifbench_words.TABLE,
        ifbench_form.TABLE,
        ifbench_custom.TABLE,
    ),
}
_TABLES = tuple(table for tables in BENCHMARKS.values() for table in tables)
IDS: Mapping[str, Factory] = {
    name: factory for table in _TABLES for name, factory in table.canonical.items()
}
FIXED: Mapping[str, Factory] = {
    name: factory for table in _TABLES for name, factory in table.fixed.items()
}
REASONS: Mapping[str, str] = {
    name: reason for table in _TABLES for name, reason in table.reasons.items()
}
"""By id of the checkers whose kinds differ: what the canonical one gets wrong."""

_LANGUAGE = "en:"  # before the ids of M-IFEval's English part, which is IFEval


@dataclass(frozen=True, slots=True)
class Checker:
    """One instruction of a prompt."""

    id: str
    kind: Kind
    met: Met


def make(name: str, values: Mapping[str, Any], kind: Kind = "canonical", seed: int = 0) -> Checker:
    """A checker from its id and the arguments of a row, of which those that are null don't count.
    ``seed`` is of what the benchmark draws: see :func:`is_drawn`. Raises BadArguments."""
    name = name.removeprefix(_LANGUAGE)
    canonical = IDS.get(name)
    if canonical is None:
        raise BadArguments(f"unknown instruction {name!r}{suggest(name, list(IDS))}")
    factory = FIXED.get(name, canonical) if kind == "fixed" else canonical
    arguments = Arguments(values, seed)
    try:
        met = factory(arguments)
        arguments.end()
    except BadArguments as error:
        raise BadArguments(f"{name}: {error}") from None
    return Checker(name, kind, met)


def is_drawn(name: str, values: Mapping[str, Any]) -> bool:
    """Whether the canonical checker may say something else with another seed."""
    name = name.removeprefix(_LANGUAGE)
    letter = values.get("letter")
    if isinstance(letter, str):
        return ifeval_words.draws_a_letter(letter)
    return name in ifeval_words.DRAWN

