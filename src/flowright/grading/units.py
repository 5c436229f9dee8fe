"""Units of measure and money at the end of an answer, and exact factors between them.

A name that is not in the table is no unit.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

_Unit = tuple[str, Fraction]  # the dimension and how many of its base unit

_PREFIXES = {"n": "1e-9", "µ": "1e-6", "u": "1e-6", "m": "1e-3", "c": "1e-2", "k": "1e3",
             "M": "1e6", "G": "1e9", "": "1"}  # fmt: skip
_LONG_PREFIXES = {"nano": "1e-9", "micro": "1e-6", "milli": "1e-3", "centi": "1e-2",
                  "kilo": "1e3", "mega": "1e6", "giga": "1e9", "": "1"}  # fmt: skip
_SI = {
    "m": "meter metre", "g": "gram", "s": "second", "L": "liter litre", "Hz": "hertz",
    "W": "watt", "V": "volt", "N": "newton", "J": "joule", "Pa": "pascal", "eV": "electronvolt",
}  # fmt: skip
_OTHERS = """
m: inch inches 0.0254, foot feet ft 0.3048, yard yards yd 0.9144, mile miles mi 1609.344
g: lb lbs 453.59237, ounce ounces oz 28.349523125
s: sec secs 1, min mins minute minutes 60, h hr hrs hour hours 3600, day days 86400,
 week weeks 604800
month: month months 1, year years 12, decade decades 120, century centuries 1200
L: l 1, ml 0.001, gallon gallons gal 3.785411784, quart quarts 0.946352946, pint pints 0.473176473
J: cal calorie calories 4.184, kcal kilocalorie kilocalories 4184
$: $ dollar dollars USD 1, cent cents 0.01
€: € euro euros EUR 1
£: £ GBP 1
¥: ¥ yen JPY 1
₹: ₹ rupee rupees INR 1
C: C celsius 1
F: F fahrenheit 1
degree: degree degrees 1
radian: radian radians rad 1
m/s: mph 0.44704, kph kmh 5/18
"""


def _table() -> Iterator[tuple[str, _Unit]]:
    for base, names in _SI.items():
        for prefix, size in _PREFIXES.items():
            yield prefix + base, (base, Fraction(size))
        for prefix, size in _LONG_PREFIXES.items():
            for name in names.split():
                yield prefix + name, (base, Fraction(size))
                yield f"{prefix}{name}s", (base, Fraction(size))
    for line in _OTHERS.replace(",\n", ",").strip().splitlines():
        dimension, _, units = line.partition(":")
        for unit in units.split(","):
            *names, size = unit.split()
            yield from ((name, (dimension, Fraction(size))) for name in names)


_UNITS = {name.replace("µ", "μ"): unit for name, unit in _table()}
_LAST = re.compile(
    r"(?:[\d})\]πi.]|\\pi)\s*(?P<how>square\s|sq\.?\s|cubic\s)?\s?(?P<name>[A-Za-zμ€£$¥₹]{1,16})"
    r"(?:\s?\^?\s?(?P<power>[23²³]))?"
    r"(?:\s?(?:/|\bper\b)\s?(?P<per>[A-Za-zμ]{1,10})(?:\s?\^?\s?(?P<perpower>[23²³]))?)?$"
)
_FIRST = re.compile(r"[^\w$€£¥₹]*([$€£¥₹])\s?[-\d.]")
_BARE = (
    (
        re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname|mbox)\s?\{([^{}]*)\}|\\[,;:! ]|~"),
        r" \1 ",
    ),
    (re.compile(r"(?<=[\d})])\$(?=\s?[A-Za-zμ\\])"), ""),  # the end of mathematics: $3$ km
    (re.compile(r"\\([$])"), r"\1"),
    (re.compile(r"\^\s?\{\s?([23])\s?\}"), r"^\1"),
    (re.compile(r"\^\{?\\circ\}?|°"), " "),
    (re.compile(r"\s+"), " "),
)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "2": 2, "3": 3, "²": 2, "³": 3}
_LONGEST = 500


@lru_cache(maxsize=1024)
def _unit(text: str) -> _Unit | None:
    """The unit that a text ends on, or the currency that it opens with; None where it has none that
    is known."""
    if len(text) > _LONGEST:
        return None
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:
        text = re.sub(r"(?<!\\)\$", "", text)  # pairs of them enclose mathematics
    for pattern, replacement in _BARE:
        text = pattern.sub(replacement, text)
    text = text.strip(" *_`.")
    last = _LAST.search(text)
    if last is None or (unit := _named(last["name"])) is None:
        first = _FIRST.match(text)
        return _UNITS[first[1]] if first else None
    unit = _raised(unit, (last["how"] or "").strip(" .") or last["power"])
    if last["per"] is None:
        return unit
    below = _named(last["per"])
    if below is None:
        return None
    below = _raised(below, last["perpower"])
    return f"{unit[0]}/{below[0]}", unit[1] / below[1]


def is_unit(name: str) -> bool:
    """Return whether a word is the name or the sign of a known unit."""
    return _named(name) is not None


def _named(name: str) -> _Unit | None:
    return _UNITS.get(name) or (_UNITS.get(name.lower()) if len(name) > 3 else None)


def _raised(unit: _Unit, power: str | None) -> _Unit:
    times = _POWERS.get(power or "", 1)
    return (unit[0] if times == 1 else f"{unit[0]}^{times}"), unit[1] ** times


def conversion(answer: str, reference: str) -> Fraction | None:
    """By what a number in the unit of ``answer`` is multiplied to be in that of ``reference``; 1
    where one of both names no known unit, None where they measure different things."""
    one, other = _unit(answer), _unit(reference)
    if one is None or other is None:
        return Fraction(1)
    return one[1] / other[1] if one[0] == other[0] else None
