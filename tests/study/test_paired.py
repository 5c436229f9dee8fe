"""Paired tests against values that were published or counted by hand."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from flowright.study.arm_comparison import (
    claim_values,
    least_effect,
    least_p,
    outcomes,
    p_value,
    permutation,
    upper_tail,
)
from flowright.study.collect import Collected
from flowright.study.config import load_study
from flowright.study.runs import cells_of

ROOT = Path(__file__).parents[2]


def test_student_s_tail_is_that_of_the_tables():
    table = {1: (6.314, 12.706), 2: (2.920, 4.303), 5: (2.015, 2.571), 10: (1.812, 2.228)}
    for freedom, quantiles in table.items():
        tails = upper_tail(np.asarray(quantiles), freedom)
        assert tails == pytest.approx([0.05, 0.025], rel=1e-3)
    assert upper_tail(np.asarray([-2.228]), 10)[0] == pytest.approx(0.975, rel=1e-3)


def test_sign_flips_are_counted():
    # Sums of +-1 +-2 +-3 that are at least 4: 6 and 4, of 8.
    assert permutation(np.asarray([-1.0, 2.0, 3.0])) == pytest.approx(2 / 8)
    assert p_value("permutation", np.asarray([1.0, 2.0, 3.0]), "greater", 0) == pytest.approx(1 / 8)
    assert p_value("permutation", np.asarray([1.0, 2.0, 3.0]), "less", 0) == 1


def test_wilcoxon_is_exact_and_its_ties_share_ranks():
    # Ranks 1 to 5, the 2 negative: W+ = 13; of 32 sums 13 or more: 15, 14, 13, 12 + ... by the
    # exact table P(W+ >= 13) = 3/32: {all}, {all but 1}, {all but 2}.
    values = np.asarray([1.1, -2.1, 3.1, 4.1, 5.1])
    assert p_value("wilcoxon", values, "greater", 0) == pytest.approx(3 / 32)
    # Three equal differences have rank 2 each: P(W+ >= 4) = P(two or three above 0) = 4/8.
    assert p_value("wilcoxon", np.asarray([1.0, 1.0, -1.0]), "greater", 0) == pytest.approx(4 / 8)
    # Zeros have no rank: as if there were two pairs.
    assert p_value("wilcoxon", np.asarray([0.0, 1.0, 2.0]), "greater", 0) == pytest.approx(1 / 4)


def test_the_sign_test_is_the_binomial():
    values = np.asarray([1, 1, 1, 1, 1, 1, 1, -1, -1, 0.0])  # 7 of 9: 46/512
    assert p_value("sign", values, "greater", 0) == pytest.approx(46 / 512)


def test_student_s_example():
    """Extra hours of sleep (Student 1908): t = 4.0621, p = .0028 two-sided."""
    gained = np.asarray([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert p_value("t", gained, "greater", 0) == pytest.approx(0.002833 / 2, rel=1e-3)


def test_thresholds_move_the_question():
    values = np.asarray([0.9, 1.0, 1.1, 1.0, 0.95, 1.05])
    assert p_value("t", values, "greater", 0.5) < 0.001
    assert p_value("t", values, "greater", 1.5) > 0.99
    assert p_value("t", -values, "less", 0.5) < 0.001


def test_equivalence_needs_both_sides():
    near, far = np.asarray([0.1, -0.1, 0.0, 0.05]), np.asarray([1.0, 0.9, 1.1, 1.0])
    assert p_value("t", near, "none", 0.5) < 0.01
    assert p_value("t", far, "none", 0.5) > 0.99


def test_equal_differences_have_no_spread_to_divide_by():
    assert p_value("t", np.zeros(5), "greater", 0) == 1
    assert p_value("t", np.full(5, 0.2), "greater", 0) == 1 / 32  # that all five have one sign
    assert p_value("t", np.asarray([0.2]), "greater", 0) is None


def test_what_few_pairs_can_find():
    assert least_p("permutation", 4) == 1 / 16
    # A t-test of fewer than five pairs rests on the normal distribution alone.
    assert [least_p("t", pairs) for pairs in (1, 2, 4, 5)] == [1.0, 1 / 4, 1 / 16, 0.0]
    assert least_effect("t", 4, 0.05) is None
    assert least_effect("permutation", 4, 0.05) is None
    # One-sided t at 5 %, n = 10, 80 % power: 0.853 by the noncentral t (Cohen 1988, table 2.3).
    assert least_effect("t", 10, 0.05) == pytest.approx(0.853, abs=0.04)
    # Of no difference within a margin both sides are to be seen: as for one side with 90 % power.
    assert least_effect("t", 10, 0.05, margin=True) == pytest.approx(1.0, abs=0.06)
    assert least_effect("permutation", 10, 0.05) == pytest.approx(0.86, abs=0.06)


def test_beyond_sixteen_pairs_flips_are_drawn():
    values = np.asarray([1.0] * 20)
    p = p_value("permutation", values, "greater", 0)
    assert p is not None and 0 < p <= 2 / 20_000


def test_what_was_kept_of_two_and_three_seeds_holds_no_claim():
    """docs/study.md: the differences that it prints, and that they are no claims."""
    for name, first, measure in (
        ("real_words", [-0.12, -0.14], "final_gold"),
        ("full_world", None, "final_gap"),
    ):
        path = ROOT / f"config/study/{name}.yaml"
        kept = ROOT / f"docs/study/{name}"
        seeds = tuple(json.loads((kept / "claims.json").read_text())["seeds"])
        study = load_study(path).model_copy(update={"seeds": seeds})
        cells = cells_of(study)
        runs = Collected(pq.read_table(kept / "results.parquet").to_pylist())
        found = outcomes(study, cells, runs)
        assert all(one.is_complete and one.too_few and one.holds is False for one in found)
        assert found[0].p is not None and found[0].p < 0.05 and found[0].claim.measure == measure
        if first is not None:
            differences = claim_values(study, cells, study.claims[0], runs).values()
            assert sorted(differences, reverse=True) == pytest.approx(first, abs=1e-9)
        assert len(load_study(path).all_seeds) >= 5
