"""Starting a run: training and its report, or a dry run. ``train.py`` parses and calls this."""

import logging
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console

from flowright.commands import here
from flowright.config import Config
from flowright.errors import RunPaused, UserError

if TYPE_CHECKING:
    from flowright.grpo.ranks import Ranks


def train(config: Config, resume: bool = False) -> int:
    """Train and write the report, in this process or as one rank of those that torchrun started;
    returns the exit status."""
    _prepare_process()
    from flowright.grpo.ranks import open_ranks

    with open_ranks() as ranks:
        console = Console(quiet=not ranks.is_first)
        try:
            return _train(config, resume, console, ranks)
        except UserError as error:
            if ranks.speaks():
                raise
            return error.exit_code


def train_on_ray(config: Config, resume: bool) -> int:
    """As :func:`train`, by the workers of a Ray cluster."""
    from flowright.app.ray import run_on_ray

    # The object, not its JSON, which leaves keys out.
    fields = {"config": config, "resume": resume, "folder": str(Path.cwd())}
    run_on_ray(_ray_worker, fields, config)
    return 0


def _ray_worker(fields: dict[str, Any]) -> None:
    """One rank. Ray may call it again after a failure: then the run goes on from where it was."""
    os.chdir(fields["folder"])
    config: Config = fields["config"]
    began = (config.run.output_dir / config.run.name / "config.json").exists()
    with Path(fields["log"]).open("a", encoding="utf-8") as log, redirect_stdout(log):
        train(config, fields["resume"] or began)


def _train(config: Config, resume: bool, console: Console, ranks: "Ranks") -> int:
    from flowright.app.session import run_training
    from flowright.monitoring.report import write_report

    run = config.run.output_dir / config.run.name
    try:
        uvloop.run(run_training(config, resume, console, ranks))
    except RunPaused:
        if ranks.is_first:
            write_report(run)  # what it shows is what has to be mended
        raise
    if ranks.is_first:
        report = write_report(run)
        console.print(
            f"report    {report}\nwatch     {here(f'bash monitor.sh {run}')}", highlight=False
        )
    return 0


def evaluate(
    config: Config,
    checkpoints: Sequence[Path] = (),
    data: Path | None = None,
    out: Path = Path("outputs/evaluation"),
) -> int:
    """Evaluate checkpoints beside the environment's baselines; leaves evaluation.json and a plot in
    ``out``."""
    console = Console()
    _prepare_process()
    from flowright.app.session import run_evaluation
    from flowright.app.terminal import source_table
    from flowright.monitoring.before_after import accuracy_against_tokens
    from flowright.runs import write_json

    comparison = uvloop.run(run_evaluation(config, checkpoints, data, console))
    console.print(source_table(comparison))
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "evaluation.json", comparison.to_json())
    plot = accuracy_against_tokens(comparison.to_json(), out / "accuracy_against_tokens.svg")
    console.print(f"written   {out / 'evaluation.json'}\nplot      {plot}", highlight=False)
    return 0


def dry_run(config: Config) -> int:
    """Print the plan and every problem at once; 0 when the run could start, else 2."""
    _prepare_process()
    from flowright.app import preflight

    return preflight.dry_run(config, Console())


def _prepare_process() -> None:
    """Before torch is imported: threads that sleep while they wait, and no progress bars and
    notices of libraries between our lines.

    OpenMP's threads spin by default. On a machine whose cores are also wanted by the embedded
    server, the sandbox or anything else, that made sampling eight times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
