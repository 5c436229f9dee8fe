"""Credit of turns: values worked out by hand; an attempt of one turn has its outcome's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_policy import same
from toy_run import TASKS, configured, train

from flowright.config.grpo import GrpoSection, TurnsSection
from flowright.environments.episode import Episode, Observation, Turn
from flowright.grpo.advantages import GroupAdvantages, group_advantages, with_turn_credit
from flowright.policy.sampling import Sample

WROTE = Sample((5,), (-1.0,), "x", "stop", 0)


def episode(*seen: tuple[float, str | None]) -> Episode:
    """An attempt whose turns but the last earned rewards and led to states."""
    turns = [Turn((1,), WROTE, Observation("d", reward=r, state=s)) for r, s in seen]
    return Episode(TASKS[0], "1/1/0/0", (*turns, Turn((1,), WROTE)))


def credited(
    credit: str,
    rewards: Sequence[float | None],
    episodes: Sequence[Episode],
    penalties: Sequence[float] | None = None,
    **options: Any,
) -> GroupAdvantages:
    turns = {n: options.pop(n) for n in ("discount", "step_weight") if n in options}
    section = GrpoSection(turns=TurnsSection.model_validate({"credit": credit, **turns}), **options)
    costs = penalties or [0.0] * len(rewards)
    (found,) = group_advantages([rewards], section.advantage_scale, [costs])
    return with_turn_credit(found, rewards, episodes, costs, section)


def assert_turns(found: GroupAdvantages, expected: Sequence[Sequence[float]]) -> None:
    assert len(found.turns) == len(expected)
    for values, wanted in zip(found.turns, expected, strict=True):
        assert values == pytest.approx(wanted, abs=2e-6)


# Of a reward of 1 the first turn has earned 1/2, so the last has the other half. With a discount of
# 1/2 its returns are 1/2 + 1/4 and 1/2. Then an attempt of two turns without a reward, one of a
# single turn with 1, and one that could not be scored.
REWARDS = [1.0, 0.0, 1.0, None]
EPISODES = [episode((0.5, "a")), episode((0.0, "a")), episode(), episode((0.5, "a"))]


def test_discounted_returns_are_compared_with_the_same_turn_of_others() -> None:
    # First turns 3/4, 0, 1 have the mean 7/12; second turns 1/2, 0 the mean 1/4.
    found = credited("discounted", REWARDS, EPISODES, discount=0.5, advantage_scale="none")
    assert_turns(found, [[2 / 12, 1 / 4], [-7 / 12, -1 / 4], [5 / 12], [0.0, 0.0]])
    # Their deviations: sqrt((4 + 49 + 25) / 144 / 2) = 0.520416, sqrt(1/16 + 1/16) = 0.353553.
    found = credited("discounted", REWARDS, EPISODES, discount=0.5)
    expected = [[0.320256, 0.707105], [-1.120896, -0.707105], [0.800640], [0.0, 0.0]]
    assert_turns(found, expected)
    assert found.signal == "ok"
    # A penalty is centred among the scored, -1 being 2/3 below the mean, and not scaled.
    found = credited("discounted", REWARDS, EPISODES, [-1, 0, 0, -5], discount=0.5)
    paid = [-2 / 3, 1 / 3, 1 / 3, 0]
    assert_turns(found, [[v + p for v in row] for row, p in zip(expected, paid, strict=True)])


def test_without_a_discount_a_first_turn_has_the_whole_reward() -> None:
    found = credited("discounted", REWARDS, EPISODES, advantage_scale="none")
    assert_turns(found, [[1 / 3, 1 / 4], [-2 / 3, -1 / 4], [1 / 3], [0.0, 0.0]])


def test_a_turn_that_no_other_attempt_has_is_compared_with_nothing() -> None:
    long = episode((0.0, None), (0.0, None))
    found = credited("discounted", [1.0, 0.0], [long, episode()], advantage_scale="none")
    assert_turns(found, [[0.5, 0.0, 0.0], [-0.5]])
    assert found.alone == 2


def test_equal_rewards_may_still_differ_by_turn() -> None:
    early, late = episode((1.0, None)), episode((0.0, None))
    found = credited("discounted", [1.0, 1.0], [early, late], advantage_scale="none")
    assert_turns(found, [[0.0, -0.5], [0.0, 0.5]])
    assert found.signal == "ok" and found.values == (0.0, 0.0)


# Four attempts with rewards 1, 0, 0, 1 and no reward between. The state "a" is that of the second
# turns of the first two, and of the third turn of the third; "b" is that of a single turn, "c" of
# two turns of one attempt, and None is like no other state.
STATES = [
    episode((0.0, "a")),
    episode((0.0, "a")),
    episode((0.0, "b"), (0.0, "a")),
    episode((0.0, "c"), (0.0, "c"), (0.0, None)),
]
OUTCOMES = [1.0, 0.0, 0.0, 1.0]


def test_gigpo_adds_the_lead_over_turns_that_began_in_the_same_state() -> None:
    # The attempts' advantages are 1/2, -1/2, -1/2, 1/2. First turns share the prompt: with a
    # discount of 1/2 their returns are 1/2, 0, 0, 1/8, of the mean 5/32. In "a": 1, 0, 0 with the
    # mean 1/3. In "c": 1/4 and 1/2, with the mean 3/8.
    found = credited(
        "gigpo", OUTCOMES, STATES, discount=0.5, step_weight=0.5, advantage_scale="none"
    )
    first = [0.5 * (value - 5 / 32) for value in (1 / 2, 0, 0, 1 / 8)]
    expected = [
        [0.5 + first[0], 0.5 + 0.5 * 2 / 3],
        [-0.5 + first[1], -0.5 - 0.5 / 3],
        [-0.5 + first[2], -0.5, -0.5 - 0.5 / 3],
        [0.5 + first[3], 0.5 - 0.5 / 8, 0.5 + 0.5 / 8, 0.5],
    ]
    assert_turns(found, expected)
    assert found.alone == 2


def test_gigpo_divides_by_the_deviation_of_a_state_where_groups_are_scaled() -> None:
    # The attempts': 1/2 over sqrt(4/4/3) = 0.866025. In "a": squares 4/9 + 1/9 + 1/9 over 2, root
    # 0.577350: 1.154701, -0.577350. In "c" without a discount 1 and 1: no lead. First turns: as the
    # attempts themselves, twice 0.866024 in all.
    found = credited("gigpo", OUTCOMES, STATES)
    a = 0.866024
    expected = [
        [2 * a, a + 1.154699],
        [-2 * a, -a - 0.577349],
        [-2 * a, -a, -a - 0.577349],
        [2 * a, a, a, a],
    ]
    assert_turns(found, expected)


def test_other_tasks_and_other_prompts_are_other_states() -> None:
    two = [episode((0.0, "a")), episode((0.0, "a"))]
    other = Episode(TASKS[1], "1/1/0/1", two[1].turns)
    found = credited("gigpo", [1.0, 0.0], [two[0], other], advantage_scale="none")
    assert not found.turns and found.values == (0.5, -0.5)


@pytest.mark.parametrize("credit", ["discounted", "gigpo"])
@pytest.mark.parametrize("scale", ["group", "none", "rloo"])
def test_attempts_of_one_turn_have_their_outcomes_advantages(credit: str, scale: str) -> None:
    rewards, costs = [1.0, 0.0, None, 0.5], [-0.1, 0.0, 0.0, -0.3]
    (outcome,) = group_advantages([rewards], scale, [costs])
    found = credited(credit, rewards, [episode()] * 4, costs, advantage_scale=scale, discount=0.5)
    assert found == outcome


async def test_a_run_of_one_turn_has_the_outcomes_numbers(tmp_path: Path) -> None:
    for credit in ("outcome", "discounted", "gigpo"):
        turns = TurnsSection(credit=credit, discount=0.5)
        config = configured({"steps": 2, "turns": turns}, evaluation={"every": 0})
        done = await train(tmp_path / credit, config=config)
        if credit == "outcome":
            expected = done
        assert done.metrics == expected.metrics and same(done.weights, expected.weights)
