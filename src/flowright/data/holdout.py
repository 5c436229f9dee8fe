"""Train, validation and test out of one pile of a user's problems. Shares of kinds and datasets are
:mod:`flowright.data.build`'s.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowright.core.errors import DataError
from flowright.data.mixture import interleave
from flowright.data.splits import Seen, Splits, problem_key
from flowright.data.task import Problem

VAL_SHARE, MOST_VAL = 0.1, 300


def hold_out(
    problems: Sequence[tuple[Problem, str | None]], sizes: Mapping[str, int | None], seed: int
) -> tuple[Splits, int]:
    """Train, validation and test, and how many repetitions were left out. A problem that names its
    split has it; where none is for validation, a tenth is held out of train, at most 300, or as
    many as ``sizes`` says; test is empty unless asked for. Raises DataError where nothing is left
    to train or to validate on."""
    seen, pools = Seen(), {"test": [], "val": [], "train": []}
    distinct = _numbered_on(problems)
    for wanted, pool in pools.items():  # evaluation first: train gives way to it
        for problem, named in distinct:
            if (named or "train") == wanted and seen.meet(problem) is None:
                pool.append(problem)
    dropped = len(problems) - sum(map(len, pools.values()))
    random.Random(f"{seed}/own").shuffle(pools["train"])
    pools["train"] = interleave(pools["train"])
    tenth = min(MOST_VAL, max(1, round(len(pools["train"]) * VAL_SHARE)))
    for name, count in (("test", sizes.get("test") or 0), ("val", sizes.get("val") or tenth)):
        if not pools[name]:
            pools[name], pools["train"] = pools["train"][:count], pools["train"][count:]
    pools["train"] = pools["train"][: sizes.get("train")]
    if not pools["train"] or not pools["val"]:
        raise DataError(
            f"{len(problems)} rows, {len(problems) - dropped} of them different, leave nothing to "
            f"{'train' if pools['val'] else 'validate'} on: bring more, or ask for less"
        )
    return Splits(*(tuple(pools[name]) for name in ("train", "val", "test"))), dropped


def _numbered_on(
    problems: Sequence[tuple[Problem, str | None]],
) -> list[tuple[Problem, str | None]]:
    """With another id for every problem whose id a different one has already."""
    owners: dict[str, bytes] = {}
    result = []
    for problem, named in problems:
        key, id, number = problem_key(problem), problem.id, 1
        while owners.setdefault(id, key) != key:
            number += 1
            id = f"{problem.id}-{number}"
        result.append((replace(problem, id=id), named))
    return result
