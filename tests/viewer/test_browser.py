"""The viewer in a real Chromium, every text of its runs hostile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from viewer_run import HOSTILE, hostile, records_of, write_run

from flowright.core.files import write_json
from flowright.runs.run_files import write_rollouts

ROOT = Path(__file__).parents[2]
BROWSER_PYTHON = os.environ.get("FLOWRIGHT_BROWSER_PYTHON", "")
CHROMIUM = os.environ.get("FLOWRIGHT_CHROMIUM", "/usr/bin/chromium")


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER_PYTHON, reason="FLOWRIGHT_BROWSER_PYTHON names none")
@pytest.mark.parametrize("text", ["", HOSTILE])
def test_no_text_does_anything_in_a_browser(text: str, tmp_path: Path) -> None:
    """By a Python that has Playwright: a dialog, an error of script, what the page's own policy
    stopped, a page wider than the screen and a key that does nothing are troubles."""
    run = write_run(tmp_path / "runs/bad", 2)
    for step in (1, 2):
        rows = [hostile(row, f"ensemble {text}") | {"step": step} for row in records_of(step)]
        write_rollouts(run, step, rows)
    write_json(run / "config.json", {"strategy_model": text, text: {"key": text}})
    done = subprocess.run(
        [
            *(BROWSER_PYTHON, "scripts/picture_viewer.py", str(run), "--python", sys.executable),
            *("--browser", CHROMIUM, "--out", str(tmp_path / "pictures")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 pictures, keys pressed, 0 troubles" in done.stdout
