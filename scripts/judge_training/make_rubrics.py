#!/usr/bin/env python3
"""``flowright data rubrics``, for a checkout that is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from flowright.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("data rubrics"))
