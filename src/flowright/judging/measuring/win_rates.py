"""Length-controlled win rate of one set of answers over another, as AlpacaEval 2 defines it."""

from collections.abc import Sequence

import numpy as np

from flowright.core.statistics import Array, Estimate, Resampler, ratio, sigmoid

_RIDGE = 0.01  # keeps coefficients finite where the length decides every pair
_STEPS = 50
_LARGEST_STEP = 4.0
_CONVERGED = 1e-8


def length_controlled(
    resampler: Resampler,
    questions: Sequence[str],
    wins: Sequence[float],
    longer_by: Sequence[float],
    difficulty: Sequence[float] = (),
) -> Estimate:
    """Return the win rate that answers of equal length would have, with an interval.

    ``wins`` are 1, 0, or between for ties; ``longer_by`` is the difference in length. Dubois et al.
    2024 (arXiv 2404.04475, equation 2): logistic regression of the win on a constant, tanh of
    ``longer_by`` in its standard deviations, and the ``difficulty`` of the question, if known; then
    the mean prediction without the term of length. The penalty is 0.005 times the squared
    coefficients. Every resample is fitted anew.
    """
    won, gap = np.asarray(wins, dtype=np.float64), np.asarray(longer_by, dtype=np.float64)
    deviation = gap.std(ddof=1) if len(gap) > 1 else 0.0
    terms = [np.ones_like(gap), np.tanh(gap / (deviation or 1.0))]
    features = np.stack([*terms, *([np.asarray(difficulty)] if len(difficulty) else [])], axis=-1)
    at_equal = features * (np.arange(features.shape[-1]) != 1)
    start = _fit(features, won, np.ones((1, len(won))), np.zeros(features.shape[-1]))

    def rate(weights: Array) -> Array:
        chances = sigmoid(_fit(features, won, weights, start) @ at_equal.T)
        return ratio((weights * chances).sum(-1), weights.sum(-1))

    return resampler.fitted(questions, rate)


def _fit(features: Array, targets: Array, weights: Array, start: Array) -> Array:
    """Fit a logistic regression for each row of ``weights`` by Newton's method; shape (draws,
    terms)."""
    size = features.shape[-1]
    products = (features[:, :, None] * features[:, None, :]).reshape(-1, size * size)
    found = np.zeros((len(weights), size)) + start
    for _ in range(_STEPS):
        chances = sigmoid(found @ features.T)
        slope = (weights * (targets - chances)) @ features - _RIDGE * found
        curve = (weights * chances * (1 - chances)) @ products
        curve = curve.reshape(-1, size, size) + _RIDGE * np.eye(size)
        step = np.linalg.solve(curve, slope[..., None])[..., 0]
        found += np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
        if np.abs(step).max() < _CONVERGED:
            break
    return found
