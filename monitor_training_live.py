"""``flowright monitor``, for a checkout that is not installed; ``monitor.sh`` calls it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from flowright.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("monitor"))
