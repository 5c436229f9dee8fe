"""Law 1 in the reward, the order of the outcomes, and the cost that only ranks right answers."""

import math
from itertools import product

import pytest
from hypothesis import given, strategies as st

from flowright.config.workflow import RewardSection
from flowright.core.errors import Blame, Failure, Reason, UserError
from flowright.environments.rollout import INVALID, UNSCORED, Reward, reward_of, with_cost
from flowright.judging.verdict import Verdict

SECTION = RewardSection(invalid=-0.3, crashed=-0.1, wrong=0.1, right=1.1)
RIGHT = Verdict(1.0, True, "llm", "ok")
WRONG = Verdict(0.0, False, "llm", "ok")
SILENT = [
    Verdict(None, None, "llm", status)
    for status in ("abstain", "parse_error", "truncated", "timeout", "unavailable")
]


def test_right_and_wrong() -> None:
    assert reward_of(None, RIGHT, SECTION) == Reward(1.1, {"validity": 0.0, "correctness": 1.1})
    assert reward_of(None, WRONG, SECTION) == Reward(0.1, {"validity": 0.0, "correctness": 0.1})


@pytest.mark.parametrize("reason", [r for r in Reason if r.blame is Blame.POLICY])
def test_every_fault_of_the_policy_has_its_reward(reason: Reason) -> None:
    before_running = {"truncated", "no_program", "syntax", "unsupported", "type"}
    expected = -0.3 if reason.value in before_running else -0.1
    reward = reward_of(Failure(reason, "..."), None, SECTION)
    assert reward == Reward(expected, {"validity": expected, "correctness": 0.0})
    assert (reason in INVALID) == (expected == -0.3)


@pytest.mark.parametrize("reason", [r for r in Reason if r.blame is Blame.INFRASTRUCTURE])
@pytest.mark.parametrize("verdict", [None, RIGHT, WRONG])
def test_a_failure_of_ours_is_no_reward(reason: Reason, verdict: Verdict | None) -> None:
    assert reward_of(Failure(reason, "..."), verdict, SECTION) == UNSCORED


@pytest.mark.parametrize("verdict", SILENT, ids=lambda verdict: verdict.status)
def test_a_judge_that_says_nothing_is_no_reward(verdict: Verdict) -> None:
    reward = reward_of(None, verdict, SECTION)
    assert reward.value is None
    assert not reward.parts


def test_the_policys_fault_counts_whatever_the_judge_did() -> None:
    failure = Failure(Reason.CRASHED, "KeyError")
    for verdict in (RIGHT, WRONG, *SILENT):
        assert reward_of(failure, verdict, SECTION).value == -0.1


def test_nothing_known_is_a_bug() -> None:
    with pytest.raises(ValueError, match="needs a verdict"):
        reward_of(None, None, SECTION)


def test_parts_must_sum_to_the_value() -> None:
    with pytest.raises(ValueError, match="do not sum"):
        Reward(1.0, {"correctness": 0.5})
    with pytest.raises(ValueError, match="no parts"):
        Reward(None, {"correctness": 0.0})
    with pytest.raises(UserError, match="never NaN"):
        Reward(math.nan, {"correctness": math.nan})


# Costs.

PAID = RewardSection(cost_weight=0.2)


def group(*values: float | None) -> list[Reward]:
    outcomes = {
        1.0: (None, RIGHT),
        0.0: (None, WRONG),
        -0.1: (Failure(Reason.CRASHED, ""), None),
        -0.2: (Failure(Reason.SYNTAX, ""), None),
        None: (None, SILENT[0]),
    }
    return [reward_of(*outcomes[value], PAID) for value in values]


def test_costs_by_hand() -> None:
    """w = 0.2, right - wrong = 1, right answers spent 100, 150 and 400 tokens: the costs are
    0.2 * 0 / 400, 0.2 * 50 / 400 and 0.2 * 300 / 400."""
    rewards = with_cost(group(1.0, 0.0, 1.0, None, 1.0, -0.1), [100, 9999, 150, 5, 400, 1], PAID)
    assert [r.value for r in rewards] == pytest.approx([1.0, 0.0, 0.975, None, 0.85, -0.1])
    assert [r.parts.get("cost") for r in rewards] == pytest.approx([0, 0, -0.025, None, -0.15, 0])
    assert rewards[4].parts == pytest.approx({"validity": 0, "correctness": 1, "cost": -0.15})


def test_a_budget_is_free_by_hand() -> None:
    """w = 0.2 and a budget of 200: 100 and 150 pay nothing, 400 pays 0.2 * 200 / 400. A budget of
    50 is below the cheapest right answer, which then pays nothing; one of 500 is above all."""
    right = group(1.0, 1.0, 1.0, 0.0)

    def values(budget: float) -> list[float | None]:
        return [r.value for r in with_cost(right, [100, 150, 400, 999], PAID, budget)]

    assert values(200.0) == pytest.approx([1.0, 1.0, 0.9, 0.0])
    assert values(50.0) == pytest.approx([1.0, 0.975, 0.85, 0.0])
    assert values(500.0) == [1.0, 1.0, 1.0, 0.0]


def test_no_weight_no_part() -> None:
    rewards = group(1.0, 0.0, None)
    assert with_cost(rewards, [1, 2, 3], RewardSection()) == rewards
    assert all("cost" not in reward.parts for reward in rewards)


@pytest.mark.parametrize("tokens", [[0, 0], [7, 7]])
def test_equal_costs_are_no_costs(tokens: list[int]) -> None:
    assert [r.value for r in with_cost(group(1.0, 1.0), tokens, PAID)] == [1.0, 1.0]


def test_a_group_without_right_answers_pays_nothing() -> None:
    assert [r.value for r in with_cost(group(0.0, -0.2), [10, 900], PAID)] == [0.0, -0.2]
    assert with_cost([], [], PAID) == []


def test_tokens_for_every_reward() -> None:
    with pytest.raises(ValueError, match="2 rewards with 1"):
        with_cost(group(1.0, 1.0), [1], PAID)


@st.composite
def sections(draw: st.DrawFn) -> RewardSection:
    invalid, crashed, wrong = sorted(draw(st.tuples(*[st.floats(-2, 1)] * 3)))
    right = wrong + draw(st.floats(0.01, 3))
    weight = draw(st.floats(0, 0.5))
    return RewardSection(
        invalid=invalid, crashed=crashed, wrong=wrong, right=right, cost_weight=weight
    )


OUTCOMES = st.one_of(
    st.sampled_from([(None, RIGHT), (None, WRONG), (None, SILENT[0])]),
    st.sampled_from([(Failure(reason, ""), None) for reason in Reason]),
)


@given(sections(), st.lists(st.tuples(OUTCOMES, st.integers(0, 10**7)), max_size=16))
def test_costs_keep_the_order_of_outcomes(section: RewardSection, samples: list) -> None:
    plain = [reward_of(failure, verdict, section) for (failure, verdict), _ in samples]
    tokens = [count for _, count in samples]
    costed = with_cost(plain, tokens, section)
    assert [r.value is None for r in costed] == [r.value is None for r in plain]
    for (a, b), (x, y) in zip(product(plain, repeat=2), product(costed, repeat=2), strict=True):
        if None not in (a.value, b.value) and a.value > b.value:  # pyright: ignore
            assert x.value > y.value  # pyright: ignore
    right = [
        (count, reward.value)
        for count, reward, before in zip(tokens, costed, plain, strict=True)
        if before.value == section.right
    ]
    for (few, more_reward), (many, less_reward) in product(right, repeat=2):
        if few < many:
            assert more_reward >= less_reward  # pyright: ignore
    for reward in costed:
        if reward.value is not None:
            assert math.isfinite(reward.value)
