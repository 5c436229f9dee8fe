"""``flowright monitor``, for a checkout that is not installed; ``monitor.sh`` calls it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "src"))

try:
    from flowright.cli.commands import run
    from flowright.viewer import live  # noqa: F401
except ImportError as error:
    print(
        f"{error}; install the requirements: {sys.executable} -m pip install -e {ROOT}",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(run("monitor"))
