"""Survival estimates against a published example: weeks to relapse of 42 patients (E. J. Freireich
et al. 1963; its curve, Greenwood errors and log-rank in D. G. Kleinbaum and M. Klein 2012).
"""

import pytest

from flowright.study.survival import (
    Time,
    kaplan_meier,
    log_rank,
    median,
    paired_log_rank,
)

SEEN = (6, 6, 6, 7, 10, 13, 16, 22, 23)
CENSORED = (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)
TREATED = [*(Time(at, True) for at in SEEN), *(Time(at, False) for at in CENSORED)]
PLACEBO = [
    Time(at, True) for at in (1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23)
]


def test_the_product_limit_and_greenwood_s_errors():
    points = kaplan_meier(TREATED)
    assert [p.at for p in points] == [6, 7, 10, 13, 16, 22, 23]
    shares = [0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482]
    assert [p.share for p in points] == pytest.approx(shares, abs=5e-5)
    errors = [0.0764, 0.0869, 0.0963, 0.1068, 0.1141, 0.1282, 0.1346]
    assert [point.error for point in kaplan_meier(TREATED)] == pytest.approx(errors, abs=5e-5)
    assert all(0 < p.low < p.share < p.high < 1 for p in points)
    assert median(TREATED) == 23 and median(PLACEBO) == 8


def test_the_log_rank_test():
    difference, variance = log_rank(PLACEBO, TREATED)
    assert difference == pytest.approx(10.25, abs=5e-3)
    assert difference**2 / variance == pytest.approx(16.79, abs=5e-3)


def test_all_have_had_it_and_nobody_has():
    (point,) = kaplan_meier([Time(3, True)] * 4)
    assert (point.share, point.low, point.high) == (0.0, 0.0, 0.0)
    assert kaplan_meier([Time(3, False)] * 4) == [] and median([Time(3, False)]) is None


def test_pairs_are_exchanged_exactly():
    early, late = [Time(n, True) for n in (1, 2, 3)], [Time(60, False)] * 3
    assert paired_log_rank(early, late) == pytest.approx(1 / 8)
    assert paired_log_rank(late, early) == 1
    assert paired_log_rank(late, late) == 1
    assert paired_log_rank(early[:1], late[:1]) is None
