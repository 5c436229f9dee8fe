"""A user's own objective, advantage and the like, from a folder outside the package."""

from pathlib import Path
from typing import Any

import pytest
from documented import write_programs
from tiny_policy import random_groups, same, tiny_policy, weights

from flowright.config.grpo import GrpoSection
from flowright.core.errors import ConfigError
from flowright.core.plugins import Table
from flowright.data.task import Task
from flowright.environments.episode import Episode, Observation, Turn
from flowright.environments.registry import load_config
from flowright.grpo import ADVANTAGES, CORRECTIONS, KL_ESTIMATORS, OBJECTIVES, SCHEDULES
from flowright.grpo.advantages import group_advantages, with_turn_credit
from flowright.grpo.learner import Learner
from flowright.policy.sampling import Sample

MORE = """
def nothing(rewards):
    return [[float("nan")] * len(group) for group in rewards]

def half(done):
    return 0.5
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"my_rl.py", "rloo.yaml"} <= {*write_programs("extending.md", tmp_path)}
    with (tmp_path / "my_rl.py").open("a") as module:
        module.write(MORE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def updated(**given: Any) -> tuple[dict, dict[str, float]]:
    policy = tiny_policy()
    section = GrpoSection(**{"kl_coefficient": 0.0, "learning_rate": 1e-3, **given})
    metrics = Learner(policy, section, 1.0, 0).update(random_groups(3, [(3, [2, 4])]), 1, 8)
    return weights(policy), metrics


@pytest.mark.usefixtures("outside")
def test_an_objective_of_ones_own_trains() -> None:
    section = load_config("rloo.yaml").grpo
    assert section.advantage_scale == "my_rl:leave_one_out"
    mine, metrics = updated(loss=section.loss)
    assert metrics["policy/clip_frac"] == 0.0
    # With ratios of 1, every objective has this gradient.
    on_policy, _ = updated(loss="cispo", off_policy="ignored")
    assert same(mine, on_policy)
    assert not same(mine, updated(loss="cispo")[0])


@pytest.mark.usefixtures("outside")
def test_an_advantage_and_a_schedule_of_ones_own() -> None:
    one, two = group_advantages([[1.0, None, 0.0, 0.5], [2.0, 2.0]], "my_rl:leave_one_out")
    assert one.values == (0.75, 0.0, -0.75, 0.0)  # 1 - 1/4, 0 - 3/4, 1/2 - 1/2
    assert (two.values, two.signal) == ((0.0, 0.0), "zero_variance")
    with pytest.raises(ValueError, match=r"my_rl:nothing gave \[nan, nan\]"):
        group_advantages([[1.0, 0.0]], "my_rl:nothing")
    assert updated(learning_rate=0.5, schedule="my_rl:half")[1]["policy/lr"] == 0.25


@pytest.mark.usefixtures("outside")
def test_an_advantage_of_ones_own_compares_the_states_of_turns() -> None:
    task, sample = Task("t", "k", "s", "q", ""), Sample((1,), (0.0,), "a", "stop", 0)
    turns = Turn((1,), sample, Observation("seen", reward=0.0, state="same")), Turn((1,), sample)
    rewards = [1.0, 0.0, 0.5]
    episodes = [Episode(task, f"1/t/{n}", turns) for n in range(3)]
    section = GrpoSection.model_validate(
        {"advantage_scale": "my_rl:leave_one_out", "turns": {"credit": "gigpo"}}
    )
    (found,) = group_advantages([rewards], section.advantage_scale)
    credited = with_turn_credit(found, rewards, episodes, [0.0] * 3, section)
    assert credited.turns == tuple((2 * value, 2 * value) for value in (0.75, -0.75, 0.0))


@pytest.mark.usefixtures("outside")
def test_what_is_no_objective_ends_before_the_run() -> None:
    for loss, said in (
        ("my_rl:REINFORC", "did you mean REINFORCE"),
        ("my_rl:reinforce", r"give a flowright\.grpo\.objectives\.Objective"),
        ("no_such:THING", "no module no_such"),
    ):
        with pytest.raises(ConfigError, match=said):
            updated(loss=loss)


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("loss", OBJECTIVES),
        ("advantage_scale", ADVANTAGES),
        ("kl_estimator", KL_ESTIMATORS),
        ("off_policy", CORRECTIONS),
        ("schedule", SCHEDULES),
    ],
)
def test_an_unknown_name_is_told_the_known_ones(key: str, table: Table) -> None:
    for name in table:
        given = {key: name, "kl_coefficient": 0.0}  # else k1 is refused in the loss
        assert getattr(GrpoSection.model_validate(given), key) == name
        assert table.load(name)
    with pytest.raises(ValueError, match=f"known: {', '.join(table)}, or your own as package"):
        GrpoSection.model_validate({key: "ppoo"})
