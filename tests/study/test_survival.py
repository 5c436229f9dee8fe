"""Survival estimates against a published example: weeks to relapse of 42 patients (E. J. Freireich
et al. 1963; its curve and log-rank in D. G. Kleinbaum and M. Klein 2012).
"""

import numpy as np
import pytest

from flowright.study.arm_comparison import (
    EventTime,
    kaplan_meier,
    log_rank,
    median,
    paired_log_rank,
)

SEEN = (6, 6, 6, 7, 10, 13, 16, 22, 23)
CENSORED = (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)
TREATED = [*(EventTime(at, True) for at in SEEN), *(EventTime(at, False) for at in CENSORED)]
PLACEBO = [
    EventTime(at, True)
    for at in (1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23)
]


def test_the_product_limit():
    points = kaplan_meier(TREATED)
    assert [at for at, _ in points] == [6, 7, 10, 13, 16, 22, 23]
    shares = [0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482]
    assert [share for _, share in points] == pytest.approx(shares, abs=5e-5)
    assert median(TREATED) == 23 and median(PLACEBO) == 8


def test_the_log_rank_test():
    times = [*PLACEBO, *TREATED]
    at, seen = np.asarray([time.at for time in times]), np.asarray([time.seen for time in times])
    first = np.arange(len(times)) < len(PLACEBO)
    assert log_rank(at, seen, first[None, :])[0] == pytest.approx(10.25, abs=5e-3)


def test_all_have_had_it_and_nobody_has():
    assert kaplan_meier([EventTime(3, True)] * 4) == [(3, 0.0)]
    assert kaplan_meier([EventTime(3, False)] * 4) == [] and median([EventTime(3, False)]) is None


def test_pairs_are_exchanged_exactly():
    early, late = [EventTime(n, True) for n in (1, 2, 3)], [EventTime(60, False)] * 3
    assert paired_log_rank(early, late) == pytest.approx(1 / 8)
    assert paired_log_rank(late, early) == 1
    assert paired_log_rank(late, late) == 1
    assert paired_log_rank(early[:1], late[:1]) is None
