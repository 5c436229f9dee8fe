"""Whether a judge was trained on what it is measured by, looked at before it is asked; and what the
record, the terminal and the page say of that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.data.contamination import TRAINED_ON, TrainedOn
from flowright.data.preferences import Pair
from flowright.judging.measuring.benchmarks.benchmarks import REWARDBENCH2
from flowright.judging.measuring.benchmarks.rewardbench2 import Best

OPTION = "--allow-trained-on"


@dataclass(frozen=True, slots=True)
class Places:
    """Where it may stand what a judge was trained on: ``named`` by the user, who is told where
    nothing stands there, and ``own`` folders of the judge's."""

    named: Sequence[Path] = ()
    own: Sequence[Path] = ()
    allowed: bool = False


def look(places: Places, rows: Iterable[Pair]) -> dict[str, Any]:
    """What is known, as JSON: ``files``, and ``found``, a line for each subset that was trained on.
    Raises DataError where there is one and that is not allowed."""
    for folder in places.named:
        if not (folder / TRAINED_ON).is_file():
            raise DataError(f"--trained-on {folder}: no {TRAINED_ON} in it")
    files = [*dict.fromkeys(f for f in (*places.named, *places.own) if (f / TRAINED_ON).is_file())]
    known = TrainedOn.gathered(files)
    found = known.found(rows) if known else []
    if found and not places.allowed:
        raise DataError(
            *found,
            f"it would say nothing of other data; measure it on another benchmark, or go on with "
            f"{OPTION}, and the result says so",
        )
    return {"files": [f"{file.absolute().name}/{TRAINED_ON}" for file in files], "found": found}


def as_pairs(rows: Iterable[Best]) -> list[Pair]:
    """RewardBench 2's rows, each as the pair of a right and a wrong answer."""
    return [
        Pair(
            row.id, REWARDBENCH2, row.conversation, row.answers[0], row.answers[-1], "first",
            row.subset,
        )
        for row in rows
    ]  # fmt: skip


def words(about: Mapping[str, Any]) -> Sequence[str]:
    """What a record's ``about`` says of it, in lines; the first of several is a warning. None for
    baselines."""
    said = about.get("trained_on")
    if said is None:
        return ()
    if said["found"]:
        return ("TRAINED ON WHAT IT IS MEASURED BY: it says nothing of other data.", *said["found"])
    if said["files"]:
        return (f"Trained on none of this, as {', '.join(said['files'])} says.",)
    return (f"Not known what it was trained on: no {TRAINED_ON} at hand (--trained-on).",)
