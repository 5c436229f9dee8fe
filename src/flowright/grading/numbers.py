"""Numbers as people write them: commas, currencies, percent, fractions, units, words.

Read by patterns, exactly (as fractions); nothing is evaluated.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from flowright.grading.around import (
    changed,
    makes_one,
    offers_both,
    without_powers,
    without_rate,
)

RELATIVE_TOLERANCE = Fraction(1, 10**6)
LONGEST_ALONE = 2_000  # characters of a number with what may stand around it

_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PLAIN = (
    r"(?:\d{1,3}(?:,\d{3}){1,130}(?!\d)|\d{1,2}(?:,\d{2}){1,60},\d{3}(?![\d,])|\d{1,400})"
    r"(?:\.\d{1,400})?(?:e[-+]?\d{1,2}(?!\w))?"
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
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_HALVES = {"½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "⅛": " 1/8"}
_COUNTED = "yard|mile|point|year|month|week|day|hour|minute|second|foot|inch|meter|dollar|game"
_LATEX = (
    (re.compile(r"^\s*\(?[A-J][).:]\s+(?=\S)"), ""),  # (A) 18
    (re.compile(r"\\[cdt]?frac\s?\{\s?(-?\d+)\s?\}\s?\{\s?(\d+)\s?\}"), r" \1/\2"),
    (re.compile(r"\\[cdt]?frac(\d)(\d)"), r" \1/\2"),
    (
        re.compile(r"(?<![\d.])(\d{0,9})\.(\d{0,9})\\overline\{(\d{1,9})\}"),
        lambda match: _repeating(match[1], match[2], match[3]),
    ),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\^\{?\\circ\}?|\\degree\b|°"), " "),
    (re.compile(r"\{,\}|\\[,!]"), lambda match: "," if match[0] == "{,}" else ""),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\(?:[;: ]|quad\b)|[~\u00a0]"), " "),
    (re.compile("[−–]"), "-"),
    (re.compile(rf"(?<=\d)-(?=(?:{_COUNTED})s?\b)"), " "),  # 17-yard
    (re.compile("[½⅓⅔¼¾⅛]"), lambda match: _HALVES[match[0]]),
    (re.compile(r"\s\([A-Za-z][A-Za-z\s.,']*\)"), " "),  # 18 (eighteen)
    (  # 3 x 10^5, 3 × 10⁻⁵
        re.compile(
            r"(?<=\d)\s?(?:\\times|\\cdot|[×·⋅*x])\s?10"
            r"(?:\s?\^\s?(?:\{\s?([-+]?\d{1,2})\s?\}|([-+]?\d{1,2}))(?![\d.])|([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3}))"
        ),
        lambda match: f"e{match[1] or match[2] or match[3].translate(_RAISED)}",
    ),
    (re.compile(r"(?<=\d)['’\u2009\u202f](?=\d{3}(?!\d))"), ""),  # 1'000, thin spaces
    (  # 1.234.567 and 1.234,5: no other reading is possible
        re.compile(
            r"(?<![\d.,])\d{1,3}(?:(?:\.\d{3}){2,9}(?:,\d{1,9})?|\.\d{3},\d{1,2})(?![\d.,])"
        ),
        lambda match: match[0].translate(_OTHER_MARKS),
    ),
    (
        re.compile(r"(?:^|(?<=[=:])|\b(is|equals))\s*(?:minus|negative)\s+(?=[$€£]?\d)", re.I),
        lambda match: f"{match[1] or ''} -",
    ),
)
_OTHER_MARKS = str.maketrans(".,", ",.")
_SPACED = re.compile(r"[^\d]{0,20}\d{1,3}(?: \d{3}){1,9}[^\d/]{0,20}")  # 1 234 567 by itself
# What may stand around a lone number: words, units, punctuation; no operator, no variable at it.
_AROUND = re.compile(r"(?:[A-Za-z]\w*\s*=\s*)?[^\d+*/^=<>\\{}\[\]()|_√±∓×÷≤≥≠]*")
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


@lru_cache(maxsize=1024)
def lone_number(text: str) -> Quantity | None:
    """The number that the text amounts to, alone or with words and units: ``$1,080``, ``18 dollars
    a day``, ``x = 3/4``, ``50%``. None where there are several, where an operator or bracket makes
    it an expression, and where the text is longer than :data:`LONGEST_ALONE`: that is prose."""
    if len(text) > LONGEST_ALONE:
        return None
    text = _plain(text)
    matches = list(_QUANTITY.finditer(text))
    if len(matches) != 1:
        return None
    match = matches[0]
    before, after = text[: match.start()], without_rate(text[match.end() :])
    if not _AROUND.fullmatch(before) or not _AROUND.fullmatch(after):
        return None
    if re.match(r"_|\.\w", after) or re.search(r"[A-Za-z_]$", before):
        return None
    sign = match["sign"] or ""
    lead = before.rstrip()
    if changed(before, after, _has_words(text)) or (
        _VARIABLE_BEFORE.search(lead) and (sign or lead[-1] == "-")
    ):
        return None  # log 3, 3x, 5 - x, x - 5, n-1
    if sign != sign.rstrip() and lead and lead[-1] not in "=:":
        return None  # an operator, not a sign
    return _value(match)


def with_other_marks(text: str) -> Quantity | None:
    """The number of a text whose commas are read as points and whose points as commas, as much of
    Europe writes: ``3,5`` and ``1.000``. None where that makes no lone number."""
    return lone_number(text.translate(_OTHER_MARKS)) if re.search(r"\d[.,]\d", text) else None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The number that prose ends on. ``standing``: ``free``; ``changed`` by what is right at it,
    which makes another number of it or none; ``part`` of what the number before it belongs to, too
    (``3 of 4``); ``several`` where both are offered. ``before`` are up to 49 before it."""

    value: Quantity
    standing: Literal["free", "changed", "part", "several"]
    before: tuple[Quantity, ...] = ()


_BETWEEN = re.compile(r"\b(?:between|from)\b[^.\d]*$", re.IGNORECASE)
_LIST = re.compile(r"(?:and|[\s\d.,;%$€£+-])*")


def conclusion(text: str) -> Conclusion | None:
    """The last number of a text, and how it stands there; None without any."""
    text = _plain(text)
    matches = list(_QUANTITY.finditer(text))
    last = matches[-1] if matches else None
    previous = matches[-2] if len(matches) > 1 else None
    value = None if last is None else _value(last)
    if last is None or value is None:
        return None
    between = "" if previous is None else text[previous.end() : last.start()].strip(" ")
    lead = "" if previous is None else text[: previous.start()][-40:]
    if previous is not None and (offers_both(between) or _BETWEEN.search(lead)):
        return Conclusion(value, "several")
    if previous is not None and makes_one(between):
        return Conclusion(value, "part")
    if previous is not None and _LIST.fullmatch(text):
        return Conclusion(value, "several")  # a list: 3, 4 and 5
    start = last.end() - len(last[0].lstrip())
    is_attached = re.search(r"[A-Za-z_\d.]$", text[:start]) is not None
    after = without_rate(text[last.end() :])
    is_changed = is_attached or changed(text[:start], after, _has_words(text))
    values = tuple(found for match in matches[-50:-1] if (found := _value(match)) is not None)
    return Conclusion(value, "changed" if is_changed else "free", values)


def _repeating(whole: str, fixed: str, repeated: str) -> str:
    """A repeating decimal as a fraction: 0.1(6) is (16 - 1) / 90."""
    less = int((whole + fixed) or "0")
    below = 10 ** len(fixed) * (10 ** len(repeated) - 1)
    return f" {int(whole + fixed + repeated) - less}/{below}"


def _has_words(text: str) -> bool:
    return re.search(r"[A-Za-z]{3}", text) is not None


def _plain(text: str) -> str:
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    text = without_powers(text)
    if len(text) < 80 and _SPACED.fullmatch(text):
        return re.sub(r"(?<=\d) (?=\d{3})", "", text)
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
