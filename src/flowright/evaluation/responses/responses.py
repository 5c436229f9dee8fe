"""Files with responses: a parquet file's columns and a list of texts for each row, null where one
is missing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowright.core.errors import DataError
from flowright.core.files import disk_errors

if TYPE_CHECKING:
    import pyarrow as pa


def check_column(table: "pa.Table", key: str) -> None:
    """Raises DataError where the column is there already: it would be lost."""
    if key in table.column_names:
        raise DataError(f"--response-key {key}: the data has such a column; choose another name")


def write_responses(
    table: "pa.Table", key: str, responses: Sequence[Sequence[str | None]], path: Path
) -> None:
    """Replace ``path`` by the table with its responses, at once. Raises RunError (a full disk)."""
    import pyarrow as pa
    from pyarrow import parquet

    column = pa.array([list(row) for row in responses], pa.list_(pa.string()))
    part = path.with_name(f"{path.name}.part")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            parquet.write_table(table.append_column(key, column), part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
