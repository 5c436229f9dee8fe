"""Attempts that are to be played again, found in files that may be damaged."""

from pathlib import Path

import pytest
from viewer_run import records_of, write_run

from flowright.app.replaying import find_attempt
from flowright.core.errors import UserError
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
