"""This checkout's own commands: as they are typed from where the reader stands, and the environment
in which a Python that this one starts finds the package. Nothing is run here.

The package need not be installed: the entry points put ``src`` on their own path, and what they
start as ``python -m flowright...`` inherits it from :func:`child_environment`.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
"""The folder that has the package: ``src`` of a checkout, or where it is installed."""

CHECKOUT = SOURCE.parent


def here(command: str) -> str:
    """A command written for the root of the checkout and a plain ``python``, such as ``python
    train.py --config config/quickstart.yaml``, as it works in the working directory and with the
    Python that runs. Words are a shell's: a path that may hold a space comes quoted."""
    return " ".join(_word(word) for word in shlex.split(command))


def child_environment() -> dict[str, str]:
    """This process's environment, in which a new Python finds the package as well."""
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(SOURCE), given] if given else [str(SOURCE)])
    return {**os.environ, "PYTHONPATH": path}


def _word(word: str) -> str:
    if word == "python":
        return shlex.quote(_python())
    if Path(word).exists() or not (CHECKOUT / word).is_file():
        return shlex.quote(word)
    return shlex.quote(_from_here(CHECKOUT / word))


def _python() -> str:
    """By its name, where that name leads to it, else by its path."""
    running = Path(sys.executable)
    for name in ("python", "python3"):
        found = shutil.which(name)
        # Not by what they link to: an environment's Python links to the one it was made with.
        if found and Path(found).parent == running.parent and Path(found).samefile(running):
            return name
    return _from_here(running)


def _from_here(path: Path) -> str:
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
