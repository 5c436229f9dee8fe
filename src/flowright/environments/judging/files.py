"""Files of training data for judges, parquet or JSON Lines: rows that can be used, and a report of
all that can't. What a row means is :mod:`flowright.environments.judging.forms`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowright.data.row_files import RowFile, read_row_files
from flowright.environments.judging.forms import Form, form_of, further_answers, typed
from flowright.environments.judging.rows import Row


def read_rows(paths: Sequence[Path], forms: Sequence[Form]) -> RowFile[Row]:
    """The rows of files in any of the forms; of several forms each row is of that which its columns
    show. A row's id is its place, file:row.

    Raises DataError for files that cannot be read, all of them at once, and where no row is left.
    """
    unread = 0

    def row_of(values: Mapping[str, Any], where: str, path: Path) -> Row:
        nonlocal unread
        form = form_of(values, forms)
        row = typed(form, values, where, path.stem)
        unread += further_answers(form, values)
        return row

    found = read_row_files(paths, row_of, f"row of form {' or '.join(forms)}")
    return replace(found, report=replace(found.report, unread=unread))
