"""Numbers as people write them: commas, currencies, percent, fractions, units.

Read by patterns, exactly (as fractions); nothing is evaluated.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

RELATIVE_TOLERANCE = Fraction(1, 10**6)

_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PLAIN = (
    r"(?:\d{1,3}(?:,\d{3}){1,130}(?!\d)|\d{1,400})(?:\.\d{1,400})?(?:e[-+]?\d{1,2}(?!\w))?"
    r"|\.\d{1,400}"
)
_QUANTITY = re.compile(
    rf"(?P<sign>(?<![\w.)])[-+]\s?)?[$€£¥₹]?\s?"
    rf"(?:(?P<whole>\d{{1,9}})\s+(?=\d+\s?/\s?\d))?"
    rf"(?P<number>{_PLAIN})"
    rf"(?:\s?/\s?(?P<divisor>\d{{1,400}})(?![\d.]))?"
    rf"(?P<tail>\s?(?:%|percent\b)|\s(?:{'|'.join(_SCALES)})\b)?",
    re.IGNORECASE,
)
_LATEX = (
    (re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}"), r" \1/\2"),
    (re.compile(r"\\[dt]?frac(\d)(\d)"), r" \1/\2"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\^\{?\\circ\}?"), " "),
    (re.compile(r"\{,\}|\\[,!]"), lambda match: "," if match[0] == "{,}" else ""),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\[;: ]|~"), " "),
    (re.compile("[−–]"), "-"),
    (re.compile(r"\s\([A-Za-z][A-Za-z\s.,']*\)"), " "),  # 18 (eighteen)
)
# What may stand around a lone number: words, units, punctuation; no operator, no variable at it.
_AROUND = re.compile(r"(?:[A-Za-z]\w*\s*=\s*)?[^\d+*/^=<>\\{}\[\]()|_]*")
_MINUS_VARIABLE = re.compile(r"\s*-\s*[A-Za-z](?![A-Za-z])")
_VARIABLE_BEFORE = re.compile(r"(?<![A-Za-z])[A-Za-z]\s*-?$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that was written somewhere; of ``50%`` the value is 50 and ``percent`` is true."""

    value: Fraction
    percent: bool = False

    def equals(self, other: "Quantity") -> bool:
        """Equality, whole numbers exactly and others within a relative 1e-6; a percentage equals
        the number that is written before its sign as well as the fraction that it stands for."""
        if _close(self.value, other.value):
            return True
        if self.percent == other.percent:
            return False
        return _close(self._plain, other._plain)

    @property
    def _plain(self) -> Fraction:
        return self.value / 100 if self.percent else self.value


def _close(one: Fraction, other: Fraction) -> bool:
    if one.denominator == 1 and other.denominator == 1:
        return one == other
    return abs(one - other) <= RELATIVE_TOLERANCE * max(abs(one), abs(other))


LONGEST = 4_000  # characters that are looked at, from the end


def quantities(text: str) -> list[Quantity]:
    """Every number of the text, of a long one of its end, in order."""
    return list(_quantities(text[-LONGEST:]))


@lru_cache(maxsize=256)
def _quantities(text: str) -> tuple[Quantity, ...]:
    return tuple(found for match in _QUANTITY.finditer(_plain(text)) if (found := _value(match)))


@lru_cache(maxsize=1024)
def lone_number(text: str) -> Quantity | None:
    """The number that the text amounts to, alone or with words and units: ``$1,080``, ``18 dollars
    a day``, ``x = 3/4``, ``50%``. None where there are several, or where an operator or bracket
    makes it an expression."""
    text = _plain(text)
    matches = list(_QUANTITY.finditer(text))
    if len(matches) != 1:
        return None
    match = matches[0]
    before, after = text[: match.start()], text[match.end() :]
    if not _AROUND.fullmatch(before) or not _AROUND.fullmatch(after):
        return None
    if re.match(r"[xyzn]\b|_|\.\w", after) or re.search(r"[A-Za-z_]$", before):
        return None
    sign = match["sign"] or ""
    lead = before.rstrip()
    if _MINUS_VARIABLE.match(after) or (
        _VARIABLE_BEFORE.search(lead) and (sign or lead[-1] == "-")
    ):
        return None  # 5 - x, x - 5, n-1
    if sign != sign.rstrip() and lead and lead[-1] not in "=:":
        return None  # an operator, not a sign
    return _value(match)


def _plain(text: str) -> str:
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return text


def _value(match: re.Match[str]) -> Quantity | None:
    digits = match["number"].replace(",", "")
    number = Fraction(int(digits) if digits.isdecimal() else digits)  # an int is ten times as fast
    if match["divisor"] is not None:
        divisor = int(match["divisor"])
        if divisor == 0:
            return None
        number /= divisor
    if match["whole"]:
        number += int(match["whole"])
    if (match["sign"] or "").strip() == "-":
        number = -number
    tail = (match["tail"] or "").strip().lower()
    if tail in _SCALES:
        number *= _SCALES[tail]
    return Quantity(number, percent=tail in ("%", "percent"))
