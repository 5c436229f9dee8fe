"""Attempts that are to be played again, found in files that may be damaged."""

from pathlib import Path

import pytest
from viewer_run import records_of, write_run

from flowright.app.replaying import ReplayedAttempt, find_attempt, play
from flowright.core.errors import UserError
from flowright.environments.base import make_environment
from flowright.environments.registry import make_config
from flowright.runs.run_files import rollouts_path


def test_of_a_step_that_was_cut_off_the_whole_attempts_are_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    path = rollouts_path(run, 1)
    first, last = records_of(1)[0], records_of(1)[-1]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"step 1 has \d+ attempts in \d+ groups, not 1/"):
        find_attempt(run, f"1/{last['group']}/{last['index']}")
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="step 1 has 0 attempts"):
        find_attempt(run, f"1/{first['group']}/{first['index']}")


async def test_an_attempt_of_several_turns_is_replayed_turn_by_turn() -> None:
    config = make_config({"workflow": {"turns": 3, "workers": 1}})
    environment = make_environment(config)
    tasks = environment.tasks().train[:1]
    program = "async def workflow(problem):\n    return await answer(problem)"
    record = {
        "completion": "SUBMIT",
        "turns": [{"completion": text} for text in (program, "lines 9-9:", "SUBMIT")],
        "workflow": {},
        "key": "0/1/0/0",
    }
    opening = ReplayedAttempt(config, environment, tasks, tasks[0], record)
    now = await play(opening)
    assert [(t["turn"], t["failure"] and t["failure"]["reason"]) for t in now["trials"]] == [
        (1, None),
        (2, "no_program"),
    ]
    assert now["submitted"] == 1 and now["failure"] is None
    assert now["spent"]["calls"] == 1 and now["execution"]["answer"]
    again = await play(opening, program)
    assert again["execution"]["answer"] == now["execution"]["answer"], "the seeds are the same"
    assert len(again["trials"]) == 1
