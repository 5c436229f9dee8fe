"""``python -m flowright.study``: the same as ``flowright study``."""

import sys

from flowright.cli.commands import run

if __name__ == "__main__":
    sys.exit(run("study"))
