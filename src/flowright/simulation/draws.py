"""Chance without state: a draw is a hash of what is asked; order and repetition don't matter."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


def unit(*parts: object) -> float:
    """A number in [0, 1) that depends on ``parts`` and nothing else."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / 2**64


def digest(data: bytes) -> str:
    """A short name for some bytes."""
    return blake2b(data, digest_size=12).hexdigest()


def normal(*parts: object) -> float:
    """A standard normal number (Box and Muller, 1958)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - unit(*parts, "radius")))
    return radius * math.cos(2.0 * math.pi * unit(*parts, "angle"))


class Draws:
    """The draws of one reply: named, independent of each other and of their order."""

    __slots__ = ("_key",)

    def __init__(self, *key: object) -> None:
        self._key = "\x1f".join(map(str, key))

    def unit(self, name: str) -> float:
        return unit(self._key, name)

    def chance(self, name: str, probability: float) -> bool:
        return unit(self._key, name) < probability

    def pick(self, name: str, items: Sequence[T]) -> T:
        """One of ``items``, uniformly."""
        return items[int(unit(self._key, name) * len(items))]

    def popular(self, name: str, count: int, shares: Sequence[float]) -> int:
        """An index below ``count``, with the first ``count`` of ``shares`` as weights."""
        weights = shares[:count]
        left = unit(self._key, name) * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(weights) - 1
