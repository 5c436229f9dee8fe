"""Problems and preferences from the public datasets.

``registry`` and ``preference_registry`` have the facts, ``rows`` reads files, the other modules
convert rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flowright.data.sources.dataset import SPLITS, Dataset, File, Mode, Source, Split, SplitPart
from flowright.data.sources.registry import AFLOW, DATASETS, DEFAULT_DATASETS, load_dataset
from flowright.data.sources.rows import UpstreamRow, read_upstream
from flowright.data.task import Problem

__all__ = [
    "AFLOW",
    "DATASETS",
    "DEFAULT_DATASETS",
    "SPLITS",
    "Dataset",
    "File",
    "Mode",
    "Source",
    "Split",
    "SplitPart",
    "UpstreamRow",
    "find_part",
    "load_dataset",
    "load_part",
    "read_upstream",
]


def find_part(dataset: Dataset, mode: Mode, split: Split, folder: Path) -> SplitPart | None:
    """The part of ``dataset`` to read for a split: the first whose files are in ``folder``."""
    parts = dataset.splits.get(mode, {}).get(split, ())
    return next((found for part in parts if (found := part.found_in(folder))), None)


def load_part(part: SplitPart, folder: Path) -> Iterator[Problem]:
    """The tasks of a part, in upstream order. Raises DataError at the first unusable row."""
    for row in part.read(folder / part.path):
        if part.keep(row):
            name = f"{part.prefix}/{row.name}" if part.prefix else row.name
            yield part.convert(replace(row, name=name))
