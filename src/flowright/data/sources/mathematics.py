"""GSM8K: grade-school word problems with one number as the answer."""

import re

from flowright.data.sources.rows import UpstreamRow
from flowright.data.task import Problem

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def gsm8k(row: UpstreamRow) -> Problem:
    """A row of the official files (which the hub's rows equal).

    The answer is the solution's text, ending in ``#### 1,080``: the commas go. The ``<<3*4=12>>``
    marks are in the solution only, which the task does not carry.
    """
    solution, mark, final = row.text("answer").rpartition("####")
    if not mark or not solution.strip():
        raise row.error("answer has no '####' before its final number")
    return _task(row, row.name, final)


def gsm8k_aflow(row: UpstreamRow) -> Problem:
    """A row of AFlow's files: ``answer`` is the final number, ``id`` is ``gsm8k-test-<index>`` in
    the official test file, so that the task's id is the same as there."""
    return _task(row, row.text("id").removeprefix("gsm8k-").replace("-", "/"), row.text("answer"))


def _task(row: UpstreamRow, name: str, final: str) -> Problem:
    reference = final.strip().replace(",", "")
    if not _NUMBER.fullmatch(reference):
        raise row.error(f"the final answer {final.strip()!r} is not a number")
    return Problem(
        id=f"gsm8k/{name}",
        kind="math",
        source="gsm8k",
        question=row.text("question").strip(),
        reference=reference,
    )
