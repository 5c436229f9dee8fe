"""Files with rubrics and with VerIF's checkers, parquet or JSON Lines: rows that can be used, and a
report of all that can't. What a row means is :mod:`flowright.criteria.rubrics.forms`'s.
"""

from collections.abc import Sequence
from pathlib import Path

from flowright.criteria.rubrics.forms import rubric_row, verif_row
from flowright.criteria.rubrics.rows import RubricRow, VerifRow
from flowright.data.row_files import RowFile, read_row_files


def read_rubrics(paths: Sequence[Path]) -> RowFile[RubricRow]:
    """The rubric rows of files, in their order. Raises DataError for files that cannot be read, all
    of them at once, and where no row is left."""
    return read_row_files(paths, rubric_row, "rubric row")


def read_verif(paths: Sequence[Path]) -> RowFile[VerifRow]:
    """The rows of VerIF's files, in their order. Raises DataError as :func:`read_rubrics`."""
    return read_row_files(paths, verif_row, "row with checkers")
