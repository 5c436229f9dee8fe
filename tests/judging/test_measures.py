"""The exam's formulas against values derived by hand, and its bootstrap against theory."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from exam_doubles import outcome

from flowright.core.statistics import DIFFERENCE, SHARE, Estimate, Resampler, holm, mean
from flowright.judging.audit import COUNTED
from flowright.judging.measuring.exam_statistics import (
    binned,
    calibration_error,
    measures,
    reliability,
    roc_auc,
)

TABLE = np.array([20.0, 10.0, 15.0, 5.0])  # Cohen's: 25 right answers, 30 called right


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agreement", 35 / 50),
        ("kappa", (0.7 - 0.5) / (1 - 0.5)),
        ("balanced_accuracy", (20 / 25 + 15 / 25) / 2),
        ("false_positive_rate", 10 / 25),
        ("false_negative_rate", 5 / 25),
    ],
)
def test_measures_of_a_table(name: str, value: float) -> None:
    assert COUNTED[name](TABLE) == pytest.approx(value, rel=1e-9)


def test_what_has_nothing_to_count_is_undefined() -> None:
    only_right = np.array([3.0, 0.0, 0.0, 1.0])
    assert np.isnan(COUNTED["false_positive_rate"](only_right))
    assert np.isnan(COUNTED["balanced_accuracy"](only_right))
    assert np.isnan(COUNTED["kappa"](np.array([4.0, 0.0, 0.0, 0.0])))
    assert np.isnan(COUNTED["agreement"](np.zeros(4)))


def scored() -> list:
    return [
        outcome(True, True, 0.9, "a"),
        outcome(False, True, 0.9, "b"),
        outcome(False, False, 0.2, "c"),
        outcome(False, False, 0.2, "d"),
    ]


def test_calibration_error_and_reliability() -> None:
    # 0.9: half right, |0.5 - 0.9|; 0.8: all right, |1 - 0.8|; half of the verdicts each.
    found = measures(scored(), Resampler("abcd", 100, 0))
    assert found["calibration_error_plain"].value == pytest.approx(0.3, rel=1e-9)
    assert found["calibration_error"].value < 0.3
    # Scores 0.9, 0.9, 0.2, 0.2 against 1, 0, 0, 0.
    assert found["brier"].value == pytest.approx((0.01 + 0.81 + 0.04 + 0.04) / 4)
    logs = -(math.log(0.9) + math.log(0.1) + 2 * math.log(0.8)) / 4
    assert found["log_loss"].value == pytest.approx(logs)
    low, high = reliability(scored())
    assert (low["verdicts"], low["accuracy"]) == (2, 1.0)
    assert low["confidence"] == pytest.approx(0.8)
    assert (high["verdicts"], high["accuracy"]) == (2, 0.5)
    assert high["low"] <= 0.9 <= high["high"]


def test_roc_auc_counts_ties_by_half() -> None:
    # Right 0.9 and 0.5, wrong 0.5 and 0.1: three pairs won, one tied, of four.
    sums = np.array([0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert roc_auc(sums) == pytest.approx(3.5 / 4)
    graded = [outcome(True, True, 0.9, "a"), outcome(False, False, 0.1, "b")]
    assert measures(graded, Resampler("ab", 100, 0))["roc_auc"].value == 1.0


def test_a_yes_or_no_has_no_roc_auc_and_errs_as_often_as_it_is_miscalibrated() -> None:
    said = [outcome(True, True), outcome(True, False), outcome(False, False), outcome(False, True)]
    found = measures(said, Resampler("q", 100, 0))
    assert found["roc_auc"] == found["log_loss"] == Estimate(None)
    assert found["calibration_error_plain"].value == found["brier"].value == 0.5
    # One question has no resamples, so no bias that could be removed.
    assert found["calibration_error"] == Estimate(None)
    assert calibration_error([], [], Resampler("", 9, 0)) == (Estimate(None), Estimate(None))
    # Wilson's upper end where all of 20 sure verdicts are right.
    names = [f"q{n}" for n in range(20)]
    sure, _ = calibration_error(names, [binned(1.0, 1.0)] * 20, Resampler(names, 100, 0))
    assert (sure.value, sure.low, sure.high) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)


def test_a_scores_log_loss_stays_finite() -> None:
    graded = [outcome(True, True, 0.9, "a"), outcome(False, True, 1.0, "b")]
    found = measures(graded, Resampler("ab", 100, 0))
    assert found["log_loss"].value == pytest.approx(-(math.log(0.9) + math.log(0.001)) / 2)


def test_the_calibration_error_is_covered_where_a_percentile_bootstrap_never_does() -> None:
    # The command prints the whole table, with more trials.
    program = Path(__file__).parents[2] / "benchmarks/calibration_coverage.py"
    coverage = runpy.run_path(str(program))["coverage"]
    for shape, setting, verdicts in (
        ("constant", 0.0, 100),
        ("constant", 0.0, 1000),
        ("constant", 0.13, 300),
        ("one_bin", 0.05, 300),
        ("temperature", 0.5, 100),
    ):
        found = coverage(shape, setting, verdicts, trials=60, resamples=300)
        assert found.covered >= 0.9, (shape, setting, verdicts, found)
        assert abs(found.debiased - found.true) < max(0.01, found.plain - found.true), found
        if setting == 0:
            assert found.covered_by_percentiles == 0.0
            assert found.width < 2.5 / math.sqrt(verdicts), found


def test_answers_to_one_question_are_no_evidence_of_their_own() -> None:
    names = [f"q{n}" for n in range(80)]
    rows = [binned(0.7, float(n % 2)) for n in range(80)]
    alone, _ = calibration_error(names, rows, Resampler(names, 400, 0))
    fourfold, plain = calibration_error(names * 4, rows * 4, Resampler(names, 400, 0))
    assert plain.value == pytest.approx(0.2)
    assert (fourfold.low, fourfold.high) == pytest.approx((alone.low, alone.high), abs=0.01)


def test_a_verdict_that_failed_is_counted_and_in_no_measure() -> None:
    found = measures([outcome(True, True), outcome(False, None)], Resampler("q", 100, 0))
    assert (found["answers"], found["scored"], found["wrong"]) == (2, 1, 1)
    assert found["agreement"].value == 1.0
    assert found["false_positive_rate"] == Estimate(None)
    assert measures([outcome(True, None)], Resampler("q", 9, 0))["agreement"] == Estimate(None)


def test_intervals_are_as_wide_as_theory_says_and_go_by_question() -> None:
    names = [f"q{n}" for n in range(100)]
    rows = [(float(n % 2), 1.0) for n in range(100)]
    alone = Resampler(names, 4000, 1).estimate(names, rows, mean)
    assert alone.value == 0.5
    # 1.96 standard errors of 0.05 either way.
    assert (alone.low, alone.high) == pytest.approx((0.402, 0.598), abs=0.015)
    # Four equal answers to each question tell no more than one.
    fourfold = Resampler(names, 4000, 1).estimate(names * 4, rows * 4, mean)
    assert (fourfold.low, fourfold.high) == pytest.approx((0.402, 0.598), abs=0.015)
    again = Resampler(names, 4000, 1).estimate(names, rows, mean)
    assert again == alone


def test_one_question_has_no_interval() -> None:
    assert Resampler(["a"], 50, 0).estimate(["a"], [(1.0, 1.0)], mean) == Estimate(1.0)
    assert Resampler(["a"], 50, 0).estimate([], [], mean) == Estimate(None)


def test_what_was_never_seen_may_yet_be() -> None:
    names = [f"q{n}" for n in range(10)]
    resampler = Resampler([*names, "other"], 200, 0)
    none = resampler.estimate(names, [(0.0, 1.0)] * 10, mean, SHARE)
    # z^2 / (n + z^2), the upper end of Wilson for 0 of 10.
    assert (none.value, none.low, none.high) == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)
    equal = resampler.estimate(names, [(0.0, 1.0)] * 10, mean, DIFFERENCE)
    assert (equal.low, equal.high) == pytest.approx((-0.2775, 0.2775), abs=1e-4)
    assert resampler.estimate(names, [(0.0, 1.0)] * 10, mean) == Estimate(0.0)


def test_the_randomization_test() -> None:
    names = ["a", "b", "c"]
    resampler = Resampler(names, 20_000, 0)
    # All three up: two of the eight ways to toss three coins are as far from 0.
    assert resampler.p_value(names, [1.0, 1.0, 1.0]) == pytest.approx(0.25, abs=0.015)
    assert resampler.p_value(names, [1.0, -1.0, 0.0]) == 1.0
    assert resampler.p_value(names, [0.0, 0.0, 0.0]) == 1.0
    assert resampler.p_value([], []) is None
    # Two answers to one question are one coin.
    assert resampler.p_value(["a", "a"], [1.0, 1.0]) == 1.0


def test_p_values_are_adjusted_for_their_number() -> None:
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
