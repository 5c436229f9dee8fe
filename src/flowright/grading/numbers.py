"""Numbers as people write them: commas, currencies, percent, fractions, units, words.

Read by patterns, exactly (as fractions); nothing is evaluated.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from flowright.grading.statements import DOUBT, LEAD_IN, OF_ANSWERS
from flowright.grading.text import normalise
from flowright.grading.units import is_unit

_NEAR = 40  # characters on each side that can change a number
_FUNCTIONS = (
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|sqrt|cbrt|max|min|gcd|lcm|mod|floor|ceil"
)
_FUNCTION = re.compile(rf"(?<![A-Za-z])(?:{_FUNCTIONS})(?![A-Za-z])", re.IGNORECASE)
_BEFORE = re.compile(
    rf"(?:(?<![A-Za-z])(?:{_FUNCTIONS})(?:_?\d{{1,2}}|_\w{{1,3}})?"
    r"|\b(?:half(?:\s+of)?|twice|thrice|double|triple|plus|minus|times|over|under"
    r"|below|above|about|around|near|by\s+the|(?:divi|multipl|increas|decreas|reduc|rais|grow)\w*\s+by"
    r"|modulo|choose|between|before|after|since|until|non|pre|post|mid|ex"
    r"|(?:roots?|logarithm|factorial|reciprocal|inverse|opposite|square|cube|power|multiple)\s+of"
    r"|(?:more|less|fewer|greater|larger|smaller|bigger|higher|lower|other|rather)\s+than)"
    r"|[√∛∜±∓<>≤≥|^*/×÷·⋅+&#_!\\({\[])\s?[$€£¥₹]?\s?[-+]?$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\s?[\^*/×÷·⋅+√π∞<>=≤≥|_‰:&\\)}\]({\[]"
    r"|\s?-\s?(?=[\w\\(])|-(?=\W*$)|\.\.|…"
    r"|!(?=\s*$|[^\s\w])"
    r"|\sB\.?C\b|\s(?:squared|cubed|factorial|plus|minus|divided|multiplied|modulo|choose|halves"
    r"|thirds|quarters|fifths|tenths|hundredths|dozens?|score|gross|hundred|pi|tau|negative|only|mod"
    r"|(?:fewer|less)(?!\s+\w+\s+than)|tops|max|when|for\s+(?:odd|even|(?:all|some|any)\s+[a-z]\b)|to\s+the|and\s+(?:a|one|an)"
    r"\s+(?:half|quarter|third|fifth|eighth|tenth)|or\s+(?:more|less|fewer|so|greater))\b"
    r"|\s(?:times|x|more\s+than|less\s+than|fewer\s+than|over|choose|mod)\s+(?:[A-Za-z]|\d+)\b(?!\w)",
    re.IGNORECASE,
)
# What may be written right at a number, and what letters may stand alone behind one: all other
# letters there are variables, and the number their coefficient.
_UNIT_NAMES = """
km cm mm nm um μm m kg mg g lb lbs oz ft in yd mi h hr hrs min mins s sec secs ms ns L l ml mL dl kl
kb mb gb tb KB MB GB TB kW W kWh V A Hz kHz MHz GHz Pa kPa N J kJ kcal cal mol rad deg mph kph kmh
pts pt pp usd USD eur EUR gbp GBP am pm AM PM st nd rd th gal cents c sq eV keV MeV nC mC μC mT mA
mV kV kN mN pF nF μF
"""
_UNITS = frozenset(_UNIT_NAMES.split())
_LETTERS = frozenset("mgshLlWVJNCFKMTA")
_SHORT_WORDS = "of in is at on by so as to us we he it am pm if up"
_SHORT = _UNITS | frozenset(_SHORT_WORDS.split())
_ATTACHED = re.compile(r"[A-Za-zμα-ωΑ-Ω]+")
_ARTICLE = re.compile(r"\s+a\s+[A-Za-z]{3}")
_FIRST = re.compile(r"\s+([A-Za-zμα-ωΑ-Ω]+)")
_POWER = re.compile(
    r"(?P<before>\d\s{0,2}|/\s?)(?P<name>[A-Za-zμ]{1,12})\s?(?:\^\s?(?:[23](?!\d)|\{[23]\})|[²³])"
)
_RATE = re.compile(
    r"\s{0,2}(?P<of>[A-Za-zμ$€£]{1,12})\s?/\s?(?P<per>[A-Za-zμ]{1,12})(?=\s*[.,;!?)]*\s*$)"
)
_MEASURES = _UNITS | frozenset(("units", "unit", "meters", "metres", "feet", "inches", "miles"))


def changed(before: str, after: str, text_has_words: bool) -> bool:
    """Return whether the text right before or after a number makes it a part of an expression, a
    bound, a denial or another number: ``log 3``, ``more than 3``, ``not 3``, ``3 squared``, ``3k``.
    In a text with words an exclamation mark is punctuation, and else a factorial."""
    before, after = before[-_NEAR:], after[:_NEAR]
    if text_has_words and after.startswith("!"):
        after = after.lstrip("!")
    return bool(_BEFORE.search(before) or _AFTER.match(after)) or is_coefficient(after)


def is_coefficient(after: str) -> bool:
    """Return whether letters behind a number are variables and no unit: ``3x``, ``3 ab``, ``3k``,
    ``3π``; not ``3 km``, ``3rd``, ``3 m``, ``3 apples``."""
    attached = _ATTACHED.match(after)
    if attached:
        return attached[0] not in _UNITS
    first = _FIRST.match(after)
    if first is None or len(first[1]) > 2:
        return False
    if first[1] == "a" and _ARTICLE.match(after):
        return False  # $150 a year
    return first[1] not in (_LETTERS if len(first[1]) == 1 else _SHORT)


def without_powers(text: str) -> str:
    """A text in which the units behind numbers have lost their powers: ``3 m`` for ``3 m^2``."""
    return _POWER.sub(
        lambda unit: f"{unit['before']}{unit['name']}" if unit["name"] in _MEASURES else unit[0],
        text,
    )


def without_rate(after: str) -> str:
    """The text behind a number without the rate that is all of it: ``km/h``, ``dollars/hour``."""
    rate = _RATE.match(after) if len(after) <= _NEAR else None
    known = rate and all(len(rate[n]) > 3 or rate[n] in _UNITS | {"$"} for n in ("of", "per"))
    return after[rate.end() :] if rate and known else after


def has_function(text: str) -> bool:
    """Return whether a text names a mathematical function."""
    return _FUNCTION.search(text) is not None


_OR = re.compile(r"(?:[^.;!?]{0,30}[\s,])?(?:or|vs\.?|versus)(?:[\s,:$€£]|maybe|perhaps){0,12}")
_RANGE = re.compile(r"\s*(?:[-~]|\.\.+|to\b|through\b|and/or\b|/)\s*[$€£]?\s*")
_PARTS = re.compile(
    r"\s?(?:(?:out\s+)?of(?:\s+the)?|in|per|(?:dollars?|euros?|pounds?|lbs?|hours?|hrs?|h|minutes?"
    r"|mins?|days?|weeks?|months?|years?|feet|foot|ft|yards?|miles?|kg|km|m)(?:\s?,|\s+and)?)\s?",
    re.IGNORECASE,
)


def offers_both(between: str) -> bool:
    """Return whether the text between two numbers offers both: ``3 or 4``, ``3 to 4``, ``3-4``."""
    return len(between) <= 60 and bool(_OR.fullmatch(between) or _RANGE.fullmatch(between))


def makes_one(between: str) -> bool:
    """Return whether the text between two numbers joins them into one: ``3 of 4``, ``3 hours
    20``."""
    return len(between) <= 60 and bool(_PARTS.fullmatch(between))


RELATIVE_TOLERANCE = Fraction(1, 10**6)
_NEAR_WHOLE = Fraction(1, 10**4)
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
    (re.compile(r"\\([$%])|\bUS(?=\$)"), r"\1"),
    (re.compile(r"\\(?:[;: ]|quad\b)|~(?!\s?\d)"), " "),
    (re.compile(rf"(?<=\d)-(?=(?:{_COUNTED})s?\b)"), " "),  # 17-yard
    (  # 18 (eighteen), 15 (5 * 3)
        re.compile(r"\s\((?:[A-Za-z][A-Za-z\s.,']*|[\d\s.+*/×x-]*[+*/×x][\d\s.+*/×x-]*)\)"),
        lambda match: match[0] if DOUBT.search(match[0]) else " ",
    ),
    (  # 3 x 10^5, 3 × 10⁻⁵
        re.compile(
            r"(?<=\d)\s?(?:\\times|\\cdot|[×·⋅*x])\s?10"
            r"(?:\s?\^\s?(?:\{\s?([-+]?\d{1,2})\s?\}|([-+]?\d{1,2}))(?![\d.]))"
        ),
        lambda match: f"e{match[1] or match[2]}",
    ),
    (  # 10^-3
        re.compile(r"(?<![\w.^)}])10\s?\^\s?(?:\{\s?(-?\d{1,2})\s?\}|\(?(-?\d{1,2})\)?)(?![\w.^])"),
        lambda match: f"1e{match[1] or match[2]}",
    ),
    (re.compile(r"(?<=\d)'(?=\d{3}(?!\d))"), ""),  # 1'000
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
# What may stand around a lone number: words, currencies, punctuation; no operator and no relation.
_AROUND = re.compile(
    r"(?:[\s*_$(]*(?:[A-Za-z]\w{0,20}(?:\([^()=]{1,30}\))?|\\angle\s?[A-Z]{1,3})\s*[=≈]\s*)?"
    r"(?:[^\W\d_]|[\s.,;:'\"!$€£¥₹%°≈=*`-])*"
)
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
    tolerance = RELATIVE_TOLERANCE * max(abs(one), abs(other))
    if one.denominator == 1 or other.denominator == 1:
        tolerance = min(tolerance, _NEAR_WHOLE)  # 3400002.5 is not 3400000
    return abs(one - other) <= tolerance


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """The one number of a text. It is not ``certain`` where a sentence of other words holds it."""

    value: Quantity
    certain: bool


def lone_number(text: str) -> Quantity | None:
    """The number that the text amounts to, alone or with words and units: ``$1,080``, ``18 dollars
    a day``, ``x = 3/4``, ``50%``. None where there are several, where an operator or bracket makes
    it an expression, where the words deny or doubt it, and where the text is longer than
    :data:`LONGEST_ALONE`: that is prose."""
    found = stated_number(text)
    return found and found.value


@lru_cache(maxsize=1024)
def stated_number(text: str) -> StatedNumber | None:
    """:func:`lone_number`, and whether the text states it as an answer and no more."""
    if len(text) > LONGEST_ALONE:
        return None
    text = _plain(normalise(text))
    matches = list(_QUANTITY.finditer(text))
    if len(matches) != 1:
        return None
    match = matches[0]
    start = match.end() - len(match[0].lstrip())
    before, after = text[:start], without_rate(text[match.end() :])
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
    value, is_certain = _value(match), _standing(before, after)
    return None if value is None or is_certain is None else StatedNumber(value, is_certain)


def leading_number(text: str) -> tuple[Quantity, str] | None:
    """The number that a text begins with, and the rest; None where the rest changes or joins it."""
    text = _plain(text[:LONGEST_ALONE]).lstrip(" *_$(")
    match = _QUANTITY.match(text)
    value = match and _value(match)
    if match is None or value is None:
        return None
    after = without_rate(text[match.end() :])
    word = _ATTACHED.match(after)
    after_unit = after[word.end() :] if word and len(word[0]) > 2 else after
    is_part = changed("", after_unit, True) or _NOT_ALONE.match(after)
    return None if is_part else (value, after)


_NOT_ALONE = re.compile(
    r"\s*(?:or|and|to|,|;)\s*[$€£]?\d|\s?(?:[A-Za-z]+\s)?(?:is|are|was|were)\s(?:not|wrong|incorrect"
    r"|false|too|im\w+|an?\s)|.*\b(?:wrong|incorrect|false|mistak\w+|error)\b",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"[\s*_$]*(?:(?-i:[A-Z])|(?:the|an?|it|they|he|she|we|i|there|this|that|these|those|his|her|its"
    r"|their|each|every|all|both|my|our|your|in|on)\b)",
    re.IGNORECASE,
)
_LABELLED = re.compile(
    r"\b(?:of|from|and|step|question|problem|equation|part|case|chapter|figure|table|example|option"
    r"|choice|line|page|item|number|no\.?)[\s$€£*_]*$",
    re.IGNORECASE,
)
_TOTAL_OF = re.compile(
    r"\b(?:an?|the|total)\s+(?:[a-z]+\s+)?(?!divisor|multiple|factor|square|power|part)[a-z]+\s+of[\s$€£*_]*$|\b(?:sum|total)\s+of[\s$]*$",
    re.I,
)
_ADVERB = re.compile(r"(?<!\w)[a-z]+(?:ab|ib|ed|ent|ful|ugh|at|ar|eged)ly\b")
_IS = re.compile(r"\b(?:is|are|was|were|has|have|had|does|do|did|will|can|would)\b", re.IGNORECASE)
_REMAINS = re.compile(
    r"\s?[A-Za-z]+(?:\s[A-Za-z]+){0,5}?\s(?:is|are|was|were|will\sbe)\s(?!too\b|so\b|an?\b|the\b)"
    r"[a-z]+(?:\s[^.,;:]*)?[\s.!*_]*",
    re.IGNORECASE,
)
_MORE_THAN = re.compile(  # 6 more pages than he; not 6 more than he
    r"^\s(?:(?:more|fewer|less)\s\w+(?:\s\w+)?|\w+\s(?:\w+er|more|less|fewer))\s+than\b[^.,;:?!\d]*"
)
_LATIN = re.compile("[^\u0370-\u1dff\u2e80-\uffff]*")
_COUNTED_IN = re.compile("(?:(?![不非错没是])[\u4e00-\u9fff]){1,3}[.\\s]*|です[.\\s]*")
_TAIL = "a an per each in total all altogether square cubic sq units unit"
_TAIL_WORDS = frozenset(_TAIL.split())


def _standing(before: str, after: str) -> bool | None:
    """Return whether what stands around a number states it as the answer: True for a lead-in and a
    unit alone, False for a sentence about something, None for a sentence that denies, hedges,
    bounds or conditions it, and for words that are no sentence."""
    after = _MORE_THAN.sub("", after)
    if DOUBT.search(before) or DOUBT.search(after) or _ADVERB.search(before.casefold()):
        return None
    if re.search(r"^\s+and\b|(?<!sq)[.;:!]\s+\w|^(?:st|nd|rd|th)\s+[a-z]", after) or _names_number(
        after
    ):
        return None
    if re.match(r"\s[a-z]+s\s(?:the|it|this|that)\b", after):
        return None  # 6 violates the condition
    words = re.findall(r"[^\W\d_]+", after)
    is_alone = all(word.lower() in _TAIL_WORDS or is_unit(word) for word in words)
    is_led = LEAD_IN.fullmatch(before) is not None
    if is_led and is_alone:
        return True
    if _IS.search(after) and not _REMAINS.fullmatch(after):
        return None  # 6 is too small
    if is_led:
        return False if _LATIN.fullmatch(after) or _COUNTED_IN.fullmatch(after) else None
    if OF_ANSWERS.search(before) or not _LATIN.fullmatch(before + after):
        return None
    is_sentence = _SUBJECT.match(before) and len(before.split()) > 1
    is_label = _LABELLED.search(before) and not _TOTAL_OF.search(before)
    return False if is_sentence and not is_label else None


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
    text = _plain(normalise(text))
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
    # "9 instead of 8" begins with a number; "Each of the 4 children gets 8" with what it is about.
    is_told = _SUBJECT.match(text) and _standing(text[:start], after) is not None
    is_changed = is_attached or not is_told or changed(text[:start], after, _has_words(text))
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


_UNDER_20 = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_IN_WORDS = {word: number for number, word in enumerate(_UNDER_20.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
_WORD_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_OTHER_NAMES = "hundred half halves quarter third thirds dozen once twice"
_OTHERS = frozenset(_OTHER_NAMES.split())
_WORKING = """
and or more less fewer times plus minus squared cubed factorial over point percent by to is pi mod
choose fifths fourths quarters tenths
"""
_NO_UNITS = frozenset(_WORKING.split())
_WORD_PARTS = {"half": 2, "quarter": 4} | {
    name: size
    for size, name in enumerate(
        ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), 3
    )
}
_ORDINALS = frozenset(_WORD_PARTS) | {"first", "second"}
_PLURALS = {"halves": 2} | {
    f"{name}s": size for name, size in _WORD_PARTS.items() if name != "half"
}
_LONGEST = 200  # characters


def _names_number(text: str) -> bool:
    """Return whether any word of the text is a number's: ``three``, ``half``."""
    words = re.findall(r"[a-z]+", text.lower())
    return any(word in _IN_WORDS or word in _WORD_SCALES or word in _OTHERS for word in words)


def spelled(text: str) -> Quantity | None:
    """Return the number that a text spells out, with at most two words of a unit behind it; None
    for a text that opens otherwise, goes on, or is not a well-formed number."""
    if len(text) > _LONGEST:
        return None
    words = re.findall(r"[a-z]+|[^\sa-z]", text.lower().replace("-", " "))
    sign = -1 if words and words[0] in ("minus", "negative") else 1
    words = words[1:] if sign < 0 else words
    total = part = used = 0
    room = 1000  # what comes next must be below: 20 leaves room for 1 to 9, 7 for nothing
    for word in words:
        if word in _IN_WORDS and _IN_WORDS[word] < room:
            part += _IN_WORDS[word]
            room = 10 if part % 100 >= 20 and part % 10 == 0 else 1
        elif word == "hundred" and 0 < part < 10:
            part, room = part * 100, 100
        elif word in _WORD_SCALES and part:
            total, part, room = total + part * _WORD_SCALES[word], 0, 1000
        elif word != "and" or not used:
            break
        used += 1
    rest = words[used:]
    whole = total + part
    share = _share(whole if used else None, words[used - 1] == "and" if used else False, rest)
    if share is not None:
        return Quantity(sign * share)
    if rest == ["percent"]:
        return Quantity(Fraction(sign * whole), percent=True) if used else None
    if not used or words[used - 1] == "and" or len(rest) > 2 or not all(map(str.isalpha, rest)):
        return None
    known = _NO_UNITS | _ORDINALS
    if any(word in known or len(word) < 2 or _names_number(word) for word in rest):
        return None
    return Quantity(Fraction(sign * whole))


def _share(whole: int | None, is_more: bool, rest: list[str]) -> Fraction | None:
    """Parts in words: ``half``, ``a third``, ``three quarters``, ``two and a half``; None for an
    ordinal, such as ``twenty fifth``, and where there is more."""
    if whole is None or is_more:
        name = rest[-1] if len(rest) == 1 + (rest[:1] in (["a"], ["one"])) else ""
        part = _WORD_PARTS.get(name)
        is_ordinal = rest[:1] == [name] and name != "half"
        return Fraction(1, part) + (whole or 0) if part and not is_ordinal else None
    named = _WORD_PARTS if whole == 1 else _PLURALS
    return Fraction(whole, named[rest[0]]) if len(rest) == 1 and rest[0] in named else None
