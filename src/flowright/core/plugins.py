"""Named choices that a configuration may make, and a user's own by import path. One table for each.

A name of the table stands for an import path of this package; ``package.module:attribute`` stands
for itself, found from the working directory as well as from the installed packages. Nothing is
imported until a choice is loaded, so that a configuration can be read before torch is.
"""

import difflib
import importlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import ConfigError

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Names(Collection[str]):
    """The built-in names of a choice, beside which an import path of a user's own is accepted.
    ``kind`` is the choice's name in messages, such as "objective"."""

    kind: str
    names: Sequence[str]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def check(self, choice: str) -> str:
        """Return the choice if it is one of the names or has the form of an import path. Raises
        ValueError that lists the names."""
        if choice in self.names or _PATH.fullmatch(choice):
            return choice
        raise ValueError(
            f"no {self.kind} {choice!r}{suggest(choice, self.names)}; "
            f"known: {', '.join(self.names)}, or your own as package.module:name"
        )

    def table(self, paths: Mapping[str, str]) -> "Table":
        """Return a table with the import path of each name."""
        assert [*paths] == [*self.names], self.kind
        return Table(self.kind, paths)


@dataclass(frozen=True, slots=True)
class Table(Mapping[str, str]):
    """Import paths by name. ``kind`` as in :class:`Names`."""

    kind: str
    paths: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.paths[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def check(self, choice: str) -> str:
        """Validate a choice; see :meth:`Names.check`."""
        return Names(self.kind, [*self.paths]).check(choice)

    def is_path(self, choice: str) -> bool:
        """Return whether the choice is a user's own, by import path."""
        return choice not in self.paths and bool(_PATH.fullmatch(choice))

    def load(self, choice: str) -> Any:
        """Import the object behind a choice. Raises ConfigError if that fails."""
        return load(self.paths.get(choice, choice), self.kind)


def load(path: str, kind: str) -> Any:
    """Import the attribute ``package.module:attribute``. Raises ConfigError with the import's
    message; an error inside the imported module is raised as it is."""
    module_name, _, attribute = path.partition(":")
    module = load_module(module_name, kind)
    try:
        return getattr(module, attribute)
    except AttributeError:
        here = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(
            f"{kind} {path}: {module_name} has no {attribute}{suggest(attribute, here)}"
        ) from None


@dataclass(slots=True)
class _Received:
    """Configuration of a run, and whether imports that it requests are refused."""

    source: str = ""
    is_guarded: bool = False


_received = _Received()


@contextmanager
def guarded_imports(trusted: bool) -> Iterator[None]:
    """Refuse imports that a run's own configuration requests (:func:`mark_untrusted`), unless it
    is ``trusted``."""
    before = _received.source, _received.is_guarded
    _received.source, _received.is_guarded = "", not trusted
    try:
        yield
    finally:
        _received.source, _received.is_guarded = before


def mark_untrusted(source: Path) -> bool:
    """Treat later imports as requested by ``source``, the configuration in a run directory.
    Return whether they are refused."""
    _received.source = str(source)
    return _received.is_guarded


def load_module(name: str, kind: str) -> Any:
    """The module of that name, also one in the working directory. Raises ConfigError where there
    is none, or where a received run names it."""
    if _received.is_guarded and _received.source and name.partition(".")[0] != "flowright":
        raise ConfigError(
            f"{_received.source}: {kind} {name} is code that would be imported and run here; "
            "--trust does so"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:  # a script has its own folder there, a console program has not
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        raise ConfigError(
            f"{kind} {name}: no module {error.name} in {folder} or among the installed packages"
        ) from None


def suggest(word: str, known: Sequence[str]) -> str:
    """``; did you mean X?`` for a word close to a known one, in any case, else an empty string."""
    folded = {one.lower(): one for one in reversed(known)}
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    close = close or [
        folded[one] for one in difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    ]
    return f"; did you mean {close[0]}?" if close else ""
