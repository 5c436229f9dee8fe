"""The labelled choice that an answer picks, and dates."""

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from flowright.grading.text import bare, exact_match, normalise, tokens

Choices = Sequence[tuple[str, str]]

_NAMED = r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Z0-9])[)\]]?"
_LABEL = re.compile(rf"{_NAMED}\s*[.:)]?", re.IGNORECASE)
_LABELLED = re.compile(
    rf"{_NAMED}(?:[.:,]?\s+-+\s+|(?:\s\)|[).:,]{{1,2}})\s+|\s+(?=because\b|since\b))(\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_MARKS = re.compile(r"\\(?:text|textbf|mathbf|mathrm)\s?\{([^{}]{0,500})\}|[*_`$]")
_TAKEN_BACK = re.compile(
    r"\b(?:wrong|incorrect|false|maybe|perhaps|possibly|either|both|isn't|actually|unlikely|doubt\w*|guess\w*|untrue)\b|\?\s*$",
    re.IGNORECASE,
)
_DENIAL = {"not", "or", "no", "nor"}
_WORD = re.compile(r"\w+")


def chosen_label(answer: str, choices: Choices) -> str | None:
    """The label that an answer picks: ``B``, ``(B)``, ``Option B``, ``B. text``, ``B, because ..``,
    or the text of one choice alone. None where it picks none, a label with the text of another, or
    takes it back, and where it is longer than
    :data:`_LONGEST`: that is prose."""
    labels = {label.upper(): label for label, _ in choices}
    if len(answer) > _LONGEST:
        return None
    answer = bare(_MARKS.sub(lambda mark: mark[1] or "", normalise(answer)))
    alone = _LABEL.fullmatch(answer)
    if alone and alone[1].upper() in labels:
        return labels[alone[1].upper()]
    both = _LABELLED.fullmatch(answer)
    if both and both[1].upper() in labels:
        label = labels[both[1].upper()]
        return label if _belongs(both[2], label, choices) else None
    named = {label for label, text in choices if exact_match(answer, text)}
    return named.pop() if len(named) == 1 else None


_LONGEST = 2_000  # characters of a choice and of the text around it


def _belongs(rest: str, label: str, choices: Choices) -> bool:
    """Return whether the text after a label is its own or a remark, and names no other choice."""
    named = {other for other, text in choices if exact_match(rest, text)}
    if named:
        return label in named
    spaced = f" {' '.join(tokens(rest))} "
    texts = {other: f" {' '.join(tokens(text))} " in spaced for other, text in choices}
    others = [re.escape(other) for other, _ in choices if other not in (label, "A", "I")]
    by_label = others and re.search(rf"\b(?:{'|'.join(others)})\b(?!['’])|\(A\)", rest)
    by_text = not texts[label] and any(texts.values())
    first = {word[0].lower() for word in islice(_WORD.finditer(rest), 3)}
    return not (first & _DENIAL or _TAKEN_BACK.search(rest) or by_label or by_text)


_MONTHS = {
    form.lower(): number
    for number, name in enumerate(calendar.month_name)
    if name
    for form in (name, name[:3])
} | {"sept": 9}
_DAYS = "|".join(calendar.day_name)
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_YEAR = r"(?:\s(?P<year>\d{1,4}))?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"{_MONTH}\s{_DAY}{_YEAR}",
        rf"{_DAY}\s{_MONTH}{_YEAR}",
        rf"{_MONTH}\s(?P<year>\d{{4}})",
        r"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})",
        r"(?P<month>0?[1-9]|1[0-2])/(?P<day>\d{1,2})/(?P<year>\d{4})",
    )
)
_WEEKDAY = re.compile(rf"\b(?:{_DAYS})\b", re.IGNORECASE)
_FILLING = re.compile(r"[,.()]|\b(?:on|the|of)\b", re.IGNORECASE)
_LONGEST_DATE = 60  # characters


@dataclass(frozen=True, slots=True)
class _Date:
    year: int | None
    month: int
    day: int | None


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[_Date, str | None] | None:
    if len(text) > _LONGEST_DATE:
        return None
    weekday = _WEEKDAY.search(text)
    text = " ".join(_FILLING.sub(" ", _WEEKDAY.sub(" ", text)).split())
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is not None:
            parts = found.groupdict()
            name = found["month"].lower()
            month = int(name) if name.isdecimal() else _MONTHS[name]
            year, day = (int(parts[part]) if parts.get(part) else None for part in ("year", "day"))
            return _Date(year, month, day), weekday and weekday[0].lower()
    return None


def same_date(answer: str, reference: str) -> bool:
    """Return whether both are the same date. A day of the week may be left out, no other part."""
    one, other = _read(answer), _read(reference)
    if one is None or other is None:
        return False
    return one[0] == other[0] and (None in (one[1], other[1]) or one[1] == other[1])
