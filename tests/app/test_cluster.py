"""The Slurm example with stand-ins for Slurm: who is started where, with what, and what becomes of
a job whose time is over."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from flowright.config.loading import load_models

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs/cluster/two_nodes.sbatch"

STAND_INS = {
    # The step of the servers stays; that of the trainer ends as it is told.
    "srun": """\
#!/usr/bin/env bash
echo "srun $*" | head -n 1 >> "$LOG"
if [[ " $* " == *" --nodelist=node-a "* ]]; then exec sleep 60; fi
echo "url $EXECUTOR_URL" >> "$LOG"
trap 'echo told >> "$LOG"; kill %1; exit 1' TERM
if [[ -n ${TRAINS:-} ]]; then sleep 60 & fi
echo training >> "$READY"
wait
exit "${STATUS:-0}"
""",
    "scontrol": """\
#!/usr/bin/env bash
if [[ $1 == show ]]; then printf 'node-a\\nnode-b\\n'; else echo "scontrol $*" >> "$LOG"; fi
""",
    # A server answers only after its step has begun.
    "curl": """\
#!/usr/bin/env bash
until grep --quiet -- --nodelist=node-a "$LOG"; do sleep 0.05; done
""",
}


def start(folder: Path, **variables: str) -> "subprocess.Popen[str]":
    (folder / "bin").mkdir()
    for name, text in STAND_INS.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    os.mkfifo(folder / "ready")
    environment = {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "LOG": str(folder / "log"),
        "READY": str(folder / "ready"),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_JOB_ID": "7",
        "GPUS_PER_NODE": "2",
        **variables,
    }
    command = ["bash", str(SCRIPT), "config/training.yaml", "grpo.steps=3"]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_one_node_serves_and_the_other_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path) as job:
        (tmp_path / "ready").read_text()
        assert job.wait(600) == 0, job.communicate()
    log = (tmp_path / "log").read_text()
    steps = [line for line in log.splitlines() if line.startswith("srun")]
    assert sum("--nodelist=node-a" in step and "bash -c" in step for step in steps) == 1
    (trainer,) = (step for step in steps if "--nodelist=node-b" in step)
    assert trainer.endswith(
        ".venv/bin/torchrun --nproc_per_node 2 train.py --config config/training.yaml "
        "run.name=training physical_gpus=[0,1] grpo.steps=3"
    )
    assert "scontrol requeue" not in log
    (urls,) = (line.removeprefix("url ") for line in log.splitlines() if line.startswith("url"))
    monkeypatch.setenv("EXECUTOR_URL", urls)
    served = load_models(ROOT / "config/aflow_llm.yaml")["gpt-oss-120b"]
    assert served.base_urls == ("http://node-a:8002/v1", "http://node-a:8102/v1")


def test_a_job_whose_time_is_over_saves_and_goes_on_as_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "outputs/mine").mkdir(parents=True)
    (tmp_path / "outputs/mine/config.json").touch()
    with start(tmp_path, TRAINS="1", RUN_NAME="mine") as job:
        (tmp_path / "ready").read_text()
        job.send_signal(signal.SIGTERM)
        assert job.wait(600) == 1, job.communicate()
    log = (tmp_path / "log").read_text().splitlines()
    assert "train.py --config config/training.yaml --resume run.name=mine" in "\n".join(log)
    assert log[-2:] == ["told", "scontrol requeue 7"]


def test_a_run_that_fails_is_not_queued_again(tmp_path: Path) -> None:
    with start(tmp_path, STATUS="3") as job:
        (tmp_path / "ready").read_text()
        assert job.wait(600) == 3, job.communicate()
    assert "requeue" not in (tmp_path / "log").read_text()
