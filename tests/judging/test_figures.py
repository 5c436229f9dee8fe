"""The figures of pairs, against counts made by hand."""

import random

import numpy as np
import pytest
from benchmark_doubles import Rater, judged, pair
from hypothesis import given, strategies as st

from flowright.core.statistics import Estimate
from flowright.data.task import PREFERRED, Pair, Preferred
from flowright.judging.measuring.measured_judges import (
    Games,
    PanelJudge,
    RandomJudge,
    Rating,
    from_row,
    games_of_ratings,
    to_row,
)
from flowright.judging.measuring.pair_figures import (
    MEASURES,
    Figures,
    Judged,
    Macro,
    confusion,
    groups_of,
    kappa,
    mean_of_shares,
)

# Label, verdict as it stands, verdict of the swapped pair (both in the pair's own terms).
ROWS = [
    judged(pair("1", "first", "a"), "first", "first"),  # right twice
    judged(pair("2", "first", "a"), "first", "second"),  # the place shown first wins twice
    judged(pair("3", "second", "b"), "second", None),
    judged(pair("4", "second", "b"), "tie", "second"),
]


def value(measure: str, reading: str = "published", group: str = "all") -> float | None:
    figures = Figures(ROWS, 200, 0).shares([measure], (Macro("mean of subsets"),))
    (found,) = [f for f in figures if (f.reading, f.group) == (reading, group)]
    return found.estimate.value


@pytest.mark.parametrize(
    ("measure", "published", "answered"),
    [
        ("agreement", 5 / 8, 5 / 7),
        ("both_right", 1 / 4, 1 / 3),
        ("two_games", 3 / 4, 2 / 3),
        ("three_class", 1 / 4, 1 / 3),
        ("consistency", 1 / 3, 1 / 3),
        ("first_place", 4 / 6, 4 / 6),
        ("longer", 3 / 6, 3 / 6),  # "another" is; of games with a winner
        # Labels 2, 2, 0; said 1, 0, 2 and one of nothing: (1/4 - 1/8) / (1 - 1/8).
        # Without that one: (1/3 - 2/9) / (1 - 2/9).
        ("kappa", 1 / 7, 1 / 7),
    ],
)
def test_two_readings_of_what_cannot_be_read(
    measure: str, published: float, answered: float
) -> None:
    assert value(measure) == pytest.approx(published)
    assert value(measure, "answered") == pytest.approx(answered)


def test_subsets_count_alike_in_their_mean() -> None:
    assert value("two_games", group="a") == 1 / 2
    assert value("two_games", group="b") == 1
    assert value("two_games", group="mean of subsets") == pytest.approx(3 / 4)
    assert value("agreement", group="mean of subsets") == pytest.approx((3 / 4 + 2 / 4) / 2)


def test_a_mean_of_some_subsets_and_of_the_sets_of_subsets() -> None:
    rows = [
        judged(pair("1", category="gpt/math"), "first", "first"),
        judged(pair("2", category="gpt/code"), "second", "second"),
        judged(pair("3", category="claude/math"), "first", "first"),
        judged(pair("4", category="claude/code"), "first", "first"),
    ]
    macros = (Macro("mean"), Macro("code only", ("code",)))
    found = {f.group: f.estimate.value for f in Figures(rows, 100, 0).shares(["agreement"], macros)}
    assert found["gpt/mean"] == 1 / 2 and found["claude/mean"] == 1 and found["gpt"] == 1 / 2
    assert "gpt/code only" not in found, "one subset is no mean"
    assert list(groups_of(rows)) == ["all", "gpt", "gpt/math", "gpt/code", "claude",
                                     "claude/math", "claude/code"]  # fmt: skip


def test_ties_of_the_labels() -> None:
    rows = [judged(pair("1", "tie"), "tie", "tie"), judged(pair("2"), "second", "second")]
    found = {
        f.measure: f for f in Figures(rows, 100, 0).shares(MEASURES) if f.reading == "answered"
    }
    assert found["agreement"].estimate.value == 1 / 2
    assert found["agreement_without_ties"].estimate.value == 0
    assert (found["two_games"].rows, found["three_class"].rows) == (1, 2)


def test_prompts_are_drawn_and_not_pairs() -> None:
    rows = [
        judged(pair(f"{n}", question="same" if n % 2 else "other"), said, said)
        for n in range(40)
        if (said := PREFERRED[n % 2])
    ]
    (figure, *_) = Figures(rows, 400, 0).shares(["agreement"])
    assert figure.estimate == Estimate(0.5, 0.0, 1.0)
    alone = [row for row in rows if row.pair.question == "same"]
    (figure, *_) = Figures(alone, 400, 0).shares(["agreement"])
    assert figure.estimate == Estimate(0.0), "one prompt has no interval"


def test_none_right_and_all_right_have_wilsons_interval() -> None:
    rows = [judged(pair(f"{n}", category=f"{n % 2}"), "second", "second") for n in range(10)]
    figures = Figures(rows, 200, 0).shares(["agreement"], (Macro("mean"),))
    for group in ("all", "mean"):
        (figure,) = [f for f in figures if f.group == group and f.reading == "published"]
        assert figure.estimate.value == figure.estimate.low == 0
        assert figure.estimate.high == pytest.approx(0.2775, abs=1e-4)  # z^2 / (10 + z^2)


def test_several_annotators() -> None:
    votes = [("first", "first", "tie"), ("second", "second", "second")]
    rows = [
        judged(pair(f"{i}", vote[0], votes=vote), "first", "first") for i, vote in enumerate(votes)
    ]
    found = {f.measure: f.estimate.value for f in Figures(rows, 100, 0).annotators()}
    assert found["annotators"] == pytest.approx(2 / 6)
    assert found["among_annotators"] == pytest.approx(4 / 6)
    # A judge that says the same of all is nowhere better than chance: kappa 0 with each.
    assert found["annotators_kappa"] == pytest.approx(0)
    assert Figures(ROWS, 100, 0).annotators() == []


@given(st.lists(st.tuples(st.sampled_from(PREFERRED), st.sampled_from([*PREFERRED, None]))))
def test_kappa_is_at_most_agreement(verdicts: list[tuple]) -> None:
    sums = np.sum([confusion(said, label) for label, said in verdicts] or [np.zeros(12)], axis=0)
    found = float(kappa(np.asarray(sums)))
    right = sum(said == label for label, said in verdicts)
    assert np.isnan(found) or found <= right / len(verdicts) + 1e-9
    if verdicts and right == len(verdicts) and len({label for label, _ in verdicts}) > 1:
        assert found == pytest.approx(1)


def test_subsets_that_a_draw_does_not_hold_are_left_out() -> None:
    sums = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 4.0]])
    assert mean_of_shares(sums)[[0, 2]].tolist() == [0.5, 0.5] and np.isnan(mean_of_shares(sums)[1])


def test_equal_and_unreadable_ratings_count_half() -> None:
    def rated(of: Pair, first: float | None, second: float | None) -> Judged:
        ratings = (Rating(None, "unreadable") if r is None else Rating(r) for r in (first, second))
        return Judged(of, games_of_ratings(*ratings))

    rows = [
        rated(pair("1", "first"), 3, 2),  # right
        rated(pair("2", "first"), 2, 2),  # half
        rated(pair("3", "second"), None, 4),  # half, or left out
        rated(pair("4", "second"), 4, 1),  # wrong
        rated(pair("5", "tie"), 2, 2),  # right: there is a label for it
        rated(pair("6", "tie"), None, None),  # no verdict is no tie
    ]
    found = {
        (f.measure, f.reading): f.estimate.value
        for f in Figures(rows, 100, 0).shares(("agreement", "agreement_without_ties", "both_right"))
    }
    assert found["agreement", "published"] == (1 + 0.5 + 0.5 + 0 + 1 + 0) / 6
    assert found["agreement_without_ties", "published"] == (1 + 0.5 + 0.5) / 4
    assert found["agreement", "answered"] == (1 + 0.5 + 0 + 1) / 4
    assert found["both_right", "published"] == 2 / 6
    # A judge that compares and sees no difference, or says nothing, agrees with no label.
    compared = [judged(pair("1"), "tie", "tie"), judged(pair("2"), None, None)]
    assert Figures(compared, 100, 0).shares(["agreement"])[0].estimate.value == 0


def test_ratings_are_counted_as_llmbars_program_counts_them() -> None:
    """Its rule, on ratings drawn from 1 to 4 of which every tenth is unreadable: the first answer
    wins if it is rated higher, else the second; the other way round the second wins if it is rated
    higher, else the first; the first and then the second if a rating cannot be read."""
    draw = random.Random(0)
    rows, in_one_order, in_other, in_both = [], 0, 0, 0
    for number in range(2000):
        label: Preferred = draw.choice(("first", "second"))
        ratings = [None if draw.random() < 0.1 else draw.randint(1, 4) for _ in range(2)]
        one, two = ("first", "second")
        if None not in ratings:
            first, second = ratings
            one = "first" if first > second else "second"
            two = "second" if second > first else "first"
        in_one_order += one == label
        in_other += two == label
        in_both += one == two == label
        said = [Rating(None, "unreadable") if r is None else Rating(float(r)) for r in ratings]
        rows.append(Judged(pair(f"{number}", label), games_of_ratings(*said)))
    found = {
        f.measure: f.estimate.value
        for f in Figures(rows, 50, 0).shares(("agreement", "both_right"))
        if f.reading == "published"
    }
    assert found["agreement"] == pytest.approx((in_one_order + in_other) / 2 / len(rows))
    assert found["both_right"] == pytest.approx(in_both / len(rows))


async def test_a_panel_of_raters_is_one() -> None:
    panel = PanelJudge([Rater(lambda answer: 1.0), Rater(lambda answer: 1.0)])
    games = await panel.compare(pair("1"))
    assert games.rated and games.straight.preferred == "tie"
    assert from_row(Games, to_row(games)) == games
    assert not (await PanelJudge([RandomJudge(), Rater(len)]).compare(pair("1"))).rated
