"""Intervals where measurements are equal, against published figures and against chance."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowright.core.statistics import DIFFERENCE, SHARE, bootstrap, unanimous, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
     (1, 29, 0.0061, 0.1718),
     (0, 1, 0.0, 0.7935)],  # z^2 / (1 + z^2)
)  # fmt: skip
def test_the_interval_of_wilson(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(trials - successes, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_no_trials_tell_nothing() -> None:
    assert wilson(0, 0) == SHARE


@given(st.integers(1, 500))
def test_none_and_all_are_wilson_s_own(count: int) -> None:
    assert unanimous(0.0, count, SHARE) == pytest.approx(wilson(0, count))
    assert unanimous(1.0, count, SHARE) == pytest.approx(wilson(count, count))


@given(st.floats(-1, 1), st.integers(1, 500))
def test_an_interval_of_equal_values_holds_them_and_keeps_to_the_bounds(
    value: float, count: int
) -> None:
    low, high = unanimous(value, count, DIFFERENCE)
    assert -1 <= low <= value <= high <= 1
    assert high - low >= min(1.0, wilson(0, count)[1]) - 1e-12


def test_pairs_that_never_differ_may_yet() -> None:
    mean, low, high = bootstrap([[0.0, 0.0]] * 36, DIFFERENCE)
    assert mean == 0.0
    assert (low, high) == pytest.approx((-0.0964, 0.0964), abs=1e-4)


def test_two_policies_that_differ_in_a_pair_of_fifty_are_within_the_interval_of_none() -> None:
    """Where 36 pairs show no difference, the truth (2 % of the pairs, all one way) is covered."""
    rng = np.random.default_rng(2)
    pairs = [-(rng.random(36) < 0.02).astype(float) for _ in range(400)]
    equal = [found for sample in pairs if not sample.any()
             for found in [bootstrap([[value] for value in sample], DIFFERENCE)]]  # fmt: skip
    assert len(equal) > 100
    assert all(low is not None and low <= -0.02 <= high for _, low, high in equal)
