"""How many of a text's tokens are all in capitals: between two counts that are quick to make.
NLTK's tokens themselves are made only where those two differ in what they say.

A token never reaches over white space, and never ends within letters and digits in a row, but for
the contractions below.
"""

import re
from collections.abc import Callable

from flowright.criteria.constraints.language import tokens

_RUN = re.compile(r"\w+")
_NEGATED = re.compile("n't|N'T")
_PARTED = frozenset(["cannot", "gimme", "gonna", "gotta", "lemme", "wanna", "tis", "twas"])
_CASED_MARKS = re.compile("[\u0345\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169"
                          "\U0001f170-\U0001f189]")  # fmt: skip
"""With a case, and neither letters nor digits."""


def capitals_are(enough: Callable[[int], bool], text: str) -> bool:
    """Whether there are enough tokens in capitals; ``enough`` compares with a number."""
    low, high = _between(text)
    if high is not None and enough(low) == enough(high):
        return enough(low)
    return enough(sum(map(str.isupper, tokens(text))))


def _between(text: str) -> tuple[int, int | None]:
    """The least and the most that there may be; None where nothing is known."""
    if _CASED_MARKS.search(text):
        return 0, None
    low = high = 0
    for part, lower in zip(text.split(), text.lower().split(), strict=True):
        if part == lower or (part[1:2].islower() and part[1:] == lower[1:]):
            continue  # no capital but the first of a word
        least, most = _of_part(part)
        if _NEGATED.search(part):
            parted = [_of_part(each) for each in _NEGATED.sub(r" \g<0>", part).split()]
            least = min(least, sum(one for one, _ in parted))
            most = max(most, sum(other for _, other in parted))
        low += least
        high += most
    return low, high


def _of_part(part: str) -> tuple[int, int]:
    """Of what white space surrounds."""
    runs = [run for run in _RUN.findall(part) if run.lower() != run.upper()]
    if any(run.lower() in _PARTED for run in runs):
        return 0, 2 * len(runs)
    capitals = sum(map(str.isupper, runs))
    return int(0 < capitals == len(runs)), capitals
