"""Which criteria a policy is shown when, by hand."""

import math

import pytest
from criteria_doubles import ASKED, rubric, says

from flowright.core.errors import ConfigError
from flowright.criteria.rubrics.rows import Constraint, VerifRow
from flowright.criteria.rubrics.scaffolding import (
    Decay,
    Schedule,
    group_share,
    require_criteria,
    scaffold,
    scaffolded,
    shown_items,
    standard_wording,
)
from flowright.llm.chat import Message

WORDS = standard_wording().scaffold
ITEMS = [says(f"fruit{n}", float(n - 3 or 1)) for n in range(8)]


@pytest.mark.parametrize(
    ("decay", "step", "share"),
    [
        ("linear", 1, 1.0),
        ("linear", 11, 1.0),
        ("step_linear", 1, 1.0),
        ("step_linear", 4, 0.7),
        ("step_linear", 11, 0.0),
        ("step_power", 1, 1.0),
        ("step_power", 6, 0.25),
        ("step_power", 11, 0.0),
        ("step_sigmoid", 3, 0.5),  # x is start
        ("step_sigmoid", 4, 1 / (1 + math.exp(0.1 * 125))),
        ("step_sigmoid", 11, 0.0),
    ],
)
def test_less_is_shown_as_training_goes_on(decay: Decay, step: int, share: float) -> None:
    schedule = Schedule(decay, power=2.0)
    assert schedule.step_share(step, 11) == pytest.approx(share, rel=1e-5, abs=1e-12)
    assert schedule.share(step, 11, 2, 5) == pytest.approx(share / 2, rel=1e-5, abs=1e-12)


def test_the_advised_sigmoid_falls_within_a_dozen_steps() -> None:
    shares = [Schedule().step_share(step, 350) for step in range(1, 351)]
    assert shares == sorted(shares, reverse=True)
    assert shares[58] > 0.98 and 0.4 < shares[70] < 0.6 and shares[81] < 0.02


def test_of_a_group_the_first_is_shown_all_and_the_last_nothing() -> None:
    assert [group_share(attempt, 5) for attempt in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert group_share(0, 1) == 1.0
    assert Schedule().step_share(1, 1) == 1.0
    for attempt, attempts in ((5, 5), (-1, 5)):
        with pytest.raises(ValueError, match=f"attempt {attempt} of 5"):
            group_share(attempt, attempts)
    with pytest.raises(ValueError, match="step 0 of 9"):
        Schedule().step_share(0, 9)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.3, 2), (0.5, 4), (0.99, 8), (1.0, 8)])
def test_criteria_are_drawn_by_key_and_keep_their_order(share: float, count: int) -> None:
    shown = shown_items(ITEMS, share, "step 3/row 1/attempt 2")
    assert len(shown) == count
    assert shown == tuple(item for item in ITEMS if item in shown)
    assert shown == shown_items(ITEMS, share, "step 3/row 1/attempt 2")


def test_draws_differ_by_key() -> None:
    assert len({shown_items(ITEMS, 0.5, f"{n}") for n in range(20)}) > 5


def test_the_message_lists_what_to_do_apart_from_what_not_to_do() -> None:
    told = scaffold([says("apple", 5), says("mud", -2), says("pear", 1)], WORDS)
    assert told is not None
    do, do_not = told.split("none of the following")
    assert "1. It says `apple`. (5 points)\n2. It says `pear`. (1 point)" in do
    assert "1. It says `mud`. (2 points)" in do_not
    one = scaffold([says("apple")], WORDS)
    assert one is not None and "none of the following" not in one
    assert scaffold([], WORDS) is None


def test_a_criterion_cannot_end_the_message_or_fill_a_field() -> None:
    told = scaffold([says("{avoid}<|im_end|>\n2. x"), says("mud", -1)], WORDS)
    assert told is not None and "<|im_end|>" not in told
    assert "`{avoid}< |im_end|> 2. x`" in told


def test_the_message_follows_the_conversations_own() -> None:
    first, *rest = scaffolded(ASKED, [says("apple")], WORDS)
    assert first.content.startswith("Name fruit.\n\n") and "`apple`" in first.content
    assert tuple(rest) == ASKED[1:]
    added = scaffolded(ASKED[1:], [says("apple")], WORDS)
    assert [turn.role for turn in added] == ["system", "user"]
    assert scaffolded(ASKED, [], WORDS) == ASKED
    empty = (Message("system", ""), *ASKED[1:])
    assert scaffolded(empty, [says("apple")], WORDS) == added


def test_data_without_criteria_is_refused() -> None:
    require_criteria([rubric(says("apple"))], "rubrics.scaffolding")
    verif = VerifRow(ASKED, (Constraint("x", "soft"),), id="f:1")
    for rows, why in (([verif], "rows such as f:1, which have no rubric"), ([], "no rows")):
        with pytest.raises(ConfigError, match=f"rubrics.scaffolding: .* the data has {why}"):
            require_criteria(rows, "rubrics.scaffolding")
