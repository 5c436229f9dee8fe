"""What around a number makes another value of it: ``sqrt(3)``, ``3!``, ``half of 3``, ``3 or 4``.

Patterns for :mod:`flowright.grading.numbers` and :mod:`flowright.grading.compare`; nothing is
evaluated and no number is read here.
"""

import re

_NEAR = 40  # characters on each side that can change a number
_FUNCTIONS = (
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|sqrt|cbrt|max|min|gcd|lcm|mod|floor|ceil"
)
_FUNCTION = re.compile(rf"(?<![A-Za-z])(?:{_FUNCTIONS})(?![A-Za-z])", re.IGNORECASE)
_BEFORE = re.compile(
    rf"(?:(?<![A-Za-z])(?:{_FUNCTIONS})(?:_?\w{{1,3}})?"
    r"|\b(?:not(?:\s+(?!so\b|but\b)[a-z]+\.?){0,4}|never|isn't|half(?:\s+of)?|twice|thrice|double|triple|plus|minus|times|over|under"
    r"|below|above|(?:divi|multipl|increas|decreas|reduc|rais|grow)\w*\s+by|modulo|choose|without|except|between|before|after|since|until"
    r"|^\W*(?:at\s+(?:least|most)|up\s+to)"
    r"|(?:roots?|logarithm|factorial|reciprocal|inverse|opposite|square|cube|power|multiple)\s+of"
    r"|(?:more|less|fewer|greater|larger|smaller|bigger|higher|lower|other|rather)\s+than)"
    r"|[√∛∜±∓<>≤≥≠≮≯|^*/×÷·⋅+&#_!\\({\[])\s?[$€£¥₹]?\s?[-+]?$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\s?[\^*/×÷·⋅+²³¹⁰⁴-⁹₀-₉½⅓⅔¼¾⅛√π∞<>=≤≥≠|_‰:&\\)}\]({\[]"
    r"|\s?[-‐-―−]\s?(?=[\w\\(])"
    r"|!(?=\s*$|[^\s\w])"
    r"|\s(?:squared|cubed|factorial|plus|minus|divided|multiplied|modulo|choose|halves|thirds"
    r"|quarters|fifths|tenths|hundredths|dozens?|hundred|pi|tau|to\s+the|and\s+(?:a|one|an)"
    r"\s+(?:half|quarter|third|fifth|eighth|tenth)|or\s+(?:more|less|fewer|so|greater))\b"
    r"|\s(?:times|x|more\s+than|less\s+than|fewer\s+than|over|choose|mod)\s+(?:[A-Za-z]|\d+)\b(?!\w)",
    re.IGNORECASE,
)
# What may be written right at a number, and what letters may stand alone behind one: all other
# letters there are variables, and the number their coefficient.
_UNIT_NAMES = """
km cm mm nm um µm m kg mg g lb lbs oz ft in yd mi h hr hrs min mins s sec secs ms ns L l ml mL dl kl
kb mb gb tb KB MB GB TB kW W kWh V A Hz kHz MHz GHz Pa kPa N J kJ kcal cal mol rad deg mph kph kmh
pts pt pp usd USD eur EUR gbp GBP am pm AM PM st nd rd th gal cents c sq eV keV MeV nC mC µC mT mA
mV kV kN mN pF nF µF
"""
_UNITS = frozenset(_UNIT_NAMES.split())
_LETTERS = frozenset("mgshLlWVJNCFKMTA")
_SHORT_WORDS = "of in is at on by so as to us we he it am pm if up"
_SHORT = _UNITS | frozenset(_SHORT_WORDS.split())
_ATTACHED = re.compile(r"[A-Za-zµα-ωΑ-Ω]+")
_FIRST = re.compile(r"\s+([A-Za-zµα-ωΑ-Ω]+)")
_POWER = re.compile(
    r"(?P<before>\d\s{0,2}|/\s?)(?P<name>[A-Za-zµ]{1,12})\s?(?:\^\s?(?:[23](?!\d)|\{[23]\})|[²³])"
)
_RATE = re.compile(
    r"\s{0,2}(?P<of>[A-Za-zµ$€£]{1,12})\s?/\s?(?P<per>[A-Za-zµ]{1,12})(?=\s*[.,;!?)]*\s*$)"
)
_MEASURES = _UNITS | frozenset(("units", "unit", "meters", "metres", "feet", "inches", "miles"))


def changed(before: str, after: str, text_has_words: bool) -> bool:
    """Whether what stands right before or after a number makes it a part of an expression, a bound,
    a denial or another number: ``log 3``, ``more than 3``, ``not 3``, ``3 squared``, ``3k``. In a
    text with words an exclamation mark is one, and else a factorial."""
    before, after = before[-_NEAR:], after[:_NEAR]
    if text_has_words and after.startswith("!"):
        after = after.lstrip("!")
    return bool(_BEFORE.search(before) or _AFTER.match(after)) or is_coefficient(after)


def is_coefficient(after: str) -> bool:
    """Whether letters behind a number are variables and no unit: ``3x``, ``3 ab``, ``3k``, ``3π``;
    not ``3 km``, ``3rd``, ``3 m``, ``3 apples``."""
    attached = _ATTACHED.match(after)
    if attached:
        return attached[0] not in _UNITS
    first = _FIRST.match(after)
    if first is None or len(first[1]) > 2:
        return False
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
    """Whether a text names a mathematical function."""
    return _FUNCTION.search(text) is not None


_OR = re.compile(r"(?:[^.;!?]{0,30}[\s,])?(?:or|vs\.?|versus)(?:[\s,:$€£]|maybe|perhaps){0,12}")
_RANGE = re.compile(r"\s*(?:[-‐-―−~]|\.\.+|to\b|through\b|and/or\b|/)\s*[$€£]?\s*")
_PARTS = re.compile(
    r"\s?(?:(?:out\s+)?of(?:\s+the)?|in|per|(?:dollars?|euros?|pounds?|lbs?|hours?|hrs?|h|minutes?"
    r"|mins?|days?|weeks?|months?|years?|feet|foot|ft|yards?|miles?|kg|km|m)(?:\s?,|\s+and)?)\s?",
    re.IGNORECASE,
)


def offers_both(between: str) -> bool:
    """Whether what stands between two numbers offers both: ``3 or 4``, ``3 to 4``, ``3-4``."""
    return len(between) <= 60 and bool(_OR.fullmatch(between) or _RANGE.fullmatch(between))


def makes_one(between: str) -> bool:
    """Whether what stands between two numbers makes one of both: ``3 of 4``, ``3 hours 20``."""
    return len(between) <= 60 and bool(_PARTS.fullmatch(between))
