#!/usr/bin/env python3
"""``flowright instructions generate`` under RuscaRL's name of it."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("generate_responses.py")), run_name="__main__")
