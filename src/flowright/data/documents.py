"""Documents of a file, to see how well a model predicts them: rows with a column ``text``, or a
plain text, which is one document. Nothing is learned from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.data.row_files import read_row_files
from flowright.data.row_values import Fault, UnusableRow, column, text_of
from flowright.data.sources.rows import readable

_ROWS = (".jsonl", ".ndjson", ".gz", ".parquet", ".json", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class Documents:
    """The texts of ``path`` in its order, and ``left_out``: a line for each kind of row that has
    none."""

    path: Path
    texts: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def counted(self) -> str:
        """For people: ``12 documents``."""
        return "1 document" if len(self.texts) == 1 else f"{len(self.texts):,} documents"


def read_documents(path: Path) -> Documents:
    """Raises DataError for a file that cannot be read or has no text."""
    if path.suffix in _ROWS:
        found = read_row_files([path], _row, "document (a row with a column text)")
        left_out = found.report.lines() if found.report.left_out else []
        return Documents(path, found.rows, tuple(left_out))
    with readable(path):
        text = path.read_text(encoding="utf-8-sig")
    try:
        return Documents(path, (text_of(text, "the file"),))
    except UnusableRow as error:
        raise DataError(f"{path}: {error.why}") from None


def _row(values: Mapping[str, Any], where: str, path: Path) -> str:
    text = column(values, "text")
    if not isinstance(text, str):
        raise UnusableRow(Fault.COLUMN, f"text is a {type(text).__name__}, not a text")
    return text_of(text, "text")
