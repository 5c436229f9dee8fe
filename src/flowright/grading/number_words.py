"""Numbers in words: ``three``, ``minus two``, ``one hundred and five dollars``. English alone."""

import re
from fractions import Fraction

from flowright.grading.numbers import Quantity

_UNDER_20 = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_IN_WORDS = {word: number for number, word in enumerate(_UNDER_20.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_OTHER_NAMES = "hundred half halves quarter third thirds dozen once twice"
_OTHERS = frozenset(_OTHER_NAMES.split())
_WORKING = """
and or more less fewer times plus minus squared cubed factorial over point percent by to is pi mod
choose fifths fourths quarters tenths
"""
_NO_UNITS = frozenset(_WORKING.split())
_PARTS = {"half": 2, "quarter": 4} | {
    name: size
    for size, name in enumerate(
        ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), 3
    )
}
_ORDINALS = frozenset(_PARTS) | {"first", "second"}
_PLURALS = {"halves": 2} | {f"{name}s": size for name, size in _PARTS.items() if name != "half"}
_LONGEST = 200  # characters


def _names_number(text: str) -> bool:
    """Whether any word of the text is a number's: ``three``, ``half``."""
    words = re.findall(r"[a-z]+", text.lower())
    return any(word in _IN_WORDS or word in _SCALES or word in _OTHERS for word in words)


def spelled(text: str) -> Quantity | None:
    """The number that a text spells out and that is all of it but a unit of at most two words; None
    where it does not open with one, has more behind it, or is no number as one says them."""
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
        elif word in _SCALES and part:
            total, part, room = total + part * _SCALES[word], 0, 1000
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
        part = _PARTS.get(name)
        is_ordinal = rest[:1] == [name] and name != "half"
        return Fraction(1, part) + (whole or 0) if part and not is_ordinal else None
    named = _PARTS if whole == 1 else _PLURALS
    return Fraction(whole, named[rest[0]]) if len(rest) == 1 and rest[0] in named else None
