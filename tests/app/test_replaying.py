"""Attempts that are to be played again, found in files that may be damaged."""

from pathlib import Path
from typing import Any

import pytest
from viewer_run import records_of, write_run

from flowright.app.replaying import ReplayedAttempt, find_attempt, play
from flowright.core.errors import UserError
from flowright.environments.base import make_environment
from flowright.environments.episode import Turn
from flowright.environments.registry import make_config
from flowright.environments.rollout import Reward, Rollout, to_record
from flowright.grpo.step_record import TOKENS
from flowright.policy.sampling import Sample
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


async def test_a_text_that_was_cut_in_the_record_is_replayed_whole_or_not_at_all() -> None:
    """Cut in the comment, the first program would be a syntax error."""
    environment = make_environment(make_config({"workflow": {"turns": 2, "workers": 1}}))
    tasks = environment.tasks().train[:1]
    program = "async def workflow(problem):\n    # {}\n    return await answer(problem)"
    texts = [program.format(letter * 17_000) for letter in "ab"]
    samples = [Sample((1, 2), (-1.0, -1.0), text, "stop", 0) for text in texts]
    rollout = Rollout(
        tasks[0], samples[-1], Reward(0.0, {}), turns=tuple(Turn((), one) for one in samples)
    )
    record: dict[str, Any] = to_record(rollout, {"workflow": {}, "key": "0/1/0/0"}, 1, 0, 0, None)
    assert len(record["turns"][0]["completion"]) < 16_100
    opening = ReplayedAttempt(environment.config, environment, tasks, tasks[0], record)
    with pytest.raises(UserError, match="turn 1: its text was cut in the record"):
        await play(opening)
    split = [part for text in texts for part in (text[:9], text[9:])]
    record[TOKENS] = {"ids": [1, 2, 1, 2], "texts": split, "turns": [2, 2]}
    now = await play(opening)
    assert [trial["failure"] for trial in now["trials"]] == [None, None]
    assert "b" * 17_000 in now["workflow"]["source"]
    shorter = await play(opening, program.format("c"))
    assert "# c" in shorter["workflow"]["source"]
