"""A run of ``config/quickstart.yaml`` with other settings, for benchmarks of whole runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def trained(output: Path, name: str, *more: str) -> Path:
    """Train in a process of its own; ``more`` are settings and options of ``train.py``. Returns the
    run's directory, ``output/name``. What a run that fails has to say ends this program."""
    command = [sys.executable, "train.py", "--config", "config/quickstart.yaml", *more]
    command += [f"run.output_dir={output}", f"run.name={name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return output / name
