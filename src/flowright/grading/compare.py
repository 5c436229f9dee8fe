"""The one comparison of an answer with the expected ones, by text.

The gold check, the judge's rules and the vote of ``ensemble`` share it, so they cannot contradict
each other. Pure functions. Expressions that would have to be evaluated are left undecided
(``correct=None``) for a caller with a sandbox.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flowright.data.task import Kind
from flowright.grading.choices import Choices, chosen_label, same_date
from flowright.grading.formulas import is_formula
from flowright.grading.numbers import Quantity, conclusion, lone_number, spelled, with_other_marks
from flowright.grading.text import (
    closed_answer,
    exact_match,
    extract_answer,
    predicate,
    same_spans,
    same_words,
    states_no_answer,
)
from flowright.grading.units import conversion
from flowright.llm.replies import spoken_answer

LONGEST_EXPRESSION = 500

_Found = tuple[bool | None, str, str, bool]
"""Correct, method, what it was read from, and whether it is certain."""


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """``correct`` is None where a computer algebra system has to decide between ``final``, the
    answer without its lead-in, and one of ``expected``. ``method`` names the deciding rule. It is
    not ``certain`` where the rule is a convention rather than the text itself: ``3%`` for 3, the
    last number of a sentence that hedges it. A check has to decide then, a stand-in does not."""

    correct: bool | None
    method: str
    final: str
    expected: tuple[str, ...]
    certain: bool = True


def compare(
    expected: Sequence[str], answer: str, kind: Kind, choices: Choices = ()
) -> AnswerComparison:
    """Compare a solver's ``answer`` with the ``expected`` ones, for a task of mathematics or a
    question. With ``choices`` the first of ``expected`` is the label of the right one. Thinking at
    the start of the answer does not count."""
    answer = spoken_answer(answer)
    final = extract_answer(answer)
    if not answer.strip():
        return AnswerComparison(False, "empty", final, tuple(expected))
    if choices:
        label = label_of(answer, final, choices)
        method = "choice" if label else "no_choice"
        return AnswerComparison(
            label == expected[0], method, label or answer[-200:], (expected[0],)
        )
    found: list[tuple[str, _Found]] = []
    for reference in expected:
        same = _same_value if kind == "math" else _same_text
        # "the slate was wiped clean" may be what is expected, or a statement about the slate.
        read = [same(text, answer, reference) for text in dict.fromkeys((final, predicate(final)))]
        one = next((each for each in read if each[0]), read[-1])
        if one[0]:
            return AnswerComparison(True, one[1], one[2], (reference,), one[3])
        found.append((reference, one))
    open_ones = [(reference, one) for reference, one in found if one[0] is None]
    if open_ones:
        references = tuple(reference for reference, _ in open_ones)
        return AnswerComparison(None, "math_verify", open_ones[0][1][2], references)
    certain = all(one[3] for _, one in found)
    return AnswerComparison(False, found[-1][1][1], final, tuple(expected), certain)


def label_of(answer: str, final: str, choices: Choices) -> str | None:
    read = (chosen_label(text, choices) for text in (answer, final, predicate(final)))
    return next(filter(None, read), None)


def _same_value(final: str, answer: str, reference: str) -> _Found:
    """A number against a number, words against words; formulas are left open."""
    if _unspaced(final) == _unspaced(reference):
        return True, "identical", final, True
    expected = lone_number(reference)
    if expected is not None:
        return _same_number(final, expected, reference)
    plain = [_TEXT.sub(r"\1", text).strip("$ ") for text in (final, reference)]
    based = _BASE.fullmatch(_unspaced(plain[1]))
    if based is not None:
        return _same_based(_unspaced(plain[0]), based), "number", final, True
    if all(clocks := [_CLOCK.fullmatch(text.lower()) for text in plain]):
        one, other = (clock.groups() for clock in clocks if clock)
        return one[:2] == other[:2] and other[2] in (one[2], None), "number", final, True
    if all(map(states_no_answer, plain)):
        return True, "exact_match", final, True
    if _LABELS.fullmatch(plain[1]):
        run = re.fullmatch(r"[A-J]{2,10}", plain[0])
        labels = run or _LABELS.fullmatch(plain[0])
        same = sorted(_LETTER.findall(plain[0])) == sorted(_LETTER.findall(plain[1]))
        return labels is not None and same, "spans", final, True
    if is_words(reference):
        return _same_phrase(plain[0], answer, plain[1])
    if conversion(final, reference) != 1:
        return False, "unit", final, True
    is_short = max(len(final), len(reference)) <= LONGEST_EXPRESSION
    return (None if is_short else False), "math_verify", final, True


_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]{0,500})\}")
_LABEL = re.compile(r"\(?([A-J])[).:]?\)?[\s\\](?!\s*(?:or|and|not|\(?[A-J]\b))", re.IGNORECASE)
_LABELS = re.compile(r"\(?[A-Z]\)?(?:(?:,|\s*\band\b)+\s*\(?[A-Z]\)?)+")
_LETTER = re.compile(r"\b[A-Z]\b|(?<![a-z])[A-J]")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)\s*(?:([ap])\.?\s?m\b\.?)?")


def _same_phrase(final: str, answer: str, reference: str) -> _Found:
    """Words against words: a label, yes and no, a name, a date."""
    labels = [_LABEL.match(text.removeprefix("Option ") + " ") for text in (final, reference)]
    if exact_match(final, reference) or (labels[0] and labels[1] and labels[0][1] == labels[1][1]):
        return True, "exact_match", final, True
    if (expected := closed_answer(reference)) is not None:
        stated = closed_answer(final) or closed_answer(answer)
        return stated == expected, "exact_match", final, stated is not None
    if same_date(final, reference):
        return True, "date", final, True
    stated = _stems(final)[-1]
    return (
        exact_match(stated, reference) or same_words(stated, reference),
        "exact_match",
        final,
        False,
    )


def _same_based(final: str, reference: re.Match[str]) -> bool:
    """The same digits in the same base, which may be left out."""
    found = _BASE.fullmatch(final.rpartition("=")[2])
    if found is None:
        return final.rpartition("=")[2] == reference[1]
    return found[1] == reference[1] and (found[2] or found[3]) == (reference[2] or reference[3])


def _unspaced(text: str) -> str:
    """Without the spaces that say nothing: all but those between digits."""
    head, rest = text[:LONGEST_EXPRESSION], text[LONGEST_EXPRESSION:]
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", head) + rest


def is_words(reference: str) -> bool:
    """Return whether a reference is a word, a name or a label, which algebra may not take for
    variables."""
    plain = re.sub(r"\b(?:and|or)\b", ",", _TEXT.sub(r"\1", reference)).strip("$ ")
    is_label = re.fullmatch(r"\(?[A-J]\)?", plain) is not None
    return is_label or (not is_formula(plain) and re.search(r"[A-Za-z]{3}", plain) is not None)


def _same_number(final: str, expected: Quantity, reference: str) -> _Found:
    """In this order: the whole as one number; what stands behind its last equals sign, "is" or
    colon; a number in words; a formula, left open; the last number of prose."""
    if _NO_CLAIM.search(final[-LONGEST_EXPRESSION:]):
        return False, "several", final, False
    stems = _stems(final)
    for stem in stems:
        found = lone_number(stem)
        if found is not None:
            return _same_lone(stem, found, final, expected, reference)
    based = _BASE.fullmatch(stems[-1])
    if based is not None and int(max(based[1])) < int(based[2] or based[3]):
        value = Quantity(Fraction(int(based[1], int(based[2] or based[3]))))
        return expected.equals(value), "number", stems[-1], True
    if _RATIO.fullmatch(stems[-1]):
        return False, "several", final, False
    found = spelled(stems[-1]) or spelled(final)
    if found is not None:
        return expected.equals(found), "number", final, True
    if is_formula(stems[-1]):
        is_short = len(stems[-1]) <= LONGEST_EXPRESSION
        return (None if is_short else False), "math_verify", stems[-1], True
    decimal = with_other_marks(final) if _DECIMAL_COMMA.search(final) else None
    if decimal is not None and expected.equals(decimal):
        return True, "decimal_comma", final, False  # 3,5 may be a list of two
    last = conclusion(final)
    if last is None:
        return False, "no_number", final, True
    if last.standing != "free":
        return False, "several", final, last.standing == "several"
    equal = expected.equals(last.value)
    certain = _is_plain_prose(final) if equal else not any(map(expected.equals, last.before))
    return equal, "last_number", final, certain


def _same_lone(
    stem: str, found: Quantity, final: str, expected: Quantity, reference: str
) -> _Found:
    """One number against another, each with what may be its unit."""
    factor = conversion(stem, reference)
    if factor != 1:
        equal = factor is not None and expected.equals(Quantity(found.value * factor))
        return equal, "unit", stem, True
    equal = expected.equals(found)
    if equal and found.percent != expected.percent and found.value == expected.value != 0:
        # 0.75% is no 0.75, but 75% may be what a reference of 75 is meant to be; 0% is 0.
        return abs(expected.value) >= 1, "percent", stem, False
    if equal and not _is_solved(final):
        return True, "equation", stem, False
    return equal, "number", stem, equal or not _is_other_reading(stem, found, expected)


def _is_other_reading(text: str, found: Quantity, expected: Quantity) -> bool:
    """Return whether a different number may be the expected one in another notation: ``1.000`` for
    a thousand, ``1.5 hours`` for 90 minutes, ``3 million`` where millions are asked for."""
    other = with_other_marks(text)
    if other is not None and expected.equals(other):
        return True
    has_unit = re.search(r"[A-Za-z$€£¥₹]", text) is not None
    pairs = ((found.value, expected.value), (expected.value, found.value))
    return has_unit and any(one and other / one in _FACTORS for one, other in pairs)


_FACTORS = frozenset(
    (2, 3, 4, 7, 10, 12, 16, 24, 30, 36, 52, 60, 100, 144, 365, 1000, 1440, 3600, 10**6, 10**9)
)
"""Between units of time, length, weight and money."""
_DECIMAL_COMMA = re.compile(r"^\D*\d+,(?:\d{1,2}|\d{4,})\D*$")
_BASE = re.compile(r"(\d{1,99})_(?:\{([2-9]|10)\}|([2-9]|10))")
_RATIO = re.compile(r"\s*\d[\d.,]*\s?:\s?\d[\d.,:]*(?:\s?[ap]\.?m\.?)?\s*", re.IGNORECASE)
_NO_CLAIM = re.compile(
    r"\b(?:whether|unclear|unknown|unsure|untrue|doubt\w*|false|neither|either"
    r"|\d[\d.,]{0,20}[\s-]?[A-Za-z]{0,12}\s+or\s+(?!more|less|fewer|so\b|[-+$€£\d])"
    r"|(?:not|cannot|can't)\s+(?:be\s+)?(?:true|sure|certain|known|say|tell|determined?))\b"
    r"|[A-Za-z]{2}[^?]*\?\W*$",
    re.IGNORECASE,
)
"""Words that turn a text with a number into one that does not offer it as the answer."""
_SAYS = re.compile(r"\b(?:is|are|was|were|equals|gives|makes|costs|totals)\b|:|≈|\\approx\b")
_EQUATIONS = re.compile(r"=[^=]{0,200}(?:[,;]|\b(?:and|or)\b|\\text)[^=]{0,200}=")


def _stems(final: str) -> list[str]:
    """Yield the answer, and its final part: after the last equals sign, unless several equations
    are listed, and after the last copula."""
    stems = [final]
    if not _EQUATIONS.search(final[-LONGEST_EXPRESSION:]):
        stems.append(final.rpartition("=")[2])
    end = 0
    for stated in _SAYS.finditer(stems[-1]):
        end = stated.end()
    if not _RATIO.fullmatch(stems[-1].strip()):
        stems.append(stems[-1][end:])
    # An exclamation mark is a factorial only where there are no words.
    behind = "*_`$.!" if re.search(r"[A-Za-z]{3}", final) else "*_`$."
    bare = [stem.strip().lstrip("*_`$").rstrip(behind).strip() for stem in stems]
    return [stem for stem in bare if stem] or [final]


def _is_solved(final: str) -> bool:
    """Return whether the left side of an equals sign is no formula still to be solved: ``2x``,
    ``x^2``."""
    left = final.partition("=")[0] if "=" in final else ""
    return re.search(r"\d\s?[A-Za-z]\b|[A-Za-z]\s?\^|[²³√]|\\sqrt", left) is None


_HEDGES = re.compile(
    r"\b(?:between|from|at (?:least|most)|up to|nearly|almost|about|around|roughly"
    r"|maybe|perhaps|possibly|if|unless|could|might|may|wrong|incorrect|instead|rather|cannot|can't|isn't|not|no|step"
    r"|question|problem|equation|part|case|chapter|figure|table|example|option|choice)\b"
    r"|[a-z]\s?[,;]\s?\d[^a-z]*$",
    re.IGNORECASE,
)
_MONTH = re.compile(r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b", re.IGNORECASE)


def _is_plain_prose(final: str) -> bool:
    """Return whether the last number of a sentence is its answer beyond doubt."""
    last = final[-200:]
    return not (_HEDGES.search(last) or _MONTH.search(last) or len(re.findall(r"=", last)) > 1)


def _same_text(final: str, answer: str, reference: str) -> _Found:
    """A bare number as in mathematics; else exact match after normalisation, for dates and lists in
    another order."""
    expected, found = lone_number(reference), lone_number(final)
    # Normalised text has no signs: "-5" and "5!" would match "5".
    if expected is not None and not any(map(str.isalpha, reference)):
        return _same_number(final, expected, reference)
    if expected is not None and found is not None:
        same = _same_lone(final, found, final, expected, reference)
        if not same[0] or same[1] == "unit" or _same_nouns(final, reference):
            return same
    if exact_match(final, reference) or exact_match(answer, reference):
        is_same = final.casefold() == reference.casefold()
        return True, "exact_match", final, is_same or not is_formula(reference)  # x+1 and x*1
    if same_date(final, reference):
        return True, "date", final, True
    if same_spans(final, reference) and reference[0] not in "([":  # a pair has an order
        return True, "spans", final, any(map(str.isalpha, reference))
    if (closed := closed_answer(reference)) is not None:
        stated = closed_answer(final) or closed_answer(answer)
        return stated == closed, "exact_match", final, stated is not None
    return same_words(final, reference), "exact_match", final, True


def _same_nouns(final: str, reference: str) -> bool:
    """Return whether two numbers count the same thing, in one word, which one of them may leave
    out: ``3 yards`` and ``3``, not ``Apollo 11`` and ``11``. An ordinal counts nothing."""
    if _ORDINAL.search(final) or _ORDINAL.search(reference):
        return False
    one, other = (_NOUN.findall(text) for text in (final, reference))
    if one and other:
        return [word.lower().rstrip("s") for word in one] == [
            word.lower().rstrip("s") for word in other
        ]
    return len(one + other) <= 1 and all(_COUNT.match(text) for text in (final, reference))


_ORDINAL = re.compile(r"\d(?:st|nd|rd|th)\b|\b(?:under|over|below|above)\b", re.IGNORECASE)
_NOUN = re.compile(r"(?!(?:thousand|million|billion|trillion|percent)\b)[A-Za-z]{2,}")
_COUNT = re.compile(r"(?:US)?[$€£¥₹]?\s?[-+]?[\d.,]+(?:[\s-]+(?:[a-z].*)?|%)?$")
