"""What a run prints of its steps."""

from io import StringIO

from rich.console import Console

from flowright.app.terminal import StepProgress


def test_a_step_that_taught_nothing_says_so() -> None:
    out = StringIO()
    with StepProgress(Console(file=out), 20) as progress:
        progress.step(8, 20, {"reward/mean": 0.0})
        progress.step(9, 20, {"reward/mean": 0.5, "policy/skipped_updates": 0.0})
    silent, taught = (line.rstrip() for line in out.getvalue().splitlines() if "step" in line)
    assert silent == "step  8/20  reward 0.00  no update: no group has a signal"
    assert taught == "step  9/20  reward 0.50"
