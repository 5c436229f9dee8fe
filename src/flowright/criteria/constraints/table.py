"""Tables of checkers, and the arguments that they read.

A checker is made once from the arguments of a row and then applied to any number of answers. It is
stateless and deterministic: where a benchmark draws at random, it draws by ``seed``.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

Kind = Literal["canonical", "fixed"]
"""``canonical``: as the benchmark's own program decides, quirk by quirk, so that scores compare
with published ones. ``fixed``: as the instruction reads; the same but for the checkers of
:attr:`CheckerTable.reasons`."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Met = Callable[[str], bool]
"""Returns whether an answer follows the instruction, in time linear in its length."""

LESS_THAN, AT_LEAST = "less than", "at least"


class BadArguments(ValueError):
    """Raised for invalid checker arguments."""


class Arguments:
    """The arguments of one instruction. What is null is absent, and only that: 0 is a number."""

    def __init__(self, values: Mapping[str, Any], seed: int = 0) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._unread = set(self._values)
        self.seed = seed

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number, as IFBench's data writes them, too: 5.0."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise BadArguments(f"{name} is {value!r}, not a whole number")
        if value < least:
            raise BadArguments(f"{name} is {value!r}; it is at least {least}")
        return int(value)

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not value.strip():
            raise BadArguments(f"{name} is {value!r}, not a text")
        return value

    def texts(self, name: str) -> list[str]:
        values = self._get(name)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadArguments(f"{name} is {values!r}, not a list of texts")
        return values

    def pattern(self, name: str, before: str = "", after: str = "") -> re.Pattern[str]:
        """A text that the benchmark takes for a regular expression; without regard to case."""
        return compiled(before + self.text(name).strip() + after)

    def compare(self, relation: str, number: str) -> Callable[[int], bool]:
        """Return a comparison of counts with a number: below it, or not."""
        limit, name = self.whole(number), self.text(relation)
        if name == LESS_THAN:
            return lambda count: count < limit
        if name == AT_LEAST:
            return lambda count: count >= limit
        raise BadArguments(f"{relation} is {name!r}, not {LESS_THAN!r} or {AT_LEAST!r}")

    def end(self) -> None:
        """Raise BadArguments for an argument that was not used."""
        if self._unread:
            raise BadArguments(f"unknown argument {', '.join(sorted(self._unread))}")

    def _get(self, name: str) -> Any:
        self._unread.discard(name)
        if name not in self._values:
            raise BadArguments(f"{name} is missing")
        return self._values[name]


Factory = Callable[[Arguments], Met]


class CheckerTable:
    """Checkers by id: of each the canonical one and, where it reads otherwise, the fixed."""

    def __init__(self) -> None:
        self.canonical: dict[str, Factory] = {}
        self.fixed: dict[str, Factory] = {}
        self.reasons: dict[str, str] = {}
        """By id of those that are fixed: what the canonical one gets wrong."""

    def add(self, name: str) -> Callable[[Factory], Factory]:
        return lambda factory: self.canonical.setdefault(name, factory)

    def fix(self, name: str, reason: str) -> Callable[[Factory], Factory]:
        self.reasons[name] = reason
        return lambda factory: self.fixed.setdefault(name, factory)

    def plain(self, name: str) -> Callable[[Met], Met]:
        """A canonical checker that takes no arguments."""

        def added(met: Met) -> Met:
            self.canonical[name] = lambda arguments: met
            return met

        return added

    def plain_fix(self, name: str, reason: str) -> Callable[[Met], Met]:
        def added(met: Met) -> Met:
            self.fix(name, reason)(lambda arguments: met)
            return met

        return added


def compiled(pattern: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """A pattern out of the data. Raises BadArguments for what is no regular expression."""
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise BadArguments(f"{pattern!r} is no regular expression: {error}") from None


def whole_word(word: str) -> re.Pattern[str]:
    """The word as it is written, without regard to case, with no letter, digit or underscore
    beside it; ``\\b`` would want one beside a word that ends in a mark."""
    return re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE)


class Sought:
    """A word that a pattern finds: looked for as it is first, since most texts lack it, and a
    search without regard to case takes ten times as long."""

    def __init__(self, word: str, pattern: re.Pattern[str]) -> None:
        word = word.strip().lower()
        self._word = word if _AS_IT_IS.fullmatch(word) else ""
        self._pattern = pattern

    def is_in(self, text: str) -> bool:
        return self._may_be_in(text) and self._pattern.search(text) is not None

    def count(self, text: str) -> int:
        return len(self._pattern.findall(text)) if self._may_be_in(text) else 0

    def _may_be_in(self, text: str) -> bool:
        return self._word in text.lower() or _LIKE_ASCII.search(text) is not None


_AS_IT_IS = re.compile("[a-z0-9 ]*")
_LIKE_ASCII = re.compile("[\u0130\u0131\u017f\u212a]")  # found for i, i, s and k
