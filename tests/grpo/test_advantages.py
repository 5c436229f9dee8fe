"""Group-relative advantages: values worked out by hand, and law 1."""

import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from flowright.core.errors import UserError
from flowright.environments.rollout import Reward
from flowright.grpo import ADVANTAGES
from flowright.grpo.advantages import group_advantages

# Multiples of 1/8: sums and shifts of them are exact, so that equality means equality.
ANY_REWARD = [scale for scale in ADVANTAGES if scale != "maxrl"]  # which wants rewards from 0 on
SCALES = st.sampled_from(ANY_REWARD)
EIGHTHS = st.integers(-80, 80).map(lambda n: n / 8)
GROUP = st.lists(st.none() | EIGHTHS, min_size=1, max_size=10)


def values(rewards: Sequence[float | None], scale: str = "group") -> tuple[float, ...]:
    return group_advantages([rewards], scale)[0].values


def test_a_group_is_centred_and_divided_by_its_sample_deviation():
    # Mean 5, deviations -3, -1, 4, their squares sum to 26, 26 / (3 - 1) = 13, and
    # sqrt(13) = 3.605551: -3 / 3.605551 = -0.832050, -1 / ... = -0.277350, 4 / ... = 1.109400.
    assert values([2.0, 4.0, 9.0]) == pytest.approx([-0.832050, -0.277350, 1.109400], rel=1e-5)


def test_right_and_wrong_in_equal_numbers():
    # Mean 1/2, four squares of 1/4 over 3: deviation 1/sqrt(3), so that A = sqrt(3) / 2.
    expected = [0.866025, -0.866025, -0.866025, 0.866025]
    assert values([1.0, 0.0, 0.0, 1.0]) == pytest.approx(expected, rel=1e-5)


def test_an_unscored_sample_has_exactly_zero_and_does_not_move_the_others():
    # Mean 1/2, deviation sqrt(1/4 + 1/4) = 0.707107, A = 0.5 / 0.707107.
    first, lost, last = values([1.0, None, 0.0])
    assert (first, last) == pytest.approx((0.707107, -0.707107), rel=1e-5)
    assert lost == 0.0
    assert values([1.0, 0.0]) == (first, last)


def test_scale_none_only_centres():
    assert values([2.0, 4.0, 9.0], "none") == (-3.0, -1.0, 4.0)


def test_scale_batch_divides_by_the_deviation_of_every_scored_reward():
    # Of 1, 0, 3, 3: mean 1.75, squares 0.5625 + 3.0625 + 2 * 1.5625 = 6.75, / 3 = 2.25, root 1.5.
    # The second group teaches nothing, and still belongs to the batch.
    one, two = group_advantages([[1.0, None, 0.0], [3.0, 3.0]], "batch")
    assert one.values == pytest.approx([1 / 3, 0.0, -1 / 3], rel=1e-5)
    assert (two.values, two.signal) == ((0.0, 0.0), "zero_variance")


def test_scale_rloo_is_less_the_mean_of_the_others():
    # 2 - (4 + 9) / 2, 4 - (2 + 9) / 2, 9 - (2 + 4) / 2.
    assert values([2.0, None, 4.0, 9.0], "rloo") == pytest.approx((-4.5, 0.0, -1.5, 6.0), rel=1e-6)


def test_scale_reinforce_plus_plus_divides_by_the_deviation_of_what_was_centred():
    # Centred: 1/2, -1/2; 0, 0; 2, -2. Squares 1/4, 1/4, 0, 0, 4, 4 sum to 8.5, / 5 = 1.7, root
    # 1.303840. How far the groups' means are apart does not matter.
    rewards = [[1.0, None, 0.0], [3.0, 3.0], [104.0, 100.0]]
    one, two, three = group_advantages(rewards, "reinforce_plus_plus_baseline")
    assert one.values == pytest.approx([0.383482, 0.0, -0.383482], rel=1e-5)
    assert (two.values, two.signal) == ((0.0, 0.0), "zero_variance")
    assert three.values == pytest.approx([1.533930, -1.533930], rel=1e-5)


def test_maxrl_divides_by_the_mean():
    # Mean 1/4: (1 - 1/4) / (1/4) = 3, and -1 for the others. Mean 1/2: 1 and -1.
    one, two = group_advantages([[1.0, 0.0, None, 0.0, 0.0], [1.0, 0.0]], "maxrl")
    assert one.values == pytest.approx((3.0, -1.0, 0.0, -1.0, -1.0))
    assert two.values == pytest.approx((1.0, -1.0))
    with pytest.raises(UserError, match=r"maxrl: a reward of -0.2; give rewards of 0 or more"):
        group_advantages([[1.0, -0.2]], "maxrl")


def test_reinforce_plus_plus_has_no_baseline_of_a_group():
    # 1, 1, 0, 1: mean 3/4, squares 3 x 1/16 + 9/16 = 3/4, / 3 = 1/4, root 1/2.
    rewards = [[1.0, 1.0], [0.0, None, 1.0], [None, None]]
    one, two, three = group_advantages(rewards, "reinforce_plus_plus")
    assert one.values == pytest.approx((0.5, 0.5), rel=1e-5) and one.signal == "ok"
    assert two.values == pytest.approx((-1.5, 0.0, 0.5), rel=1e-5)
    assert (three.values, three.signal) == ((0.0, 0.0), "too_few")
    (equal, _) = group_advantages([[1.0, 1.0], [1.0, 1.0]], "reinforce_plus_plus")
    assert equal.signal == "zero_variance"


def test_eight_right_answers_are_eight_right_answers_however_their_penalties_differ():
    penalties = [-0.01 * nats for nats in (0.1, 0.4, 0.2, 0.9, 0.3, 0.2, 0.5, 0.1)]
    for scale in ADVANTAGES:
        (group,) = group_advantages([[1.0] * 8], scale, [penalties])
        assert (group.values, group.signal) == ((0.0,) * 8, "zero_variance")


@pytest.mark.parametrize("scale", list(ADVANTAGES))
def test_a_penalty_is_centred_and_not_scaled(scale: str):
    # Mean of those of the scored samples, -0.01, -0.03 and -0.05: -0.03.
    rewards, penalties = [[1.0, None, 1.0, 0.0], [2.0, 0.0]], [[-0.01, -9.0, -0.03, -0.05], [0, 0]]
    plain = group_advantages(rewards, scale)
    one, two = group_advantages(rewards, scale, penalties)
    moved = [a - b for a, b in zip(one.values, plain[0].values, strict=True)]
    assert moved == pytest.approx([0.02, 0.0, 0.0, -0.02], abs=1e-9)
    assert two == plain[1]
    assert one.values[1] == 0.0, "unscored, whatever it would have paid"


@pytest.mark.parametrize("rewards", [[None, None], [None, 1.0, None], [0.5]])
def test_a_group_with_fewer_than_two_scored_samples_is_dropped(rewards: list[float | None]):
    (group,) = group_advantages([rewards])
    assert group.signal == "too_few"
    assert group.values == (0.0,) * len(rewards)


def test_zero_variance_is_equality_not_a_small_deviation():
    (equal,) = group_advantages([[0.1] * 3])  # whose mean is not 0.1 in floating point
    assert (equal.values, equal.signal) == ((0.0,) * 3, "zero_variance")
    (close,) = group_advantages([[0.1 + 0.2, 0.3]])
    assert close.signal == "ok"
    assert max(map(abs, close.values)) < 1e-6  # the epsilon in the divisor: nothing explodes


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e155])
def test_a_reward_that_is_no_number_or_too_large_is_refused_by_name(bad: float):
    with pytest.raises(UserError, match=re.escape(f"reward {bad:g}: give a number")):
        group_advantages([[1.0, 0.0], [0.0, bad]])
    with pytest.raises(UserError, match="an unscored sample is None"):
        group_advantages([[1.0, 0.0]], penalties=[[bad, 0.0]])
    with pytest.raises(UserError, match="an unscored sample is None"):
        Reward(bad, {"correctness": bad})


@pytest.mark.parametrize("scale", ANY_REWARD)
def test_the_largest_rewards_have_finite_advantages(scale: str):
    (group,) = group_advantages([[1e12, -1e12, 1e12]], scale)
    assert all(map(math.isfinite, group.values)) and group.values[0] > 0 > group.values[1]


@given(GROUP, SCALES)
def test_advantages_sum_to_zero_and_only_a_signal_has_any(rewards: list, scale: str):
    (group,) = group_advantages([rewards], scale)
    assert math.fsum(group.values) == pytest.approx(0.0, abs=1e-9)
    assert any(group.values) == (group.signal == "ok")
    assert all(a == 0.0 for a, r in zip(group.values, rewards, strict=True) if r is None)


@given(GROUP, EIGHTHS, SCALES)
def test_a_constant_added_to_every_reward_changes_nothing(rewards: list, shift: float, scale: str):
    shifted = [None if r is None else r + shift for r in rewards]
    assert values(shifted, scale) == pytest.approx(values(rewards, scale), rel=1e-9, abs=1e-12)


@given(GROUP, st.randoms(use_true_random=False))
def test_the_order_of_a_group_is_the_order_of_its_advantages(rewards: list, rng):
    order = rng.sample(range(len(rewards)), len(rewards))
    before = values(rewards)
    assert values([rewards[i] for i in order]) == tuple(before[i] for i in order)


@given(st.lists(GROUP, min_size=1, max_size=4), SCALES)
def test_unscored_samples_could_as_well_not_be_there(groups: list, scale: str):
    scored = [[r for r in group if r is not None] for group in groups]
    for rewards, whole, part in zip(
        groups, group_advantages(groups, scale), group_advantages(scored, scale), strict=True
    ):
        kept = tuple(a for a, r in zip(whole.values, rewards, strict=True) if r is not None)
        assert (kept, whole.signal) == (part.values, part.signal)


def test_an_unscored_sample_among_negative_siblings_gains_nothing() -> None:
    siblings = [-0.2, -0.1, -0.2]
    assert values([*siblings, None])[3] == 0.0
    assert values([*siblings, 0.0])[3] > 0.0, "what a failure scored 0 would have earned"
