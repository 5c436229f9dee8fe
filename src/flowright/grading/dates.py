"""Dates as people write them: ``May 12, 1999``, ``the 12th of May 1999``, ``1999-05-12``.

English names alone; ``05/12/1999`` is read as Americans do, the month first.
"""

import calendar
import re
from dataclasses import dataclass
from functools import lru_cache

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
_LONGEST = 60  # characters


@dataclass(frozen=True, slots=True)
class _Date:
    year: int | None
    month: int
    day: int | None


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[_Date, str | None] | None:
    if len(text) > _LONGEST:
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
    """Whether both are dates and the same one. A day of the week may be left out, no other part."""
    one, other = _read(answer), _read(reference)
    if one is None or other is None:
        return False
    return one[0] == other[0] and (None in (one[1], other[1]) or one[1] == other[1])
