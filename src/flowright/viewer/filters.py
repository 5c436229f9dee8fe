"""What is asked of a run's attempts, as the query of an address: read, written, and as SQL.

An address that cannot be read is not guessed at: what is wrong with it is said, and the rest holds.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from flowright.core.plugins import suggest
from flowright.viewer.facts import safe
from flowright.viewer.index import first_id
from flowright.viewer.records import MOST_STEPS

NAMED = {
    "kind": "kind",
    "source": "source",
    "outcome": "outcome",
    "failure": "failure",
    "blame": "blame",
    "verdict": "verdict",
    "status": "status",
}
"""Filters that are a column of the combinations, by name."""
MEASURES = ("reward", "advantage", "tokens", "llm_tokens", "calls", "seconds")
"""Filters that are a range of a number, and what attempts can be sorted by beside their step."""
AGAINST = {
    "agree": (("right", "right"), ("wrong", "wrong")),
    "too_generous": (("right", "wrong"),),
    "too_strict": (("wrong", "right"),),
}
"""Judge against gold: pairs (judge, gold)."""
COLUMNS = ("workflow", "prompts", "replies", "reasons")
PLACES = ("problem", *COLUMNS)
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
        """Of ``0.2..0.8``, ``..3``, ``>0.5``, ``<=2``, ``7``; None for anything else."""
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

    def sql(self, column: str) -> tuple[list[str], list[object]]:
        """Conditions on a column, and their values."""
        conditions: list[str] = []
        values: list[object] = []
        if self.low > -math.inf:
            conditions.append(f"{column} {'>' if self.low_open else '>='} ?")
            values.append(self.low)
        if self.high < math.inf:
            conditions.append(f"{column} {'<' if self.high_open else '<='} ?")
            values.append(self.high)
        return conditions, values


@dataclass(frozen=True, slots=True)
class Filter:
    """The selection: values by the names of filters, as they stand in the address; how it is
    sorted, and after which attempt a page begins."""

    values: Mapping[str, str] = field(default_factory=dict)
    sort: str = "step"
    descending: bool = True
    after: str = ""
    problems: tuple[str, ...] = ()

    @staticmethod
    def read(query: Mapping[str, str]) -> "Filter":
        """Out of an address's query (:func:`joined`)."""
        values = {k: safe(query[k].strip()) for k in query if k in _ALL and query[k].strip()}
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
        if "q" in values and words_of(values["q"]) is None:
            problems.append("search: nothing in it can be searched for; write a word or a number")
            del values["q"]
        elif "q" in values and _is_long(values["q"]):
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
        Where a page begins is left out unless it is given."""
        told: dict[str, str] = dict(self.values)
        if self.sort != "step":
            told["sort"] = self.sort
        if not self.descending:
            told["dir"] = "asc"
        for name, value in changes.items():
            name = name.removesuffix("_")
            told.pop(name, None)
            if value:
                told[name] = value
        return urlencode(told)

    def without_page(self) -> "Filter":
        """The selection from its beginning."""
        return replace(self, after="")


def joined(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A query by key; a key that is there more than once has all its values, with commas."""
    told: dict[str, list[str]] = {}
    for key, value in query:
        told.setdefault(key, []).append(value)
    return {
        key: (" " if key == "q" else ",").join(filter(None, values)) for key, values in told.items()
    }


def several(value: str) -> list[str]:
    """The values of a filter: those between its commas, and all of it for a value that has one."""
    return list(dict.fromkeys([value, *(each.strip() for each in value.split(","))]))


def _is_long(search: str) -> bool:
    return len(search) > LONGEST_QUERY or len(_WORD.findall(search)) > MOST_WORDS


def words_of(text: str) -> str | None:
    """A search as FTS5 takes it: all words, phrases in quotes, ``-word`` for none of it, ``wo*``
    for a beginning. None where there is no word to look for. Nothing of it is obeyed as syntax."""
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
    told = " AND ".join(wanted)
    return f"({told}) NOT ({' OR '.join(unwanted)})" if unwanted else told


def step_ids(chosen: Range) -> tuple[int, int]:
    """The ids of the attempts of a range of steps: from the first, to below the second."""
    low = math.ceil(chosen.low) if math.isfinite(chosen.low) else chosen.low
    high = math.floor(chosen.high) if math.isfinite(chosen.high) else chosen.high
    low += bool(chosen.low_open and low == chosen.low)
    high -= bool(chosen.high_open and high == chosen.high)
    bounded = [int(min(max(number, 0), MOST_STEPS)) for number in (low, high + 1)]
    return first_id(bounded[0]), first_id(bounded[1])
