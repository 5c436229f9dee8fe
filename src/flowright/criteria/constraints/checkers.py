"""All checkers by id, and how one is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowright.core.plugins import suggest
from flowright.criteria.constraints import (
    ifbench_counts,
    ifbench_custom,
    ifbench_form,
    ifbench_words,
    ifeval_form,
    ifeval_words,
)
from flowright.criteria.constraints.table import Arguments, BadArguments, Factory, Kind, Met, Table

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

LANGUAGE = "en:"  # before the ids of M-IFEval's English part, which is IFEval

_LANGUAGE_SEEDS = 6


@dataclass(frozen=True, slots=True)
class Checker:
    """One instruction of a prompt."""

    id: str
    kind: Kind
    met: Met


def make(name: str, values: Mapping[str, Any], kind: Kind = "canonical", seed: int = 0) -> Checker:
    """A checker from its id and the arguments of a row, of which those that are null don't count.
    ``seed`` is of what the benchmark draws: see :func:`seeds`. Raises BadArguments."""
    name = name.removeprefix(LANGUAGE)
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


def seeds(name: str, values: Mapping[str, Any]) -> int:
    """With how many seeds the canonical checker is to be asked, for all that it may say: 1 where
    the benchmark draws nothing; every letter; of a language, a few."""
    name = name.removeprefix(LANGUAGE)
    if name == ifeval_words.LETTER:
        drawn = ifeval_words.draws_a_letter(str(values.get("letter") or ""))
        return len(ifeval_words.LETTERS) if drawn else 1
    return _LANGUAGE_SEEDS if name in ifeval_words.DETECTING else 1
