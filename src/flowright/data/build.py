"""Mixtures from upstream files: a pool per dataset, shares, held-out validation, the manifest.

Everything depends on the files, the arguments and the seed only, to the byte. The mixture that
needs no files is :func:`flowright.data.loading.build_offline`.

Two tasks are the same problem if they have the same id, or the same text after normalisation.
Normalisation ignores Unicode form, case, white space, typographic quotes and dashes and punctuation
at the end, and nothing else: ``3 + 4`` and ``3 - 4`` are two problems.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import flowright
from flowright.core.checkout import here
from flowright.core.errors import DataError
from flowright.core.files import write_json
from flowright.data.contamination import folded
from flowright.data.mixture import apportion, interleave
from flowright.data.sources.dataset import SPLITS, Dataset, Mode, Split, sha256_of
from flowright.data.sources.programs import mbpp_description
from flowright.data.sources.registry import (
    AFLOW,
    DEFAULT_DATASETS,
    find_part,
    load_dataset,
    load_part,
)
from flowright.data.task import Kind, Problem, write_tasks

_ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-"})


@dataclass(frozen=True, slots=True)
class Splits:
    """The three task lists of a run; see :func:`check_disjoint`."""

    train: tuple[Problem, ...]
    val: tuple[Problem, ...]
    test: tuple[Problem, ...]


def normalise(text: str) -> str:
    """The text with everything removed that does not make two problems different; idempotent, in
    time that is linear in it."""
    return folded(text).translate(_ASCII).rstrip(" .?!:;,")


def whole_problem(task: Problem) -> str:
    """Context, question and choices in any order."""
    choices = sorted(text for _, text in task.choices)
    return "\n".join([task.context or "", task.question, *choices])


# What makes two problems of a source the same, where that is not the whole problem: questions with
# other passages or none, MBPP's descriptions with another signature.
_IDENTITY: Mapping[str, Callable[[Problem], str]] = {
    "hotpotqa": lambda task: task.question,
    "2wikimultihop": lambda task: task.question,
    "mbpp": mbpp_description,
}


def problem_key(task: Problem) -> bytes:
    """A hash (16 bytes) of the normalised text that a task is known by."""
    text = _IDENTITY.get(task.source, whole_problem)(task)
    return hashlib.blake2b(normalise(text).encode(), digest_size=16).digest()


class Seen:
    """Problems met so far."""

    def __init__(self, tasks: Iterable[Problem] = ()) -> None:
        self._first: dict[str | bytes, Problem] = {}
        for task in tasks:
            self.meet(task)

    def meet(self, task: Problem) -> Problem | None:
        """The task met before that is the same problem; None, and now it has been met."""
        found = self.find(task)
        if found is None:
            self._first[task.id] = self._first[problem_key(task)] = task
        return found

    def find(self, task: Problem) -> Problem | None:
        """The task met before that is the same problem."""
        return self._first.get(task.id) or self._first.get(problem_key(task))


def check_disjoint(splits: Splits) -> None:
    """Raise DataError if a problem occurs in two of the splits."""
    problems = []
    for name, other in (("train", "val"), ("train", "test"), ("val", "test")):
        seen = Seen(getattr(splits, other))
        tasks = getattr(splits, name)
        pairs = [f"{task.id} = {found.id}" for task in tasks if (found := seen.find(task))]
        if pairs:
            problems.append(
                f"{name} and {other} share {len(pairs)} problems ({', '.join(pairs[:3])}): "
                f"take them out of {name} or make both with scripts/create_mixed_dataset.py"
            )
    if problems:
        raise DataError(*problems)


# Of a train pool whose dataset has no validation split of its own.
HELD_OUT = 0.2


Sizes = Mapping[str, int | None]
"""Number of tasks of each split; None, or no number, is as many as the shares allow."""


Counts = Mapping[Split, Mapping[str, int]]
"""Problems of each dataset in each split."""


@dataclass(slots=True)
class Pool:
    """Problems of one dataset. An empty ``val`` is held out of ``train``. ``dropped`` counts the
    problems of ``train`` and ``val`` that were repetitions or belong to the evaluation as well."""

    name: str
    kind: Kind
    train: list[Problem]
    val: list[Problem]
    test: list[Problem]
    dropped: int = 0

    def of(self, split: Split) -> list[Problem]:
        return getattr(self, split)


@dataclass(frozen=True, slots=True)
class Mixed:
    """A finished mixture; ``facts`` is the manifest."""

    splits: Splits
    facts: Mapping[str, object] = field(default_factory=dict)


def load_pools(
    datasets: Sequence[Dataset], mode: Mode, folder: Path
) -> tuple[list[Pool], list[str], list[str]]:
    """The pools of a mode in ``folder``, the files that they came from, and what is absent, in
    words. Raises DataError if none of the datasets is there."""
    pools: list[Pool] = []
    inputs: list[str] = []
    absent: list[str] = []
    for dataset in datasets:
        name = dataset.name
        found: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
        for split, parts in dataset.splits.get(mode, {}).items():
            part = find_part(dataset, mode, split, folder)
            if part is None:
                lacking = next(path for path in parts[0].paths if not (folder / path).is_file())
                absent.append(f"{name}: no {split} problems, {lacking} is absent")
                continue
            found[split] = list(load_part(part, folder))
            inputs += [path for path in part.paths if path not in inputs]
        if any(found.values()):
            pools.append(Pool(name, dataset.kind, found["train"], found["val"], found["test"]))
    if not pools:
        raise DataError(
            *absent,
            f"{folder}: nothing to mix; fetch it with "
            f"{here('python scripts/download_all_datasets.py')}",
        )
    return pools, inputs, absent


def mix(
    pools: Sequence[Pool],
    sizes: Sizes,
    seed: int,
    shares: Mapping[str, float] | None = None,
    counts: Counts | None = None,
) -> Splits:
    """Draw the three splits from the pools.

    Train is freed of everything that any pool has for evaluation, drawn or not. ``shares`` are
    weights per dataset, which each split applies to the datasets that it has; ``counts``, instead
    of both, are the most problems of each dataset in each split. By default every kind weighs the
    same and divides its weight equally among its datasets, and a split without a size takes
    everything. The pools are used up. Raises DataError if the splits overlap in the end.
    """

    def places(split: Split, capacity: Mapping[str, int]) -> dict[str, int]:
        if counts is None:
            return _places(capacity, pools, sizes.get(split), shares)
        most = counts.get(split, {})
        return {name: min(room, most.get(name, 0)) for name, room in capacity.items()}

    _separate(pools)
    for pool in pools:
        random.Random(f"{seed}/{pool.name}").shuffle(pool.train)
        random.Random(f"{seed}/{pool.name}/val").shuffle(pool.val)
        random.Random(f"{seed}/{pool.name}/test").shuffle(pool.test)
    _hold_out(pools, partial(places, "val"))
    drawn: dict[Split, tuple[Problem, ...]] = {}
    for split in SPLITS:
        capacity = {pool.name: len(pool.of(split)) for pool in pools}
        taken = places(split, capacity)
        tasks = [task for pool in pools for task in pool.of(split)[: taken[pool.name]]]
        random.Random(f"{seed}/{split}").shuffle(tasks)
        drawn[split] = tuple(interleave(tasks))
    splits = Splits(**drawn)
    check_disjoint(splits)
    return splits


def _separate(pools: Sequence[Pool]) -> None:
    """Test stays as it is published; validation gives way to it, and train to both."""
    seen = Seen(task for pool in pools for task in pool.test)
    for split in ("val", "train"):
        for pool in pools:
            kept = [task for task in pool.of(split) if seen.meet(task) is None]
            pool.dropped += len(pool.of(split)) - len(kept)
            setattr(pool, split, kept)


def _hold_out(
    pools: Sequence[Pool], places: Callable[[Mapping[str, int]], Mapping[str, int]]
) -> None:
    """Give every pool without a validation split some of its train problems, as many as needed."""
    without_val = [pool for pool in pools if pool.train and not pool.val]
    most = {pool.name: math.floor(len(pool.train) * HELD_OUT) for pool in without_val}
    capacity = {pool.name: most.get(pool.name, len(pool.val)) for pool in pools}
    wanted = places(capacity)
    for pool in without_val:
        pool.val, pool.train = pool.train[: wanted[pool.name]], pool.train[wanted[pool.name] :]


def _places(
    capacity: Mapping[str, int],
    pools: Sequence[Pool],
    size: int | None,
    shares: Mapping[str, float] | None,
) -> dict[str, int]:
    """Return how many tasks of each dataset a split takes."""
    present = {pool.name: pool.kind for pool in pools if capacity[pool.name] > 0}
    per_kind = Counter(present.values())
    if shares is None:
        weights = {name: 1 / per_kind[kind] for name, kind in present.items()}
    else:
        weights = {name: shares.get(name, 0.0) for name in present}
    if size is None:
        if shares is None:
            return dict(capacity)
        used = [name for name in weights if weights[name] > 0]
        total_weight = math.fsum(weights.values())
        # The largest total that gives every dataset its full share.
        size = min((int(capacity[n] * total_weight / weights[n]) for n in used), default=0)
    return dict.fromkeys(capacity, 0) | apportion(size, weights, capacity)


def build_mixture(
    folder: Path,
    mode: Mode,
    sizes: Sizes,
    seed: int,
    shares: Mapping[str, float] | None = None,
    counts: Counts | None = None,
) -> tuple[Mixed, list[str]]:
    """Load, mix and describe; also what a reader should know, a line each.

    ``shares`` go by name, or by import path for a dataset of the user's own. Without, all datasets
    of the mode that are in ``folder`` are used, MBPP in its full form. Raises DataError, also for a
    dataset with a share that is not there, unless ``counts`` limit what each gives.
    """
    chosen = {name: load_dataset(name) for name in shares or DEFAULT_DATASETS}
    if shares is not None:
        shares = {chosen[name].name: share for name, share in shares.items()}
        if len(shares) < len(chosen):
            raise DataError(f"two of {', '.join(chosen)} have the same name")
    unfit = [name for name, dataset in chosen.items() if mode not in dataset.splits]
    if shares is not None and unfit:
        raise DataError(*(f"{name}: has no {mode} split" for name in unfit))
    if {"mbpp", "mbpp_sanitized"} <= chosen.keys():
        raise DataError("mbpp and mbpp_sanitized are the same problems: give a share to one")
    fit = [dataset for name, dataset in chosen.items() if name not in unfit]
    pools, inputs, absent = load_pools(fit, mode, folder)
    if counts is None and set(shares or ()) - {pool.name for pool in pools}:
        raise DataError(*absent)
    hashes = {path: sha256_of(folder / path) for path in inputs}
    files = [file for dataset in (*fit, AFLOW) for file in dataset.files]
    known = {file.path: file.sha256 for file in files if file.sha256}
    splits = mix(pools, sizes, seed, shares, counts)
    empty = [split for split in SPLITS if not getattr(splits, split)]
    if len(empty) == len(SPLITS):
        raise DataError(*absent, f"{folder}: not a single problem for these shares and sizes")
    dropped = {pool.name: pool.dropped for pool in pools if pool.dropped}
    warnings = [
        *absent,
        *(f"{split} is empty" for split in empty),
        *(
            f"{path}: SHA-256 is {found}, known is {known[path]}"
            for path, found in hashes.items()
            if known.get(path, found) != found
        ),
        *(
            f"{name}: {n} problems of train or val are repetitions or in the evaluation: left out"
            for name, n in dropped.items()
        ),
    ]
    description = facts(
        mode, seed, splits, shares=shares, dropped=dropped, absent=absent, inputs=hashes
    )
    return Mixed(splits, description), warnings


def write_mixture(mixed: Mixed, folder: Path) -> list[Path]:
    """Write ``{train,val,test}_mixed.jsonl`` and ``manifest.json``; returns their paths. A split
    without problems has no file."""
    paths = {split: folder / f"{split}_mixed.jsonl" for split in SPLITS}
    for split in SPLITS:
        if getattr(mixed.splits, split):
            write_tasks(paths[split], getattr(mixed.splits, split))
        else:
            paths.pop(split).unlink(missing_ok=True)
    manifest = folder / "manifest.json"
    write_json(manifest, mixed.facts)
    return [*paths.values(), manifest]


def count(tasks: Iterable[Problem]) -> dict[str, dict[str, int]]:
    """Tasks per kind and source, for the manifest."""
    counted: dict[str, dict[str, int]] = {}
    for (kind, source), number in sorted(Counter((t.kind, t.source) for t in tasks).items()):
        counted.setdefault(kind, {})[source] = number
    return counted


def facts(
    mode: str,
    seed: int,
    splits: Splits,
    *,
    shares: Mapping[str, float] | None = None,
    dropped: Mapping[str, int] | None = None,
    absent: Sequence[str] = (),
    inputs: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """The manifest: what the mixture holds and what it was made from. No times, no local paths."""
    return {
        "flowright": flowright.__version__,
        "split": mode,
        "seed": seed,
        "shares": shares,
        "counts": {split: count(getattr(splits, split)) for split in SPLITS},
        "dropped_from_train_and_val": dropped or {},
        "absent": list(absent),
        "inputs_sha256": inputs or {},
    }


VAL_SHARE, MOST_VAL = 0.1, 300


def hold_out(
    problems: Sequence[tuple[Problem, str | None]], sizes: Sizes, seed: int
) -> tuple[Splits, int]:
    """Split into train, validation and test, and count the repetitions left out. A problem that
    names its split keeps it; without any for validation, a tenth is held out of train, at most 300,
    or as many as ``sizes`` names; test is empty unless asked for. Raises DataError if nothing is
    left to train or to validate on."""
    seen, pools = Seen(), {"test": [], "val": [], "train": []}
    distinct = numbered_on(problems)
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


def numbered_on(
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
