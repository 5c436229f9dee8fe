"""What a rubric comes to, by hand."""

import pytest
from criteria_doubles import says

from flowright.criteria.rubrics.points import (
    axis_shares,
    healthbench_score,
    least_share,
    points_share,
    ungraded_share,
)
from flowright.criteria.rubrics.rows import Item

ITEMS = [says("a", 5), says("b", 3), says("c", -4), says("d", -6)]


@pytest.mark.parametrize(
    ("met", "share"),
    [
        ([True, True, False, False], 1.0),
        ([True, False, False, False], 5 / 8),
        ([True, False, True, False], 1 / 8),
        ([False, True, True, True], -7 / 8),
        ([False] * 4, 0.0),
        ([None, True, False, False], 1.0),  # 5 leave the sum, with their weight
        ([True, None, True, None], 1 / 5),
        ([None, None, True, False], None),
        ([None] * 4, None),
    ],
)
def test_points_of_met_criteria_over_those_that_can_be_earned(
    met: list[bool | None], share: float | None
) -> None:
    assert points_share(ITEMS, met) == share


def test_what_nobody_graded_is_weighed_by_its_points() -> None:
    assert ungraded_share(ITEMS, [True, None, None, False]) == 7 / 18
    assert least_share(ITEMS) == -10 / 8
    assert least_share(ITEMS[:2]) == 0


def test_healthbench_keeps_the_mean_within_bounds_and_not_the_samples() -> None:
    assert healthbench_score([0.5, -0.25]).score == 0.125
    assert healthbench_score([-0.5, 0.25]).score == 0.0
    found = healthbench_score([1.0, 0.0, None, 1.0, 0.0])
    assert (found.score, found.samples, found.unscored) == (0.5, 4, 1)
    # The mean of 4 draws from a fair coin has a standard deviation of 1/4.
    assert found.bootstrap_std == pytest.approx(0.25, abs=0.02)
    assert found == healthbench_score([1.0, 0.0, None, 1.0, 0.0])
    nothing = healthbench_score([None])
    assert (nothing.score, nothing.bootstrap_std, nothing.unscored) == (None, None, 1)


def test_points_of_any_size_have_a_share() -> None:
    huge = [says("a", 1e308), says("b", 1e308), says("c", -1e308)]
    assert points_share(huge, [True, True, False]) == 1.0
    assert points_share(huge, [True, False, True]) == 0.0
    assert ungraded_share(huge, [None, True, True]) == 1 / 3
    tiny = [says("a", 5e-324), says("b", -1e308)]
    assert points_share(tiny, [True, False]) == 1.0
    assert points_share(tiny, [True, True]) == -1e300


def test_shares_of_axes() -> None:
    items = [
        Item("a", 3.0, tags={"axis": "accuracy"}),
        Item("b", -2.0, tags={"axis": "accuracy"}),
        Item("c", 1.0, tags={"axis": "completeness"}),
        Item("d", -1.0, tags={"axis": "context"}),
        Item("e", 1.0),
    ]
    assert axis_shares(items, [True, True, False, True, True]) == {
        "accuracy": pytest.approx(1 / 3), "completeness": 0.0,
    }  # fmt: skip
