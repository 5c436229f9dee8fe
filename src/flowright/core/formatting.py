"""Values of JSON records, and numbers as text, the same on every page and screen. A missing value
is ``-``: there was nothing to compute it from, and 0 would be a lie.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeGuard

Record = Mapping[str, Any]
Point = tuple[float, float]


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Return the centred moving mean over ``window`` points, fewer at both ends."""
    half = window // 2
    values = [value for _, value in points]
    return [
        (step, fmean(values[max(0, i - half) : i + half + 1])) for i, (step, _) in enumerate(points)
    ]


_MOST = sys.float_info.max


def is_number(value: object) -> TypeGuard[float]:
    """Accept the numbers of JSON that a float holds; not true and false, NaN, 1e999."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST


def known_number(value: object) -> float | None:
    """Return a number of JSON as float; None for any other value."""
    return float(value) if is_number(value) else None


def object_of(record: Record, key: str) -> Record:
    """Return the object under a key; an empty one where there is none."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def flatten(record: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, such as a configuration, under dotted keys."""
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def objects_in(value: object) -> list[Record]:
    """Return the objects of a list; none of any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


NOTHING = "-"
Form = Callable[[float], str]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """Format a difference of two shares, in hundredths, with its sign."""
    return f"{100 * difference:+.1f}"


def format_value(value: object, form: Form) -> str:
    """Format a value of a record, which may be anything or missing."""
    return form(value) if is_number(value) else NOTHING


def duration(seconds: float) -> str:
    """Format seconds: ``0.3 s``, ``48 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 89.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def amount(number: float) -> str:
    """Format a count: ``812``, ``34.5k``, ``1.2M``, ``3.4G``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{number:,.0f}"


def short_percent(value: float) -> str:
    """Format a share for an axis: ``12 %``, ``2.5 %``."""
    return f"{100 * value:.0f} %" if abs(value) >= 0.095 or not value else f"{100 * value:.1f} %"


def plain(value: float) -> str:
    """Format a number with three digits: ``1,234``, ``0.123``, ``2.5e-5``."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.001:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:.3g}"
