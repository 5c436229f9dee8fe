"""Values over steps, and the rows of JSON that they come from."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, TypeGuard

Record = Mapping[str, Any]
Point = tuple[float, float]


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Centred moving mean over ``window`` points, fewer at both ends."""
    half = window // 2
    values = [value for _, value in points]
    return [
        (step, fmean(values[max(0, i - half) : i + half + 1])) for i, (step, _) in enumerate(points)
    ]


def is_number(value: object) -> TypeGuard[float]:
    """A number of JSON, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
