"""A measurement from files to its record. Who answers is no matter here: answers are a mapping from
prompts to texts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.criteria.constraints.checkers import (
    BENCHMARKS,
    Prompt,
    Scored,
    join,
    read_prompts,
    read_verdicts,
    score,
)
from flowright.criteria.constraints.figures import compare, record_of, rows_of
from flowright.criteria.constraints.language import NoTagger

FILES: Mapping[str, str] = {
    "ifeval": "ifeval/input_data.jsonl",
    "ifbench": "ifbench/IFBench_test.jsonl",
}
"""Below the folder of the downloaded files."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A benchmark and its prompts."""

    benchmark: str
    data: Path
    prompts: tuple[Prompt, ...]


def open_benchmarks(names: str, folder: Path, data: Path | None) -> list[Asked]:
    """``names`` with commas between; ``data`` is a file instead of the one in ``folder``. Raises
    DataError."""
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in BENCHMARKS:
            known = list(BENCHMARKS)
            raise DataError(
                f"--benchmark {name}: not one of {', '.join(known)}{suggest(name, known)}"
            )
    if data is not None and len(chosen) > 1:
        raise DataError("--data is the file of one benchmark; measure one at a time")
    opened: list[Asked] = []
    for name in dict.fromkeys(chosen):
        path = data or folder / FILES[name]
        if data is None and not path.exists():
            fetch = f"python scripts/download_all_datasets.py {name}"
            raise DataError(f"{path}: no such file; {fetch} fetches it, or say --data FILE")
        opened.append(Asked(name, path, read_prompts(path)))
    return opened


def measure(
    asked: Sequence[Asked],
    answers: Mapping[str, str],
    verdicts: Sequence[Path] = (),
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The record of all that was asked. A prompt that cannot be scored here is named and in no
    figure. Raises DataError where not one prompt is answered."""
    theirs = read_verdicts(verdicts) if verdicts else None
    benchmarks: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    for one in asked:
        joined = join(one.prompts, answers)
        if not joined.answered:
            raise DataError(f"no answer to a prompt of {one.data}; prompts are compared exactly")
        scored: list[Scored] = []
        unscored: dict[str, str] = {}
        for prompt, answer in joined.answered:
            try:
                scored.append(score(prompt, answer))
            except NoTagger as error:
                unscored[prompt.key] = str(error)
            progress()
        comparison = None if theirs is None else compare(scored, theirs)
        benchmarks[one.benchmark] = record_of(
            {"data": str(one.data), "unscored": unscored}, joined, scored, comparison
        )
        rows += rows_of(one.benchmark, scored)
        known |= {prompt.text for prompt in one.prompts}
    strangers = sum(prompt not in known for prompt in answers)
    return {"benchmarks": benchmarks, "strangers": strangers, "rows": rows}


def write_record(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
