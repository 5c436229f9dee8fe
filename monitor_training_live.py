"""The live terminal view of a run: ``python monitor_training_live.py [RUN] [--once]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))  # need not be installed

try:
    from flowright.viewer.monitoring.live import main
except ImportError as error:
    requirements = Path(__file__).resolve().parent / "requirements.txt"
    print(
        f"{error}; install what it needs: {sys.executable} -m pip install -r {requirements}",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
