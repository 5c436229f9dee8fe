"""What an evaluation is of, and whether it can start or go on: known before torch is loaded, before
a model is opened or a server asked.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.app.first_look import (
    check_checkpoint,
    check_count,
    check_model,
    check_quantised,
    check_text,
    load_tasks,
    refuse,
    weight_files,
)
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.core.files import check_writable
from flowright.data.mixture import Mixture, tasks_hash
from flowright.data.task import Task
from flowright.environments.environment import Environment, TaskSets, make_environment
from flowright.evaluation.ledger import Ledger
from flowright.runs.checkpoints import sha256_of, step_of

NOT_MEASURED = {"run", "physical_gpus", "ray", "pipeline"}
"""Sections of a configuration that no row depends on."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``problems`` are reported on; baselines are chosen on ``selection``, where there is one."""

    config: Config
    environment: Environment
    tasks: TaskSets
    problems: Sequence[Task]
    selection: Sequence[Task]
    checkpoints: Sequence[Path]
    problems_hash: str
    ledger: Ledger


def kept_as(checkpoints: Sequence[Path]) -> dict[Path, int]:
    """Which step the attempts of each are kept as (0: the untrained policy): its own, as its folder
    is called; where one is called otherwise or two alike, its place among the paths, from 1."""
    paths = sorted(set(checkpoints))
    steps = [step for path in paths if (step := step_of(path.name))]
    if len(set(steps)) < len(paths):
        steps = list(range(1, len(paths) + 1))
    return dict(zip(paths, steps, strict=True))


@contextmanager
def open_evaluation(
    config: Config, checkpoints: Sequence[Path], data: Path | None, out: Path, overwrite: bool
) -> Iterator[Evaluation]:
    """Raises UserError with a line for everything that is in the way; then nothing was written."""
    environment = make_environment(config)
    sets: list[TaskSets] = []
    given: list[Task] = []
    refuse(
        *(lambda path=path: check_checkpoint(path, config) for path in checkpoints),
        lambda: check_quantised(config.policy),
        lambda: check_writable(out),
        lambda: check_model(config),
        lambda: check_text(config),
        lambda: sets.append(load_tasks(environment, batches=False)),
        lambda: given.extend(_read(environment, data)),
    )
    tasks, size = sets[0], config.evaluation.final_problems
    problems = Mixture(given or tasks.val, config.seed).distinct(size)
    selection = Mixture(tasks.val, config.seed).distinct(size) if data else ()
    about = {
        "config": json.loads(config.model_dump_json(exclude=NOT_MEASURED)),
        "models": _served(config),
        "checkpoints": {str(path): _digest(path, config) for path in checkpoints},
        "problems": tasks_hash(problems),
        "selection": tasks_hash(selection),
    }
    if (text := config.evaluation.text) is not None:
        about["text"] = sha256_of(text)
    ledger = Ledger(out, about, overwrite)
    try:
        yield Evaluation(
            config,
            environment,
            tasks,
            problems,
            selection,
            checkpoints,
            about["problems"],
            ledger,
        )
    finally:
        ledger.close()


def _digest(path: Path, config: Config) -> str:
    return " ".join(sha256_of(file) for file in weight_files(path, config))


def _read(environment: Environment, data: Path | None) -> Sequence[Task]:
    if data is None:
        return ()
    tasks = environment.read_tasks(str(data))
    check_count("--data", str(data), tasks)
    return tasks


def _served(config: Config) -> dict[str, Any]:
    """What the names of large models stand for; where they are served does not matter."""
    entries = load_entries(config.llm.file, config.models)
    return {name: entry.model_name for name, entry in entries.items()}
