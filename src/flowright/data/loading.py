"""The problems that ``train_dataset`` and ``val_dataset`` name, and the provenance of a task file.

Problems are built offline, read from a file, or made by a user's function. The manifest beside a
task file, as ``scripts/create_mixed_dataset.py`` writes it, gives its split; a file that does not
fit its manifest has none.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowright.core.checkout import here
from flowright.core.errors import DataError
from flowright.core.plugins import load
from flowright.data.build import Seen, Splits, numbered_on
from flowright.data.offline import build_offline
from flowright.data.own import Conversion
from flowright.data.sources.dataset import SPLITS, Split, read_table
from flowright.data.sources.registry import AFLOW
from flowright.data.task import FILL_IN, Problem, is_task_file, read_tasks

OFFLINE = "offline"


def load_problems(name: str, split: Split, notes: list[str] | None = None) -> Sequence[Problem]:
    """The problems of ``offline`` (of its ``split``), of a file of tasks or of a user's own rows,
    or of a function that ``package.module:function`` names and that takes nothing; maybe none.
    Assumptions on own rows are added to ``notes``. Raises DataError, and ConfigError where the
    function cannot be imported."""
    if name == OFFLINE:
        return getattr(_offline(), split)
    if ":" not in name or Path(name).is_file():
        is_own = Path(name).is_file() and not is_task_file(Path(name))
        return _own_problems(Path(name), split, notes) if is_own else read_tasks(Path(name))
    problems = list(load(name, "dataset")())
    ids: set[str] = set()
    for number, problem in enumerate(problems, start=1):
        if not isinstance(problem, Problem):
            raise DataError(
                f"{name}: number {number} is {type(problem).__name__}, not a "
                "flowright.data.task.Problem"
            )
        if problem.id in ids:
            raise DataError(f"{name}: number {number}: id {problem.id!r} is there already")
        ids.add(problem.id)
    return problems


def _own_problems(path: Path, split: Split, notes: list[str] | None) -> list[Problem]:
    """Convert rows as ``--own`` does. Ids begin with the split: files number their rows alike."""
    conversion = Conversion()
    try:
        own = conversion.problems(read_table(path), path.name.partition(".")[0])
    except DataError as error:
        remedy = f"{path}: {here(FILL_IN)} --skip-bad leaves unusable rows out"
        raise DataError(*error.problems, remedy) from None
    seen = Seen()
    named = [(replace(o.problem, id=f"{split}/{o.problem.id}"), None) for o in own]
    problems = [problem for problem, _ in numbered_on(named) if not seen.meet(problem)]
    if notes is not None:
        counts = {**conversion.assumed, "repetitions are left out": len(own) - len(problems)}
        notes += [f"{path}: {what} ({rows:,} rows)" for what, rows in counts.items() if rows]
    return problems


@lru_cache(maxsize=1)
def _offline() -> Splits:
    return build_offline(0)


AFLOW_TEST: Mapping[str, int] = {
    "gsm8k": 1055,
    "humaneval": 131,
    "mbpp": 341,
    "hotpotqa": 800,
    "drop": 800,
}
"""Problems of each of AFlow's test files; those of MATH are not among our sources."""

_MODES = ("official", "aflow", OFFLINE)
_KNOWN = {file.path: file.sha256 for file in AFLOW.files}


@dataclass(frozen=True, slots=True)
class Provenance:
    """``name`` is what was asked for, ``mode`` and ``split`` are what it holds, None where that is
    not known; ``inputs`` are the SHA-256 of the upstream files that it was made of, by path."""

    name: str
    mode: str | None = None
    split: Split | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)

    def sha256(self, dataset: str) -> str | None:
        """Return the hash of the file with the dataset's problems, if the manifest has it."""
        if self.mode == "aflow":
            part = "test" if self.split == "test" else "validate"
            return self.inputs.get(f"aflow/{dataset}_{part}.jsonl")
        if self.mode == "official":
            parts = {p: v for p, v in self.inputs.items() if p.startswith(f"{dataset}/")}
            return next(iter(parts.values())) if len(parts) == 1 else None
        return None

    def is_aflow_test(self, dataset: str, problems: int) -> bool:
        """Return whether this number of problems is all of AFlow's test file, with its known
        bytes."""
        known = _KNOWN.get(f"aflow/{dataset}_test.jsonl")
        return (
            (self.mode, self.split) == ("aflow", "test")
            and problems == AFLOW_TEST.get(dataset)
            and known is not None
            and self.sha256(dataset) == known
        )


def provenance_of(name: str, split: Split) -> Provenance:
    """Return the provenance of the problems that a configuration or ``--data`` names; ``split`` is
    the one taken of ``offline``. Unreadable or unfitting manifests are no error: the provenance is
    unknown."""
    if name == OFFLINE:
        return Provenance(name, OFFLINE, split)
    path = Path(name)
    by_file: dict[str, Split] = {f"{each}_mixed.jsonl": each for each in SPLITS}
    found = by_file.get(path.name)
    manifest = _manifest(path.with_name("manifest.json")) if found else None
    if found is None or manifest is None:
        return Provenance(name)
    try:
        present = Counter(task.source for task in read_tasks(path))
    except (DataError, OSError):
        return Provenance(name)
    if _counts(manifest, found) != present or manifest.get("split") not in _MODES:
        return Provenance(name)
    inputs = manifest.get("inputs_sha256")
    hashes = {str(k): str(v) for k, v in inputs.items()} if isinstance(inputs, dict) else {}
    return Provenance(name, manifest["split"], found, hashes)


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _counts(manifest: Mapping[str, Any], split: Split) -> dict[str, int] | None:
    """Problems by source, as the manifest counts them."""
    try:
        kinds = manifest["counts"][split].values()
        return {source: int(n) for kind in kinds for source, n in kind.items()}
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
