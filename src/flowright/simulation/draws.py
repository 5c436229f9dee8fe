"""Stateless random draws, as hashes of the request, and the faults drawn by them."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, TypeVar

from flowright.config.llm import FaultSection, SimulatedSection

T = TypeVar("T")


def unit(*parts: object) -> float:
    """Return a number in [0, 1) that depends on ``parts`` alone."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / 2**64


def digest(data: bytes) -> str:
    """Return a short hash."""
    return blake2b(data, digest_size=12).hexdigest()


def normal(*parts: object) -> float:
    """Return a standard normal number (Box and Muller, 1958)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - unit(*parts, "radius")))
    return radius * math.cos(2.0 * math.pi * unit(*parts, "angle"))


class Draws:
    """Named draws of one reply, independent of each other and of their order."""

    __slots__ = ("_key",)

    def __init__(self, *key: object) -> None:
        self._key = "\x1f".join(map(str, key))

    def unit(self, name: str) -> float:
        return unit(self._key, name)

    def chance(self, name: str, probability: float) -> bool:
        return unit(self._key, name) < probability

    def pick(self, name: str, items: Sequence[T]) -> T:
        """Pick an item uniformly."""
        return items[int(unit(self._key, name) * len(items))]

    def popular(self, name: str, count: int, shares: Sequence[float]) -> int:
        """Draw an index below ``count``, with the first ``count`` of ``shares`` as weights."""
        weights = shares[:count]
        left = unit(self._key, name) * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(weights) - 1


Fault = Literal["hang", "error_500", "error_429", "malformed", "empty", "truncate"]
FAULTS: tuple[Fault, ...] = ("hang", "error_500", "error_429", "malformed", "empty", "truncate")


def has_faults(section: FaultSection) -> bool:
    """Return whether any fault is injected."""
    return any(getattr(section, fault) for fault in FAULTS)


def drawn_fault(
    section: SimulatedSection, role: Literal["executor", "judge"], name: str, occurrence: int
) -> Fault | None:
    """Draw the fault of a request's ``occurrence``-th arrival, from 0, or None."""
    faults = section.faults
    if faults.roles not in ("all", role):
        return None
    left = unit(section.seed, "fault", name, occurrence)
    for fault in FAULTS:
        left -= getattr(faults, fault)
        if left < 0:
            return fault
    return None
