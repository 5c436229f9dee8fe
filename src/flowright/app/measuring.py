"""An evaluation before and after its measurements, without torch: the checks that it can start or
go on, and the papers' table of a finished one."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from flowright.app.preflight_checks import (
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
from flowright.core.command_line import say
from flowright.core.errors import ConfigError, RunError
from flowright.core.files import check_writable, disk_errors, write_json, write_text
from flowright.data.loading import provenance_of
from flowright.data.mixture import Mixture, tasks_hash
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.ledger import Ledger
from flowright.evaluation.papers import models_of, paper_table
from flowright.policy.base_models import model_id
from flowright.policy.chat_templates import read_template, template_id
from flowright.runs.run_files import read_evaluation, sha256_of, step_of

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
    writer: str | None = None
    """Model of ``llm.file`` that is measured as a policy, too."""


def selection_of(tasks: TaskSets, config: Config) -> Sequence[Task]:
    """Return the training problems that the best baselines are chosen on: as many as are reported
    on; none without baselines."""
    section = config.evaluation
    if not section.baselines:
        return ()
    return Mixture(tasks.train, f"{config.seed}/selection").distinct(section.final_problems)


def kept_as(checkpoints: Sequence[Path]) -> dict[Path, int]:
    """Return the step that each checkpoint's attempts are kept under (0: the untrained policy):
    that of its folder's name; where a name has none or two have the same, its place among the
    paths, from 1."""
    paths = sorted(set(checkpoints))
    steps = [step for path in paths if (step := step_of(path.name))]
    if len(set(steps)) < len(paths):
        steps = list(range(1, len(paths) + 1))
    return dict(zip(paths, steps, strict=True))


@contextmanager
def open_evaluation(
    config: Config,
    checkpoints: Sequence[Path],
    data: Path | None,
    out: Path,
    overwrite: bool,
    writer: str | None = None,
) -> Iterator[Evaluation]:
    """Check and open an evaluation. Raises UserError with a line for each problem, and then nothing
    was written."""
    environment = make_environment(config)
    sets: list[TaskSets] = []
    read: list[Task] = []
    refuse(
        *(lambda path=path: check_checkpoint(path, config) for path in checkpoints),
        lambda: check_quantised(config.policy),
        lambda: check_writable(out),
        lambda: check_model(config),
        lambda: check_text(config),
        lambda: sets.append(load_tasks(environment, batches=False)),
        lambda: read.extend(_read(environment, data)),
        lambda: _check_writer(environment, writer),
        environment.all_baselines,
    )
    tasks, size = sets[0], config.evaluation.final_problems
    problems = Mixture(read or tasks.val, config.seed).distinct(size)
    val = Mixture(tasks.val, config.seed)
    selection = val.distinct(size) if data else selection_of(tasks, config)
    names = config.models if writer is None else {*config.models, writer}
    entries = load_entries(config.llm.file, names, config.simulated)
    about = {
        "config": json.loads(config.model_dump_json(exclude=NOT_MEASURED)),
        "models": {name: entry.model_name for name, entry in entries.items()},
        "checkpoints": {
            str(path): " ".join(sha256_of(file) for file in weight_files(path, config))
            for path in checkpoints
        },
        "problems": tasks_hash(problems),
        "selection": tasks_hash(selection),
    }
    if writer is not None:
        about["writer"] = writer
    if Path(config.strategy_model).is_dir():
        about["base"] = model_id(config.strategy_model)
    if (template := config.policy.chat_template) is not None:
        about["chat_template"] = template_id(read_template(template))
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
            writer,
        )
    finally:
        ledger.close()


def _check_writer(environment: Environment, name: str | None) -> None:
    """Raise ConfigError for a model that cannot be measured as a policy."""
    if name is None:
        return
    config = environment.config
    if type(environment) is not WorkflowEnvironment:
        raise ConfigError(f"--policy: writes workflows, and environment is {config.environment}")
    if config.simulated.played([name]):
        raise ConfigError(f"--policy: {name} is simulated and writes no workflows; name a real one")
    entry = load_entries(config.llm.file, {name})[name]
    if entry.price is None and environment.counts_money:
        raise ConfigError(f"--policy: {name} has no price, and the pool's models have; give it one")


def show_papers(evaluation: Evaluation, data: Path | None, console: Console) -> None:
    """Print the papers' table of a finished evaluation and leave ``papers.md`` and ``papers.json``.
    Raises RunError where its evaluation.json cannot be read or the disk is full."""
    folder, config = evaluation.ledger.folder, evaluation.config
    found = read_evaluation(folder)
    if found is None:
        raise RunError(f"{folder / 'evaluation.json'}: cannot be read; --overwrite measures again")
    section = config.evaluation
    table = paper_table(
        found,
        models_of(config, evaluation.environment),
        provenance_of(str(data or config.held_out_from), "test" if data else "val"),
        section.final_samples or section.samples,
        evaluation.problems_hash,
    )
    markdown = table.markdown()
    console.print(Markdown(markdown))
    page, rows = folder / "papers.md", folder / "papers.json"
    with disk_errors(page):
        write_text(page, markdown)
    with disk_errors(rows):
        write_json(rows, table.to_json())
    for path in (page, rows):
        say(console, f"written   {path}")


def _read(environment: Environment, data: Path | None) -> Sequence[Task]:
    if data is None:
        return ()
    tasks = environment.read_tasks(str(data))
    check_count(f"--data: {data}", tasks)
    return tasks
