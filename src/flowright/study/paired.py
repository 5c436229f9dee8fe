"""Tests of paired differences, one a seed, and what they can find: exact where numbers are small.

One-sided p-values of "the differences tend to be above 0"; whoever asks about less turns the sign.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from flowright.core.statistics import Array

EXACT = 16
"""Up to so many pairs all 2^n signs are counted; beyond, DRAWS of them."""
DRAWS = 20_000
_EQUAL = 1e-9


def signs_of(count: int) -> Array:
    """All combinations of signs for so many pairs, shape (2^count, count), the given ones first;
    beyond EXACT a sample of them with a fixed seed."""
    if count <= EXACT:
        bits = np.arange(2**count)[:, None] >> np.arange(count)[None, :] & 1
        return np.asarray(1 - 2 * bits, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(0, 2, (DRAWS, count)) * 2.0 - 1.0
    return np.concatenate([np.ones((1, count)), drawn]).astype(np.float64)


def permutation(differences: Array) -> Array:
    """Fisher's randomization test (R. A. Fisher 1935, "The design of experiments", section 21):
    the share of all sign flips whose sum is at least the given one. Shape (..., pairs) to (...)."""
    return _flipped(differences)


def wilcoxon(differences: Array) -> Array:
    """The signed-rank test (F. Wilcoxon 1945) by its exact distribution: zeros are left out
    (they keep no rank), ties share their mean rank."""
    size = np.abs(differences)
    size = np.where(size < _EQUAL, 0.0, size)
    below = (size[..., None, :] < size[..., :, None] - _EQUAL) & (size[..., None, :] > 0)
    equal = np.abs(size[..., None, :] - size[..., :, None]) <= _EQUAL
    ranks = below.sum(-1) + (equal.sum(-1) + 1) / 2
    return _flipped(np.where(size > 0, ranks * np.sign(differences), 0.0))


def sign(differences: Array) -> Array:
    """The sign test: P(at least so many above 0 of those that are not 0), each a coin's toss."""
    count = differences.shape[-1]
    above = (differences > _EQUAL).sum(-1)
    trials = above + (differences < -_EQUAL).sum(-1)
    chances = [[math.comb(n, k) / 2**n for k in range(count + 1)] for n in range(count + 1)]
    tails = np.cumsum(np.asarray(chances)[:, ::-1], axis=1)[:, ::-1]
    return tails[trials, above]


def student(differences: Array) -> Array:
    """Student's paired t-test. Where all differences are equal it says nothing, and what is left is
    that all have one sign: 0.5 to the power of their number above 0, else 1."""
    count = differences.shape[-1]
    if count < 2:
        return np.ones(differences.shape[:-1])
    mean = differences.mean(-1)
    error = differences.std(-1, ddof=1) / math.sqrt(count)
    sure = np.where(mean > _EQUAL, 0.5**count, 1.0)
    ratio = np.divide(mean, error, out=np.zeros_like(mean), where=error > _EQUAL)
    return np.where(error > _EQUAL, upper_tail(ratio, count - 1), sure)


def upper_tail(t: Array, freedom: int) -> Array:
    """P(T > t) of Student's distribution with a whole number of degrees of freedom, in closed form
    (M. Abramowitz and I. Stegun 1964, "Handbook of mathematical functions", 26.7.3 and 26.7.4)."""
    angle = np.arctan(np.asarray(t) / math.sqrt(freedom))
    cosine, sine = np.cos(angle), np.sin(angle)
    odd = freedom % 2
    term = cosine if odd else np.ones_like(cosine)
    total = np.zeros_like(cosine)
    for order in range(1 if odd else 0, freedom - 1, 2):
        total = total + term
        term = term * cosine**2 * (order + 1) / (order + 2)
    between = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return (1 - between) / 2


def _flipped(values: Array) -> Array:
    signs = signs_of(values.shape[-1])
    sums = values @ signs.T
    return (sums >= sums[..., :1] - _EQUAL).mean(-1)


PAIRED: Mapping[str, Callable[[Array], Array]] = {
    "permutation": permutation,
    "wilcoxon": wilcoxon,
    "t": student,
    "sign": sign,
}
"""By the name that a claim gives."""


def p_value(test: str, differences: Array, direction: str, threshold: float) -> float | None:
    """Of a claim about paired differences: ``greater`` than the threshold, ``less`` than its
    negative, or ``none``: both one-sided tests that they lie within it (D. J. Schuirmann 1987).
    None without two pairs."""
    if len(differences) < 2:
        return None
    ask = PAIRED[test]
    above, below = ask(differences - threshold), ask(-differences - threshold)
    if direction == "none":
        inside = ask(differences + threshold), ask(threshold - differences)
        return float(max(*inside))
    return float(above if direction == "greater" else below)


def least_p(test: str, pairs: int) -> float:
    """The smallest p-value that so many pairs can give; 0 where there is no smallest."""
    if pairs < 2:
        return 1.0
    return 0.0 if test == "t" else 0.5**pairs


SIMULATED = 2000
POWER = 0.8


def least_effect(test: str, pairs: int, alpha: float, margin: bool = False) -> float | None:
    """The smallest mean difference, in standard deviations of the differences, that the test finds
    with 80 % power at this level; with ``margin`` the narrowest margin within which it finds that
    there is none, where there is none. By simulation of normal differences (2,000, a fixed seed),
    to 0.01. None where so few pairs cannot."""
    if least_p(test, pairs) > alpha or pairs < 2:
        return None
    draws = np.random.default_rng(0).standard_normal((SIMULATED, pairs))
    if pairs > 12 and test != "sign":  # all flips of all draws take minutes, and t is as good
        test = "t"
    low, high = 0.0, 20.0
    if _power(test, draws, high, alpha, margin) < POWER:
        return None
    while high - low > 0.01:
        middle = (low + high) / 2
        if _power(test, draws, middle, alpha, margin) < POWER:
            low = middle
        else:
            high = middle
    return high


def _power(test: str, draws: Array, effect: float, alpha: float, margin: bool) -> float:
    found = []
    for part in np.array_split(draws, 20):  # all flips of all draws at once take much memory
        inside = PAIRED[test](effect + part) <= alpha
        if margin:
            inside &= PAIRED[test](effect - part) <= alpha
        found.append(inside)
    return float(np.concatenate(found).mean())
