"""A study whose runs are those of fake_run.py: as a command, and for tests that call it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flowright.core.command_line import run_command
from flowright.study.command import StudyRequest, run_study
from flowright.study.runner import Spawned, Start
from flowright.study.runs import StudyRun

FAKE = Path(__file__).parent / "fake_run.py"
BASE = Path(__file__).parents[2] / "config/quickstart.yaml"
STRENGTH = "simulated.judge_biases.verbosity"

ARMS_WITH_DOSES = [
    {"name": "honest"},
    {
        "name": "wordy",
        "over": {"strength": [0.3, 0.9]},
        "control_at": 0,
        "set": {STRENGTH: "${strength}"},
        "shortcut": "elaborate",
    },
]


def command(run: StudyRun, base: Path, resume: bool) -> Sequence[str]:
    resumed = ["--resume"] if resume else []
    return [sys.executable, str(FAKE), "--config", str(base), *resumed, *run.overrides]


def started(run: StudyRun) -> Start:
    return Spawned


def study(**changes: Any) -> dict[str, Any]:
    """The file's content: a control and one strong bias, two seeds."""
    arms = [
        {"name": "honest"},
        {"name": "wordy", "set": {STRENGTH: 0.9}, "shortcut": "elaborate"},
    ]
    given = {"name": "fake", "base": str(BASE), "seeds": 2, "control": "honest", "arms": arms}
    return given | changes


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study(**changes)))
    return path


if __name__ == "__main__":
    request = StudyRequest(
        Path(sys.argv[1]), out=Path(sys.argv[2]), at_once=1, command=command, start=started
    )
    sys.exit(run_command(lambda: run_study(request)))
