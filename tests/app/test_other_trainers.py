"""The environment of a configuration in other trainers: TRL's reward function and verifiers."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowright.app.other_trainers import EnvironmentReward
from flowright.core.errors import ConfigError, RunPaused, UserError
from flowright.environments.registry import make_config

ROOT = Path(__file__).parents[2]
TRL_PYTHON = os.environ.get("FLOWRIGHT_TRL_PYTHON", "")
VERIFIERS_PYTHON = os.environ.get("FLOWRIGHT_VERIFIERS_PYTHON", "")
WORDS = "words_environment:Words"


def rewards(reward: EnvironmentReward, ids: Sequence[str], texts: Sequence[str], **more: Any):
    said = [[{"role": "assistant", "content": text}] for text in texts]
    return asyncio.run(reward(["p"] * len(ids), said, task=list(ids), **more))


def test_each_completion_gets_the_reward_of_its_task_and_gold_is_logged() -> None:
    reward = EnvironmentReward(make_config(environment=WORDS))
    data = reward.dataset()
    assert data[0] == {"prompt": [{"role": "user", "content": "Say it, 0."}], "task": "t0"}
    assert len(data) == 10 and reward.dataset(held_out=True)["task"][:] == ["t10", "t11"]

    logged: dict[str, float] = {}
    ids = ["t0", "t0", "t1", "t1", "t11"]
    found = rewards(reward, ids, ["y", "m", "m", "?", "n"], log_metric=logged.__setitem__)
    assert found == [1.0, 1.0, 0.0, -0.2, 0.0]
    assert logged["gold/accuracy"] == pytest.approx(2 / 5)
    assert logged["rollout/failed/no_program"] == pytest.approx(1 / 5)
    assert rewards(reward, ["t1"], ["y"]) == [1.0], "the environment stays open"
    reward.close()


def test_an_attempt_that_was_lost_has_no_reward_and_many_pause_the_run() -> None:
    reward = EnvironmentReward(make_config(environment=WORDS, judge={"model": "lost"}))
    assert rewards(reward, ["t0"] * 4, ["y"] * 4) == [None] * 4
    with pytest.raises(RunPaused, match="8 of 8 samples"):
        rewards(reward, ["t0"] * 4, ["y"] * 4)
    reward.close()


def test_what_cannot_be_graded_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"2 turns; TRL's reward functions .* set one turn"):
        EnvironmentReward("quickstart", ["workflow.turns=2"])
    with pytest.raises(UserError, match="no column task"):
        asyncio.run(EnvironmentReward(make_config(environment=WORDS))([], []))


def test_a_workflow_is_run_judged_and_charged_beside_the_others_of_its_group() -> None:
    reward = EnvironmentReward("quickstart", ["judge.mode=rules", "reward.cost_weight=0.5"])
    ids = [task.id for task in reward.tasks.train if task.kind == "math"][:6]
    once, twice = "await answer(problem)", "await ensemble(problem, [await answer(problem)] * 2)"
    programs = [f"async def workflow(problem):\n    return {call}" for call in (once, twice)]
    texts = [*programs, "no program"]
    found = rewards(reward, [id for id in ids for _ in texts], texts * len(ids))
    reward.close()
    groups = [found[first : first + 3] for first in range(0, len(found), 3)]
    assert {group[2] for group in groups} == {-0.2}
    both = [group for group in groups if min(x for x in group[:2] if x is not None) > 0]
    assert both and all(cheap == 1.0 and 0.5 <= dear <= 1.0 for cheap, dear, _ in both)


def test_verifiers_is_named_where_it_is_missing() -> None:
    code = "import sys; sys.modules['verifiers'] = None; import flowright_env"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs verifiers 0.4: pip install -r requirements-env.txt" in done.stderr


def run_in(python: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of tests/doubles in an environment of its own; return its last line."""
    done = subprocess.run(
        [python, str(ROOT / "tests/doubles" / script), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests/doubles"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.trl
@pytest.mark.skipif(not TRL_PYTHON, reason="FLOWRIGHT_TRL_PYTHON names no python that has trl")
def test_the_real_trl_trains_on_an_environment(tmp_path: Path) -> None:
    run = run_in(TRL_PYTHON, "trl_environment_run.py", str(tmp_path))
    assert run["finite"] and run["steps"] == len(run["logs"]) == 2
    assert {1.0, -0.2} <= {reward for call in run["rewards"] for reward in call}
    for log, call in zip(run["logs"], run["rewards"], strict=True):
        assert log["rewards/environment_reward/mean"] == pytest.approx(sum(call) / len(call))
        assert "gold/accuracy" in log


@pytest.mark.trl
@pytest.mark.skipif(
    not VERIFIERS_PYTHON, reason="FLOWRIGHT_VERIFIERS_PYTHON names no python that has verifiers"
)
def test_the_real_verifiers_plays_and_grades_an_environment() -> None:
    """A lost attempt is an error and has no reward; of two turns the second sees the answer."""
    run = run_in(VERIFIERS_PYTHON, "verifiers_run.py")
    assert [(e["ok"], e["rewards"], e["gold"]) for e in run["words"]] == [(True, [1.0], 1.0)] * 2
    assert [(e["ok"], e["rewards"]) for e in run["lost"]] == [(False, [])] * 2
    assert all("unavailable" in e["error"] for e in run["lost"])
    assert [(e["ok"], e["turns"]) for e in run["turns"]] == [(True, 2)]
    assert run["turns"][0]["messages"] == ["Say it, 0.", "y", "Again, after y.", "y"]
