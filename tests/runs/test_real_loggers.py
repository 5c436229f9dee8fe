"""The packages of ``run.loggers`` themselves, offline: what their files hold is metrics.jsonl."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowright.runs.run_files import read_metrics

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/doubles/real_loggers.py"


@pytest.mark.parametrize("package", ["wandb", "mlflow", "trackio"])
def test_the_package_holds_the_numbers_of_the_metrics_file(package: str, tmp_path: Path):
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed: pip install -r requirements-loggers.txt")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(tmp_path),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    command = [sys.executable, str(SCRIPT), package, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)

    rows = read_metrics(tmp_path / "run")
    assert len(rows) == 6
    last_of_each_step = {row["step"]: row for row in read["rows"]}
    assert [last_of_each_step[step] for step in sorted(last_of_each_step)] == rows
    assert {*read["names"]} == {"shown/mine"}
    assert len({*read["ids"]}) == 1  # resumed, and still one run
    assert read["config"]["seed"] == 7
    assert read.get("status", ["FINISHED"]) == ["FINISHED"]
