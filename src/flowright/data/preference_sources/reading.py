"""Preferences out of the folder of downloaded files. What is trained or measured on is decided
elsewhere.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from flowright.core.checkout import here
from flowright.core.errors import DataError
from flowright.data.preference_sources.registry import preference_source
from flowright.data.preferences import Pair, Rated

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a source's files hold. ``unusable`` has a line, ``file:row: why``, for each row that
    could not be used; ``paths`` are the files below the folder that were read."""

    pairs: tuple[Pair, ...]
    rated: tuple[Rated, ...]
    unusable: tuple[str, ...]
    paths: tuple[str, ...]


def read_preferences(name: str, folder: Path) -> Preferences:
    """All rows of a source, in upstream's order, less those that cannot be used, which are named.
    Raises DataError for an unknown source, one without pairs, a file that is not there or cannot
    be read to its end, and two rows with one id."""
    source = preference_source(name)
    if not source.parts:
        raise DataError(f"{name}: its rows are no pairs of answers, so they cannot be read as such")
    absent = [part.path for part in source.parts if not (folder / part.path).is_file()]
    if absent:
        out = shlex.quote(str(folder))
        command = here(f"python scripts/download_all_datasets.py {name} --out {out}")
        raise DataError(*(f"{folder / path}: no such file; fetch it: {command}" for path in absent))
    found: dict[str, Pair | Rated] = {}
    unusable: list[str] = []
    for part in source.parts:
        for row in part.read(folder / part.path):
            try:
                made = part.convert(row)
            except DataError as error:
                unusable += error.problems
                continue
            if found.setdefault(made.id, made) is not made:
                raise row.error(f"a second row with the id {made.id}")
    return Preferences(
        pairs=tuple(made for made in found.values() if isinstance(made, Pair)),
        rated=tuple(made for made in found.values() if isinstance(made, Rated)),
        unusable=tuple(unusable),
        paths=tuple(part.path for part in source.parts),
    )


def read_pairs(name: str, folder: Path) -> list[Pair]:
    """The pairs of a benchmark, in upstream's order. Raises as :func:`read_preferences` does, and
    for any row that cannot be used: figures on fewer rows are of another benchmark."""
    preferences = read_preferences(name, folder)
    if preferences.unusable:
        count, named = len(preferences.unusable), preferences.unusable[:_MOST_NAMED]
        more = () if count == len(named) else (f"... and {count - len(named)} more",)
        raise DataError(
            *named, *more, f"{name}: {count} rows cannot be used; fetch the files again"
        )
    return list(preferences.pairs)
