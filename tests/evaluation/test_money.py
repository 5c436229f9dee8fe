"""Accuracy against money: hulls, mixtures at a policy's money, the oracle by class, areas."""

from dataclasses import replace
from typing import Any

import pytest
from workflow_doubles import task

from flowright.app.comparison_tables import comparison_section
from flowright.core.report import ReportTable
from flowright.data.task import Kind
from flowright.environments.registry import make_config
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.comparison import BEST, MIXTURE, ORACLE, summarise
from flowright.evaluation.evaluator import Score, TableRow
from flowright.evaluation.money import (
    Point,
    area,
    at_money,
    hull,
    nearest_points,
    oracle_points,
    single_points,
)

SCORE = Score(4, None, None, None, None, None, None, None, 0.0, 0.0, 0.0, 0.0)


def row(name: str, outcomes: list[float | None], money: list[float]) -> TableRow:
    whole: dict[str, Any] = {"outcomes": tuple((o,) for o in outcomes)}
    whole |= {"money": tuple(money), "costs": tuple(money)}
    return TableRow(name, "baseline", {"all": SCORE}, {}, **whole)


def point(name: str, money: float, accuracy: float) -> Point:
    return Point({"all": name}, money, accuracy)


def names(points: list[Point]) -> list[str]:
    return [p.choice["all"] for p in points]


def test_a_hull_drops_what_is_dearer_and_worse_or_beaten_by_a_mixture() -> None:
    points = [
        point("cheap", 1.0, 0.4),
        point("middling", 3.0, 0.5),  # half of cheap and dear: 0.6 at 3
        point("dear", 5.0, 0.8),
        point("waste", 6.0, 0.7),
        point("twin", 1.0, 0.3),
    ]
    assert names(hull(points)) == ["cheap", "dear"]
    better = [*points, point("good", 3.0, 0.7)]
    assert names(hull(better)) == ["cheap", "good", "dear"]


@pytest.mark.parametrize(
    ("money", "expected"),
    [
        (0.5, [1.0, 0.0]),
        (2.0, [0.75, 0.25]),
        (5.0, [0.0, 1.0]),
        (9.0, [0.0, 1.0]),
    ],
)
def test_a_mixture_costs_what_the_policy_does(money: float, expected: list[float]) -> None:
    mixture = at_money(hull([point("cheap", 1.0, 0.4), point("dear", 5.0, 0.8)]), money)
    assert [(share, choice["all"]) for share, choice in mixture] == [
        *zip(expected, ["cheap", "dear"], strict=True)
    ]


def test_an_oracle_pays_for_what_is_worth_it() -> None:
    classes = ["hard", "hard", "easy", "easy"]
    small = row("small", [0, 0, 1, 1], [1, 1, 1, 1])
    large = row("large", [1, None, 1, 0], [10, 10, 10, 10])
    points = hull(oracle_points([small, large], classes))
    assert points[0] == Point({"hard": "small", "easy": "small"}, 1.0, 0.5)
    assert points[-1].choice == {"hard": "large", "easy": "small"}
    assert (points[-1].money, points[-1].accuracy) == (5.5, 1.0)
    assert [p.accuracy for p in single_points([small, large])] == [0.5, pytest.approx(2 / 3)]


LANDS = ["Peru", "Chile", "Japan", "India", "Egypt", "Ghana", "Spain", "Italy", "Kenya"]


def test_nearest_neighbours_pay_where_problems_of_such_text_were_worth_it() -> None:
    """Sums are solved by the large baseline alone, capitals by both; no two texts are equal."""
    sums = [task("math", id=f"s{n}", question=f"What is {n} plus {n * 7}?") for n in range(12)]
    facts = [
        task("qa", id=f"f{n}", question=f"Name the capital of {land}.")
        for n, land in enumerate(LANDS)
    ]
    known, asked = [*sums[:9], *facts[:7]], [sums[9], facts[7], sums[10], facts[8]]
    small = row("small", [0] * 9 + [1] * 7, [1] * 16)
    large = row("large", [1] * 16, [10] * 16)
    points = hull(nearest_points([large, small], known, asked))
    assert [p.choice for p in points] == [
        {"s9": "small", "f7": "small", "s10": "small", "f8": "small"},
        {"s9": "large", "f7": "small", "s10": "large", "f8": "small"},
    ]
    assert [p.accuracy for p in points] == [7 / 16, 1.0]
    assert points[1].money == pytest.approx((9 * 10 + 7) / 16), "each without itself"


def test_an_area_is_a_mean_accuracy_over_the_range() -> None:
    """By hand: 0 from 0 to 1, 0.4 to 0.8 from 1 to 3 (area 1.2), flat 0.8 from 3 to 5 (1.6)."""
    points = [point("cheap", 1.0, 0.4), point("dear", 3.0, 0.8)]
    assert area(points, 0.0, 5.0) == pytest.approx((0 + 1.2 + 1.6) / 5)
    assert area(points, 2.0, 3.0) == pytest.approx(0.7)
    assert area(points, 3.0, 3.0) == 0.8


def test_an_evaluation_compares_the_policy_with_baselines_at_its_money() -> None:
    """By hand: at 5.5 a mixture is half of each, 0.625 right; the oracle has all four right."""
    kinds: list[Kind] = ["math", "math", "qa", "qa"]
    tasks = [task(kind, id=str(n)) for n, kind in enumerate(kinds)]
    small = row("fixed: small", [0, 0, 1, 1], [1, 1, 1, 1])
    large = row("fixed: large", [1, 1, 1, 0], [10, 10, 10, 10])
    policy = replace(row("trained", [1, 1, 1, 0], [10, 10, 1, 1]), group="policy")
    singles, oracles = single_points([small, large]), oracle_points([small, large], kinds)
    hulls = {MIXTURE: hull(singles), ORACLE: hull(oracles)}
    choices = {BEST: {"all": "fixed: large"}}
    environment = WorkflowEnvironment(make_config())
    found = summarise(environment, tasks, [small, large, policy], choices, (), hulls)
    mixture, oracle = found.at_money
    assert (mixture.name, mixture.money, mixture.gold.value) == (MIXTURE, 5.5, 0.625)
    assert (oracle.name, oracle.money, oracle.gold.value) == (ORACLE, 5.5, 1.0)
    (*_, shown) = comparison_section(found).blocks
    assert isinstance(shown, ReportTable)
    assert shown.rows[0][:4] == ["mixture", "62.5", "5.5", "+12.5"]
    assert shown.rows[0][-2:] == ["62.5", "68.8"], "three quarters right from 5.5 to 10"
