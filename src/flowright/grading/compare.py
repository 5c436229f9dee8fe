"""The one comparison of an answer with the expected ones, by text.

The gold check, the judge's rules and the vote of ``ensemble`` share it, so they cannot contradict
each other. Pure functions. Expressions that would have to be evaluated are left undecided
(``correct=None``) for a caller with a sandbox.
"""

import ast
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flowright.data.task import Kind
from flowright.grading.choices import Choices, chosen_label, same_date
from flowright.grading.formulas import as_text, can_be_read, is_formula, stated_formula
from flowright.grading.numbers import (
    Quantity,
    conclusion,
    leading_number,
    lone_number,
    spelled,
    stated_number,
    with_other_marks,
)
from flowright.grading.statements import (
    CONDITION,
    DOUBT,
    LEAD_IN,
    LONGEST_STATEMENT,
    claims,
    closed_answer,
    extract_answer,
    opening,
    predicate,
    states_no_answer,
    without_lead,
)
from flowright.grading.text import bare, exact_match, normalise, same_spans, same_words, tokens
from flowright.grading.units import conversion
from flowright.llm.replies import spoken_answer

LONGEST_EXPRESSION = 500

_Found = tuple[bool | None, str, str, bool]
"""Correct, method, what it was read from, and whether it is certain."""


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """``correct`` is None where a computer algebra system has to decide between ``final``, the
    answer without its lead-in, and one of ``expected``. ``method`` names the deciding rule. It is
    not ``certain`` where the answer is not stated as such and as no more: a number in a sentence
    about something, a hedge, a text that holds the expected one. A check has to decide then, and
    takes no hedge for right; a stand-in does not."""

    correct: bool | None
    method: str
    final: str
    expected: tuple[str, ...]
    certain: bool = True


def asks_percent(question: str) -> bool:
    """Return whether a question asks for a percentage, so that ``6%`` may stand for 6."""
    return _PERCENT.search(question) is not None


_PERCENT = re.compile(r"percent|per cent|%", re.IGNORECASE)


def compare(
    expected: Sequence[str],
    answer: str,
    kind: Kind,
    choices: Choices = (),
    *,
    is_percent: bool = False,
) -> AnswerComparison:
    """Compare a solver's ``answer`` with the ``expected`` ones, for a task of mathematics or a
    question. With ``choices`` the first of ``expected`` is the label of the right one. Thinking at
    the start of the answer does not count. ``is_percent``: the task asks for a percentage."""
    answer = normalise(spoken_answer(answer))
    expected = tuple(map(normalise, expected))
    final = extract_answer(answer)
    if not answer.strip():
        return AnswerComparison(False, "empty", final, expected)
    if choices:
        label = label_of(answer, final, choices)
        method = "choice" if label else "no_choice"
        return AnswerComparison(
            label == expected[0], method, label or answer[-200:], (expected[0],)
        )
    readings = claims(final)
    if (
        readings
        and (first := opening(final))
        and bare(answer.rstrip().rpartition("\n")[2]) != final
    ):
        readings.append(first)  # "The answer is 8. I hope that this helps."
    found: list[tuple[str, _Found]] = []
    for reference in expected:
        same = _same_value if kind == "math" else _same_text
        one = same(final, answer, readings, reference)
        if one[1] == "percent":
            is_meant = is_percent or (lone_number(reference) or _NOTHING).percent
            one = (bool(one[0]) and is_meant, "percent", one[2], is_percent)
        if one[0]:
            return AnswerComparison(True, one[1], one[2], (reference,), one[3])
        found.append((reference, one))
    open_ones = [(reference, one) for reference, one in found if one[0] is None]
    if open_ones:
        references = tuple(reference for reference, _ in open_ones)
        return AnswerComparison(None, "math_verify", open_ones[0][1][2], references)
    certain = all(one[3] for _, one in found)
    return AnswerComparison(False, found[-1][1][1], final, expected, certain)


_NOTHING = Quantity(Fraction(0))


def label_of(answer: str, final: str, choices: Choices) -> str | None:
    read = (chosen_label(text, choices) for text in (answer, final, predicate(final)))
    return next(filter(None, read), None)


# --- mathematics ----------------------------------------------------------------------------------


def _same_value(final: str, answer: str, readings: Sequence[str], reference: str) -> _Found:
    """A number against a number, words against words; formulas are left open."""
    if _unspaced(final) == _unspaced(reference):
        return True, "identical", final, True
    expected = lone_number(reference)
    if expected is not None:
        return _same_number(final, readings, expected, reference)
    plain = [_TEXT.sub(r"\1", text).strip("$ ") for text in (final, reference)]
    based = _BASE.fullmatch(_unspaced(plain[1]))
    if based is not None:
        return (
            _same_based(_unspaced(without_lead(plain[0]).strip(" $.")), based),
            "number",
            final,
            True,
        )
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
        return _same_phrase(final, answer, readings, plain[1])
    if as_text(final) == as_text(reference):
        return True, "identical", final, True
    formula = next(filter(None, map(stated_formula, readings)), final)
    if not (readings and can_be_read(reference) and can_be_read(formula)):
        return False, "text", final, False
    if conversion(formula, reference) != 1:
        return False, "unit", formula, True
    is_short = max(len(formula), len(reference)) <= LONGEST_EXPRESSION
    return (None if is_short else False), "math_verify", formula, True


_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]{0,500})\}")
_LABEL = re.compile(
    r"\(?(?:([A-J])|([a-j])(?=[).:]))[).:]?\)?[\s\\](?!\s*(?:or|and|not|\(?[A-J]\b))"
)
_LABELS = re.compile(r"\(?[A-Z]\)?(?:(?:,|\s*\band\b)+\s*\(?[A-Z]\)?)+")
_LETTER = re.compile(r"\b[A-Z]\b|(?<![a-z])[A-J]")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)\s*(?:([ap])\.?\s?m\b\.?)?")


def _same_phrase(final: str, answer: str, readings: Sequence[str], reference: str) -> _Found:
    """Words against words: a label, yes and no, a name, a date."""
    if (expected := closed_answer(reference)) is not None:
        stated = closed_answer(final) or closed_answer(answer)
        return stated == expected, "exact_match", final, stated is not None
    for reading in readings:
        parts = (predicate(reading), _stated_words(reading), without_lead(reading))
        for text in dict.fromkeys((reading, *parts)):
            plain = _TEXT.sub(r"\1", text).strip("$ ")
            labels = [
                _LABEL.match(each.removeprefix("Option ") + " ") for each in (plain, reference)
            ]
            letters = {(label[1] or label[2]).upper() if label else label for label in labels}
            same_label = len(letters) == 1 and None not in letters
            if exact_match(plain, reference) or same_label:
                return True, "exact_match", final, text in (final, *readings)
            if same_date(plain, reference):
                return True, "date", final, True
            if same_words(plain, reference):
                return True, "exact_match", final, False
    return False, "exact_match", final, False


_COPULA = re.compile(r"\b(?:is|are|was|were)\b|:")


def _stated_words(text: str) -> str:
    """Return the text behind the last copula of a statement without a doubt."""
    end = max((copula.end() for copula in _COPULA.finditer(text[-LONGEST_EXPRESSION:])), default=0)
    start = max(0, len(text) - LONGEST_EXPRESSION)
    return text if DOUBT.search(text) else text[start + end :].strip(" *_`$.!")


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
    if re.fullmatch(r"\(?[A-J]\)?", plain):
        return True
    return (
        not is_formula(plain)
        and re.fullmatch(r"(?=.*[^\W\d_]{3})[\w\s.,'&()-]*", plain) is not None
    )


def _same_number(final: str, readings: Sequence[str], expected: Quantity, reference: str) -> _Found:
    """By the first reading that states a number, as a whole, behind an equals sign that holds, in
    words, or as a formula, which is left open; else by the last clause and the last number of a
    plain sentence."""
    if not readings:
        return False, "several", final, False
    for reading in readings:
        if proven := _proven(reading):
            value, stem = proven
            end = reading[-LONGEST_EXPRESSION:]
            is_certain = not (DOUBT.search(end) or CONDITION.search(end))
            return _same_lone(stem, value, is_certain, expected, reference)
        stem = _right_side(reading)
        if stem is None:
            continue
        if stated := stated_number(stem):
            is_certain = stated.certain and (stem is reading or _is_solved(reading))
            return _same_lone(stem, stated.value, is_certain, expected, reference)
        plain = stem.strip(" *_`$.")
        based = _BASE.fullmatch(plain)
        if based is not None and int(max(based[1])) < int(based[2] or based[3]):
            value = Quantity(Fraction(int(based[1], int(based[2] or based[3]))))
            return expected.equals(value), "number", plain, True
        if found := _in_words(plain):
            return expected.equals(found), "number", final, True
        is_ratio = _RATIO.fullmatch(plain) is not None
        formula = None if is_ratio or _RELATION.search(plain) else stated_formula(plain)
        if formula is not None:
            is_short = len(formula) <= LONGEST_EXPRESSION
            return (None if is_short else False), "math_verify", formula, True
    decimal = with_other_marks(final) if _DECIMAL_COMMA.search(final) else None
    if decimal is not None and expected.equals(decimal):
        return True, "decimal_comma", final, False  # 3,5 may be a list of two
    return _same_last(readings[-1], final, expected, reference)


def _same_last(text: str, final: str, expected: Quantity, reference: str) -> _Found:
    """By the last clause of a sentence, or its last number."""
    last = conclusion(text)
    if last is None:
        return False, "no_number", final, True
    clause = _CLAUSE.split(text[-LONGEST_EXPRESSION:])[-1]
    text = text[-LONGEST_STATEMENT:]
    is_open = not (
        _EQUATIONS.search(text)
        or DOUBT.search(text)
        or CONDITION.search(text)
        or _RELATION.search(text)
    )
    if (
        is_open
        and text[:1].isalpha()
        and (stem := _right_side(clause))
        and (stated := stated_number(stem))
    ):
        return _same_lone(stem, stated.value, False, expected, reference)
    if not is_open or last.standing != "free":
        return False, "several", final, last.standing == "several"
    return expected.equals(last.value), "last_number", final, False


_CLAUSE = re.compile(r"[,;]\s+|\s(?=(?:so|which|giving|making)\s)")
_RELATION = re.compile(
    r"[<>≠≢≡→←↔⇒⟶⟹↦≲≳≅]|!=|=/=|==|:=|\\(?:ne|neq|le|leq|ge|geq|equiv|to|mapsto|sim)\b"
)


def _in_words(text: str) -> Quantity | None:
    """The number that a text spells out, behind a lead-in or a copula."""
    both = re.fullmatch(r"(.{1,80}) \(([^()]{1,40})\)", text)  # eight (8)
    if both and (value := spelled(both[1])) == lone_number(both[2]):
        return value
    return next(filter(None, map(spelled, (text, without_lead(text), _stated_words(text)))), None)


def _right_side(text: str) -> str | None:
    """The text, or what stands behind its last equals sign; None where the sides differ, where
    something else relates them, and where several equations are listed."""
    if _RELATION.search(text) or _EQUATIONS.search(text[-LONGEST_EXPRESSION:]):
        return None
    *lefts, right = re.split(r"[=≈]|\\approx", text[-LONGEST_EXPRESSION:])
    if not lefts and (whole := _IS.fullmatch(text)) and _arithmetic(whole[1]) is not None:
        lefts, right = [whole[1]], whole[2]  # 40% of 20 is 8
    if not lefts or not any(map(str.strip, lefts)):
        return text
    if DOUBT.search(text) or CONDITION.search(text):
        return None
    value = _arithmetic(right)
    known = [(left, _arithmetic(left)) for left in lefts]
    if value is not None and any(
        other is not None and not _rounds_to(left, other, value, right) for left, other in known
    ):
        return None
    return right


def _proven(text: str) -> tuple[Quantity, str] | None:
    """The right side of the last equation of a text whose left side is arithmetic of that value:
    ``48 / 2 = 24 clips``, whatever the sentence is about."""
    left, sign, right = text[-LONGEST_EXPRESSION:].rpartition("=")
    if not sign or _RELATION.search(text) or (found := leading_number(right)) is None:
        return None
    left = left.rpartition("=")[2][-200:]
    for start in _OPERAND.finditer(left):
        computed = left[start.start() :]
        value = _arithmetic(computed) if _OPERATION.search(computed) else None
        if value is not None:
            is_same = _rounds_to(computed, value, _plain_value(found[0]), right)
            return (found[0], right) if is_same else None
    return None


_OPERAND = re.compile(r"(?<![\d.,])[-(]?[$€£]?\d|\(")
_OPERATION = re.compile(
    r"[\d)a-z%]\s?(?:[-+*/×÷·⋅]|[xX]\s?\d|of\b|\\times|\\cdot|\\div)|\\[cdt]?frac"
)


def _plain_value(number: Quantity) -> Fraction:
    return number.value / 100 if number.percent else number.value


_IS = re.compile(r"(.*\d.{0,40}?)\s(?:is|equals|makes|gives)\s(.*)")


def _is_solved(text: str) -> bool:
    """Return whether the left sides of an equation are a name, or arithmetic."""
    lefts = re.split(r"[=≈]|\\approx|\sis\s", text)[:-1]
    return all(
        _arithmetic(left) is not None or LEAD_IN.fullmatch(f"{left.strip()} = ") for left in lefts
    )


def _rounds_to(left: str, exact: Fraction, rounded: Fraction, right: str) -> bool:
    """Return whether the right side is the left one, or a computed left one rounded as it is."""
    if exact == rounded or not re.search(r"\d\D*[-+*/^×÷·%x]|frac|≈", left):
        return abs(exact - rounded) <= Fraction(1, 10**6) * abs(exact)
    decimals = re.search(r"\.(\d{1,30})", right)
    return abs(exact - rounded) * 2 <= Fraction(1, 10 ** (len(decimals[1]) if decimals else 0))


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
              ast.Div: operator.truediv}  # fmt: skip
_TYPED = (
    (re.compile(r"\\[cdt]?frac\s?\{([\d.+*/ -]{1,40})\}\s?\{([\d.+*/ -]{1,40})\}"), r"((\1)/(\2))"),
    (re.compile(r"\\times|\\cdot|[×·⋅]|(?<=[\d)])\s?[xX]\s?(?=[\d(])|(?<=%)\s+of\b"), "*"),
    (re.compile(r"\\div|÷"), "/"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))|[$€£¥₹*_]{2,}(?=\s|$)|\\[$,;! ]|[$€£¥₹`]"), ""),
    (re.compile(r"(?<=[A-Za-z\d])\s?/\s?[A-Za-z]{2,}"), ""),  # dollars/hour
    (re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}\b(?!\s?\()"), " "),
    (re.compile(r"(\d[\d.]*)\s?\\?%"), r"(\1/100)"),
)
_ARITHMETIC = re.compile(r"[\d.\s+*/()-]{1,200}")


def _arithmetic(text: str) -> Fraction | None:
    """The value of plain arithmetic, with words of units around it; None for anything else."""
    if len(text) > 200 or DOUBT.search(text):
        return None
    for pattern, replacement in _TYPED:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<![\d.])0+(?=\d)", "", text.strip(" .,:;!"))
    if not _ARITHMETIC.fullmatch(text) or "**" in text or "//" in text:
        return None
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body, text.strip())
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def _evaluated(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluated(node.left, text), _evaluated(node.right, text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluated(node.operand, text)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Constant):
        return Fraction(ast.get_source_segment(text, node) or "")
    raise ValueError("no arithmetic")


def _same_lone(
    stem: str, found: Quantity, is_certain: bool, expected: Quantity, reference: str
) -> _Found:
    """One number against another, each with what may be its unit."""
    factor = conversion(stem, reference)
    if factor != 1:
        equal = factor is not None and expected.equals(Quantity(found.value * factor))
        return equal, "unit", stem, is_certain
    equal = expected.equals(found)
    if equal and found.percent != expected.percent and found.value == expected.value != 0:
        return abs(expected.value) >= 1, "percent", stem, False  # 0.75% is no 0.75; 0% is 0
    return (
        equal,
        "number",
        stem,
        is_certain and (equal or not _is_other_reading(stem, found, expected)),
    )


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
_EQUATIONS = re.compile(r"=[^=]{0,200}(?:[,;]|\b(?:and|or)\b|\\text)[^=]{0,200}=")


# --- questions ------------------------------------------------------------------------------------


def _same_text(final: str, answer: str, readings: Sequence[str], reference: str) -> _Found:
    """A bare number as in mathematics; else exact match after normalisation, for dates and lists in
    another order."""
    expected = lone_number(reference)
    # Normalised text has no signs: "-5" and "5!" would match "5".
    if expected is not None and not any(map(str.isalpha, reference)):
        if _ORDINAL.search(final) or (_YEAR.fullmatch(reference) and _NO_YEAR.search(final)):
            return False, "number", final, False
        led = [_IN.sub("", reading, count=1) for reading in readings]
        return _same_number(final, led, expected, reference)
    found = lone_number(final)
    if expected is not None and found is not None:
        same = _same_lone(final, found, True, expected, reference)
        if not same[0] or same[1] == "unit" or _same_nouns(final, reference):
            return same
    if (closed := closed_answer(reference)) is not None:
        texts = (final, answer, predicate(final)) if readings else ()
        first = next(filter(None, map(closed_answer, texts)), None)
        return first == closed, "exact_match", final, first is not None
    for whole in (final, predicate(final)):
        if whole.casefold() == bare(reference).casefold():
            readings = [*readings, whole]  # a reference may be a question
    texts = [*readings, *map(predicate, readings), *map(without_lead, readings)]
    if readings and exact_match(answer, reference):
        texts.append(answer)
    for text in dict.fromkeys(texts):
        is_stated = text in (final, answer) or _is_led(final, text)
        if exact_match(text, reference):
            is_same = text.casefold() == reference.casefold()
            # x+1 and x*1 are the same words
            is_certain = is_stated and (is_same or not is_formula(reference))
            return True, "exact_match", final, is_certain
        if same_date(text, reference):
            return True, "date", final, is_stated
        if same_spans(text, reference) and reference[0] not in "([":  # a pair has an order
            return True, "spans", final, is_stated and any(map(str.isalpha, reference))
        if same_words(text, reference):
            return True, "exact_match", final, is_stated
    held = f" {' '.join(tokens(reference))} " in f" {' '.join(tokens(final))} "
    return False, "exact_match", final, not held


_IN = re.compile(r"^\s*(?:in|on)\s+(?=\d)", re.IGNORECASE)
_YEAR = re.compile(r"\s*(?:1\d|20)\d\d\s*")
_NO_YEAR = re.compile(r"[$€£¥₹]\s?\d|\d[A-Za-z]")


def _is_led(final: str, text: str) -> bool:
    start = final.rfind(text)
    return 0 < start <= LONGEST_EXPRESSION and LEAD_IN.fullmatch(final[:start]) is not None


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
