"""A selection of attempts: read from the query of an address, and written as one.

What cannot be read of an address is reported, and the rest holds.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from flowright.core.plugins import suggest
from flowright.viewer.index import first_id
from flowright.viewer.rollout_records import MOST_STEPS, escape_surrogates

NAMED = ("kind", "source", "outcome", "failure", "blame", "verdict", "status", "stop", "baseline")
"""Filters that are a field of the combinations."""
MEASURES = ("reward", "advantage", "turns", "tokens", "llm_tokens", "calls", "seconds")
"""Filters that are a range of a number, and what attempts can be sorted by beside their step."""
AGAINST = {
    "agree": (("right", "right"), ("wrong", "wrong")),
    "too_generous": (("right", "wrong"),),
    "too_strict": (("wrong", "right"),),
}
"""Judge against gold: pairs (judge, gold)."""
PLACES = ("problem", "workflow", "prompts", "replies", "reasons")
"""Texts that are searched."""
SORTS = ("step", *MEASURES)
_ALL = frozenset({*NAMED, *MEASURES, "step", "against", "repair", "operator", "task", "q", "in"})
_MORE = frozenset({"sort", "dir", "after"})
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"
_RANGE = re.compile(
    rf"(?:(?P<low>{_NUMBER})?\s*\.\.\s*(?P<high>{_NUMBER})?"
    rf"|(?P<sign>>=|<=|>|<|=)?\s*(?P<one>{_NUMBER}))",
    re.IGNORECASE,
)
_WORD = re.compile(r'(-?)"([^"]*)"?(\*?)|(-?)([^\s"]+)')
LONGEST_QUERY = 500
LONGEST_RANGE = 100  # characters
MOST_WORDS = 12


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two ends, either of which may be open or left out."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    @staticmethod
    def read(text: str) -> "Range | None":
        """Parse ``0.2..0.8``, ``..3``, ``>0.5``, ``<=2``, ``7``; None for anything else."""
        found = _RANGE.fullmatch(text.strip()) if len(text) <= LONGEST_RANGE else None
        if found is None or text.strip() == "..":
            return None
        if found["one"] is None:
            low, high = found["low"], found["high"]
            return Range(float(low or -math.inf), float(high or math.inf))
        one, sign = float(found["one"]), found["sign"] or "="
        if sign == "=":
            return Range(one, one)
        if sign[0] == ">":
            return Range(low=one, low_open=sign == ">")
        return Range(high=one, high_open=sign == "<")

    def sql(self, column: str) -> tuple[str, list[object]]:
        """The condition on a column, and its values."""
        low, high = (">" if self.low_open else ">="), ("<" if self.high_open else "<=")
        return f"{column} {low} ? AND {column} {high} ?", [self.low, self.high]


@dataclass(frozen=True, slots=True)
class Filter:
    """A selection: values by the names of filters, as they stand in the address; its order, and the
    key of the attempt after which a page begins."""

    values: Mapping[str, str] = field(default_factory=dict)
    sort: str = "step"
    descending: bool = True
    after: str = ""
    problems: tuple[str, ...] = ()

    @staticmethod
    def read(query: Mapping[str, str]) -> "Filter":
        """Read an address's query (:func:`merge_query`)."""
        values = {
            k: escape_surrogates(query[k].strip()) for k in query if k in _ALL and query[k].strip()
        }
        problems = [
            f"{key[:60]}: no filter has this name{suggest(key, [*_ALL, *_MORE])}"
            for key in query
            if key not in _ALL | _MORE
        ]
        for name in ("step", *MEASURES):
            if name in values and Range.read(values[name]) is None:
                problems.append(
                    f"{name}: {values.pop(name)[:60]!r} is no range; write 0.2..0.8, >0.5 or 7"
                )
        if {*values.get("against", "agree").replace(" ", "").split(",")} - AGAINST.keys():
            problems.append(f"against: one or more of {', '.join(AGAINST)}")
            del values["against"]
        if values.get("in", "problem") not in PLACES:
            problems.append(f"in: one of {', '.join(PLACES)}")
            del values["in"]
        if "q" in values and fts_query(values["q"]) is None:
            problems.append("search: nothing in it can be searched for; write a word or a number")
            del values["q"]
        elif len(search := values.get("q", "")) > LONGEST_QUERY or (
            len(_WORD.findall(search)) > MOST_WORDS
        ):
            problems.append(
                f"search: the first {MOST_WORDS} words within {LONGEST_QUERY} characters are "
                "looked for"
            )
        sort = query.get("sort", "step")
        if sort not in SORTS:
            problems.append(f"sort: one of {', '.join(SORTS)}")
            sort = "step"
        down = query.get("dir", "desc") != "asc"
        return Filter(values, sort, down, query.get("after", ""), tuple(problems))

    def query(self, **changes: str | None) -> str:
        """The query of an address: this one with some values changed, None to leave one out.
        The beginning of a page is left out unless it is given."""
        order = {"sort": "" if self.sort == SORTS[0] else self.sort}
        order["dir"] = "" if self.descending else "asc"
        changed = {name.removesuffix("_"): value for name, value in changes.items()}
        merged = {**self.values, **order, **changed}
        return urlencode({name: value for name, value in merged.items() if value})


def merge_query(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Merge a query by key; a repeated key has all its values, with commas."""
    merged: dict[str, str] = {}
    for key, value in query:
        both = (merged.get(key), value)
        merged[key] = (" " if key == "q" else ",").join(filter(None, both))
    return merged


def split_values(value: str) -> list[str]:
    """The values of a filter: those between its commas, and all of it for a value that has one."""
    return list(dict.fromkeys([value, *(each.strip() for each in value.split(","))]))


def fts_query(text: str) -> str | None:
    """Translate a search for FTS5: all words, phrases in quotes, ``-word`` for none of it, ``wo*``
    for a beginning. None where there is no word to look for. Nothing in it acts as syntax."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for match in list(_WORD.finditer(text[:LONGEST_QUERY]))[:MOST_WORDS]:
        minus = match[1] or match[4]
        word = match[2] if match[5] is None else match[5]
        star = (match[3] or "") if match[5] is None else "*" * word.endswith("*")
        word = word.rstrip("*").replace("\0", " ")
        if not any(letter.isalnum() for letter in word):
            continue
        quoted = '"' + word.replace('"', '""') + '"' + star
        (unwanted if minus else wanted).append(quoted)
    if not wanted:
        return None
    positive = " AND ".join(wanted)
    return f"({positive}) NOT ({' OR '.join(unwanted)})" if unwanted else positive


def step_ids(chosen: Range) -> tuple[int, int]:
    """The ids of the attempts of a range of steps: from the first, to below the second."""
    low = math.ceil(chosen.low) if math.isfinite(chosen.low) else chosen.low
    high = math.floor(chosen.high) if math.isfinite(chosen.high) else chosen.high
    low += bool(chosen.low_open and low == chosen.low)
    high -= bool(chosen.high_open and high == chosen.high)
    bounded = [int(min(max(number, 0), MOST_STEPS)) for number in (low, high + 1)]
    return first_id(bounded[0]), first_id(bounded[1])
