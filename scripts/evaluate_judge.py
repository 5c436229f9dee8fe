#!/usr/bin/env python3
"""``flowright judge benchmark``, for a checkout that is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from flowright.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("judge benchmark"))
