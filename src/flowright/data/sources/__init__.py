"""Problems from the public datasets: upstream files in, tasks out. No mixing, no network.

``registry`` has the facts, ``rows`` reads files, and one module per family of datasets converts
rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flowright.data.sources.dataset import SPLITS, Dataset, File, Mode, Source, Split, SplitPart
from flowright.data.sources.registry import AFLOW, DATASETS, DEFAULT_DATASETS, load_dataset
from flowright.data.sources.rows import UpstreamRow, json_array, json_lines
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
    "json_array",
    "json_lines",
    "load_dataset",
    "load_part",
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
