"""The language of a text, as langdetect tells it (S. Nakatani 2010), with a seed.

Upstream draws without one, so that the same text may be English now and German then. A draw matters
where a text is short, or all in capitals, which the language profiles hardly know.

The package draws a text's n-grams one by one, and multiplies the probabilities of 55 languages by
that of each. Here the same draws of the same n-grams are multiplied many at a time; where a
comparison is so close that rounding decides it, and where the draws run out, the package itself is
asked.
"""

import json
import math
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowright.criteria.constraints.language import optional_package
from flowright.criteria.constraints.ngrams import Grams, plain

_CERTAIN = 0.9999
_KEPT = 256
_TRIALS = 7
_ALPHA, _ALPHA_WIDTH, _BASE = 0.5, 0.05, 10_000
_LEAST = 0.1  # of a language that is named at all
_CONVERGED, _LONGEST, _EACH = 0.99999, 1_001, 5  # looked at after draws 1, 6, 11 ... 1,001
_CLOSE = 1e-9  # rounding of another order changes 1e-12 at most
_BLOCK = 60  # draws at a time
_STARTS = np.arange(0, _BLOCK, _EACH)
_FIRST_STARTS = np.concatenate([[0], _STARTS + 1])
_WORDS = (
    1 << 11,
    1 << 15,
)  # 32-bit words of the generator: most texts need few, some ten times that

Floats = npt.NDArray[np.float64]


class _TooClose(Exception):
    """The package is to be asked."""


class _RanOut(Exception):
    """More words of the generator are needed."""


@dataclass(frozen=True, slots=True)
class Detected:
    """A language's code, None where the text has no letters to tell it by; and whether another
    seed may say another."""

    language: str | None
    certain: bool


def detect(text: str, seed: int = 0) -> Detected:
    """As ``langdetect.detect`` after ``DetectorFactory.seed = seed``; where seed 0 is certain, no
    other is asked."""
    first = _detect(text, 0)
    return first if seed == 0 or first.certain else _detect(text, seed)


def language_of(text: str) -> str | None:
    """That of :func:`detect` with seed 0, where nobody asks whether it is certain: less than half
    the time, as the fourth of seven trials that agree decides."""
    return _language(text)


@lru_cache(maxsize=_KEPT)
def _language(text: str) -> str | None:
    return _told(text, 0, surely=False).language


@lru_cache(maxsize=_KEPT)
def _detect(text: str, seed: int) -> Detected:
    return _told(text, seed, surely=True)


def _told(text: str, seed: int, surely: bool) -> Detected:
    """``certain`` is False unless ``surely``."""
    profiles = _profiles()
    grams = profiles.grams.of(plain(text))
    if not len(grams):
        return Detected(None, True)
    try:
        share = _shares(grams, profiles.shares, seed, surely)
        order = share.argsort()
        first, second = float(share[order[-1]]), float(share[order[-2]])
        for one, other in ((first, second), (first, _LEAST), (first, _CERTAIN)):
            _compare(one, other)
    except (_TooClose, _RanOut):
        return _by_package(text, seed)
    if first < _LEAST:
        return Detected("unknown", False)
    return Detected(profiles.languages[order[-1]], first > _CERTAIN)


def _compare(one: float, other: float) -> None:
    if abs(one - other) < _CLOSE:
        raise _TooClose


# The draws.


@dataclass(frozen=True, slots=True)
class _Stream:
    """What ``random.Random(seed)`` makes of its 32-bit words."""

    words: npt.NDArray[np.uint32]

    def normal(self, at: int) -> tuple[float, float]:
        """The two of ``random.gauss(0, 1)`` that come of the four words from a place on."""
        a, b, c, d = map(int, self.words[at : at + 4])
        turn = ((a >> 5) * 67_108_864 + (b >> 6)) / 9_007_199_254_740_992 * math.tau
        radius = math.sqrt(
            -2 * math.log(1 - ((c >> 5) * 67_108_864 + (d >> 6)) / 9_007_199_254_740_992)
        )
        return math.cos(turn) * radius, math.sin(turn) * radius


@cache
def _stream(seed: int) -> _Stream:
    draws = random.Random(seed)
    return _Stream(np.array([draws.getrandbits(32) for _ in range(_WORDS[-1])], dtype=np.uint32))


def _shares(grams: npt.NDArray[np.int32], shares: Floats, seed: int, surely: bool) -> Floats:
    """Of each language, its mean probability over the trials. Unless ``surely``, those of four
    that agree, of which no other language can make up for. Raises _TooClose and _RanOut."""
    for words in _WORDS[:-1]:
        with suppress(_RanOut):
            return _mean_shares(grams, shares, _Stream(_stream(seed).words[:words]), surely)
    return _mean_shares(grams, shares, _stream(seed), surely)


def _mean_shares(
    grams: npt.NDArray[np.int32], shares: Floats, stream: _Stream, surely: bool
) -> Floats:
    size = len(grams)
    drawn = stream.words >> np.uint32(32 - size.bit_length())
    accepted = (drawn < size).nonzero()[0]  # as random.choice does
    total = np.zeros(shares.shape[1])
    at, leading = 0, 0
    spare: float | None = None
    for trial in range(_TRIALS):
        if spare is None:
            if at + 4 > len(stream.words):
                raise _RanOut
            normal, spare = stream.normal(at)
            at += 4
        else:
            normal, spare = spare, None
        first = int(accepted.searchsorted(at))
        places = drawn[accepted[first : first + _LONGEST]]
        weight = (_ALPHA + normal * _ALPHA_WIDTH) / _BASE
        probability, count = _trial(shares, grams[places], weight)
        total += probability
        at = int(accepted[first + count - 1]) + 1
        leading += float(probability.max()) > _CONVERGED
        if not surely and trial == _TRIALS // 2 and leading > trial and total.max() > trial + 0.5:
            return total / (trial + 1)
    return total / _TRIALS


def _trial(shares: Floats, rows: npt.NDArray[np.int32], weight: float) -> tuple[Floats, int]:
    """What a trial ends with, and after how many draws."""
    languages = shares.shape[1]
    before = np.zeros(languages)
    taken = 0
    sums: list[float] = []
    while taken < _LONGEST:
        starts = _STARTS if taken else _FIRST_STARTS
        size = _BLOCK + (taken == 0)
        part = rows[taken : taken + size]
        if len(part) < min(size, _LONGEST - taken):
            raise _RanOut
        factors = shares.take(part, axis=0)
        factors += weight
        looked = np.log(np.multiply.reduceat(factors, starts[: starts.searchsorted(len(part))]))
        looked[0] += before
        np.add.accumulate(looked, out=looked)
        looked -= looked.max(axis=1, keepdims=True)
        sums = np.exp(looked).sum(axis=1).tolist()
        for n, total in enumerate(sums):
            if abs(total * _CONVERGED - 1) < _CLOSE:
                raise _TooClose
            if total * _CONVERGED < 1:
                draws = taken + (n + 1) * _EACH - (_EACH - 1) * (taken == 0)
                return np.exp(looked[n]) / total, draws
        before = looked[-1]
        taken += len(part)
    return np.exp(before) / sums[-1], _LONGEST


# The package.


@dataclass(frozen=True, slots=True)
class _Profiles:
    """``shares``: of each n-gram and language, how often it is among those of its length."""

    languages: tuple[str, ...]
    grams: Grams
    shares: Floats


def _files() -> Iterator[str]:
    folder = Path(optional_package("langdetect.detector_factory").PROFILES_DIRECTORY)
    for name in sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
        yield (folder / name).read_text(encoding="utf-8")


@cache
def _profiles() -> _Profiles:
    profiles: list[dict[str, Any]] = [json.loads(text) for text in _files()]
    rows: dict[str, int] = {}
    for profile in profiles:
        for gram in profile["freq"]:
            rows.setdefault(gram, len(rows))
    shares = np.zeros((len(rows), len(profiles)))
    for column, profile in enumerate(profiles):
        for gram, count in profile["freq"].items():
            if 1 <= len(gram) <= len(profile["n_words"]):
                shares[rows[gram], column] = count / profile["n_words"][len(gram) - 1]
    assert " " not in rows
    return _Profiles(tuple(profile["name"] for profile in profiles), Grams(rows), shares)


@cache
def _factory() -> Any:
    factory = optional_package("langdetect.detector_factory").DetectorFactory()
    factory.load_json_profile(list(_files()))
    return factory


def _by_package(text: str, seed: int) -> Detected:
    """Of a text that has n-grams."""
    detector = _factory().create()
    detector.seed = seed
    detector.append(text)
    found = detector.get_probabilities()
    if not found:
        return Detected("unknown", False)
    return Detected(found[0].lang, found[0].prob > _CERTAIN)
