"""The live terminal view of a run: ``python monitor_training_live.py [RUN] [--once]``."""

import sys

try:
    from flowright.monitoring.live import main
except ImportError as error:
    print(
        f"{error}; run `bash scripts/quickstart.sh` once, then `bash monitor.sh`", file=sys.stderr
    )
    sys.exit(2)

if __name__ == "__main__":
    from flowright.command_line import run_command

    sys.exit(run_command(main, signals=False))
