"""``python -m flowright COMMAND``: the same as the command ``flowright``."""

import sys

from flowright.cli.commands import run

if __name__ == "__main__":
    sys.exit(run())
