"""Two arms and two seeds of a tiny run of train.py itself, by the command."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from flowright.core.checkout import child_environment

ROOT = Path(__file__).parents[2]
SMALL = {
    "instructions.reward": "constraints",
    "instructions.known_rule.train": 40,
    "instructions.known_rule.held_out": 8,
    "grpo.steps": 2,
    "grpo.prompts_per_step": 2,
    "grpo.group_size": 4,
    "evaluation.every": 0,
    "evaluation.final_problems": 4,
    "evaluation.baselines": False,
    "policy.max_new_tokens": 6,
    "policy.tiny.steps": 2,
    "policy.tiny.examples": 40,
    "run.tensorboard": False,
}


@pytest.mark.slow
def test_a_study_of_real_runs(tmp_path: Path) -> None:
    given = {
        "name": "tiny",
        "base": str(ROOT / "config/instructions_small.yaml"),
        "seeds": [3, 4],
        "control": "slow",
        "set": SMALL | {"policy.tiny.cache_dir": str(tmp_path / "cache")},
        "arms": [{"name": "slow"}, {"name": "fast", "set": {"grpo.learning_rate": 0.01}}],
    }
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(given))
    words = [sys.executable, "-m", "flowright.study", str(path), "--out", str(out)]
    done = subprocess.run(
        words, env=child_environment(), cwd=tmp_path, capture_output=True, text=True
    )
    logs = "\n".join(log.read_text() for log in out.glob("logs/*/*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["run"] for row in rows] == [
        *("slow/seed_3", "fast/seed_3", "slow/seed_4", "fast/seed_4"),
    ]
    for row in rows:
        assert row["finished"] and row["steps"] == 2 and row["failures"] == 0
        assert row["final_gold"] is not None and row["seconds"] > 0
        assert row["onset"] is None and row["onset_censored"] is None  # nothing is presented here
        assert (out / row["folder"] / "report.html").exists()
    assert (out / "report.html").exists() and "4 of 4 runs finished" in (
        out / "report.html"
    ).read_text()
