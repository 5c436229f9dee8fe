"""Entry points of the commands: prepare the process, then train, evaluate, export, serve."""

import importlib
import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console

from flowright.config.root import Config
from flowright.core.checkout import here
from flowright.core.command_line import on_signal, say
from flowright.core.errors import RunPaused, UserError
from flowright.core.files import disk_errors
from flowright.runs.run_files import read_state

if TYPE_CHECKING:
    from flowright.app.preflight_checks import Start
    from flowright.grpo.ranks import Ranks


def train(config: Config, resume: bool = False) -> int:
    """Train and write the report, in this process or as one rank of torchrun; return the exit
    status."""
    console = Console(quiet=not _is_first())
    say(console, f"problems  {config.problems_from}")
    from flowright.app.preflight_checks import check_start

    with on_signal(lambda: "nothing was started"):
        start = check_start(config, resume, _is_first())
        run = config.run.output_dir / config.run.name
        state = read_state(run) if resume else {}
        if state.get("status") == "finished" and state.get("step") == start.config.grpo.steps:
            say(console, f"finished  {run}, all {state['step']} steps; raise grpo.steps to go on")
            return 0
        _load_libraries(console)
    from flowright.grpo.ranks import open_ranks

    with open_ranks() as ranks:
        try:
            return _train(start, console, ranks)
        except UserError as error:
            if ranks.speaks():
                raise
            return error.exit_code


def _is_first() -> bool:
    """True in the first of torchrun's processes, before they have met."""
    return os.environ.get("RANK", "0") == "0"


def train_on_ray(config: Config, resume: bool) -> int:
    """Train with the workers of a Ray cluster."""
    from flowright.app.ray_cluster import run_on_ray

    # The object, not its JSON, which leaves keys out.
    fields = {"config": config, "resume": resume, "folder": str(Path.cwd())}
    run_on_ray(_ray_worker, fields, config)
    return 0


def _ray_worker(fields: dict[str, Any]) -> None:
    """Train as one rank. Ray may call it again after a failure: then the run resumes."""
    os.chdir(fields["folder"])
    config: Config = fields["config"]
    began = (config.run.output_dir / config.run.name / "config.json").exists()
    with Path(fields["log"]).open("a", encoding="utf-8") as log, redirect_stdout(log):
        train(config, fields["resume"] or began)


def _train(start: "Start", console: Console, ranks: "Ranks") -> int:
    from flowright.app.session import run_training
    from flowright.viewer.run_report import write_report

    config = start.config
    run = config.run.output_dir / config.run.name
    try:
        status = uvloop.run(run_training(start, console, ranks))
    except RunPaused:
        if ranks.is_first:
            write_report(run)  # what it shows is what has to be mended
        raise
    if not ranks.is_first:
        return 0  # torchrun ends the others at once where one of them fails
    report = write_report(run)
    watch = here(f"bash monitor.sh {shlex.quote(str(run))}")
    say(console, f"report    {report}\nwatch     {watch}")
    return status


def evaluate(
    config: Config,
    checkpoints: Sequence[Path] = (),
    data: Path | None = None,
    out: Path = Path("outputs/evaluation"),
    overwrite: bool = False,
    papers: bool = False,
    writer: str | None = None,
) -> int:
    """Evaluate checkpoints, and a model of ``llm.file`` as the ``writer`` of workflows, beside the
    environment's baselines; leaves rows.jsonl, evaluation.json and a plot in ``out``. What an
    earlier call with the same configuration, checkpoints and problems has measured there is taken
    from it; another's is refused, or replaced with ``overwrite``. ``papers`` prints the table of
    AFlow's, ScoreFlow's and FlowSteer's papers with ours in it, and leaves it as papers.md and
    papers.json; of what is measured already, too."""
    console = Console()
    say(console, f"problems  {data or config.held_out_from}")
    from flowright.app.measuring import open_evaluation, show_papers
    from flowright.runs.run_files import checkpoint_of, chosen_as_best

    checkpoints = [checkpoint_of(path) for path in checkpoints]
    for path in checkpoints:
        if best := chosen_as_best(path):
            line = f"{path}, the best of its run: {best}"
            if data is None:
                line += (
                    "; chosen by validation problems such as these, so that its row is too good: "
                    "give others with --data"
                )
            say(console, f"checkpoint {line}")

    with open_evaluation(config, checkpoints, data, out, overwrite, writer) as evaluation:
        if evaluation.ledger.complete:
            done = out / "evaluation.json"
            say(console, f"already measured: {done}; --overwrite measures again")
            if papers:
                show_papers(evaluation, data, console)
            return 0
        with on_signal(evaluation.ledger.summary):
            _load_libraries(console)
            from flowright.app.comparison_tables import source_table
            from flowright.app.session import run_evaluation
            from flowright.viewer.before_after import accuracy_against_tokens

            comparison = uvloop.run(run_evaluation(evaluation, console))
            evaluation.ledger.finish(comparison.to_json())
            plot = None
            if not comparison.by_reward:
                plot = out / "accuracy_against_tokens.svg"
                with disk_errors(plot):
                    accuracy_against_tokens(comparison.to_json(), plot)
        if not comparison.by_reward:  # else the comparison has shown it
            console.print(source_table(comparison))
        if papers:
            show_papers(evaluation, data, console)
    drawn = f"\nplot      {plot}" if plot else ""
    say(console, f"written   {out / 'evaluation.json'}{drawn}")
    say(console, f"attempts  {here(f'python scripts/view.py {shlex.quote(str(out))}')}")
    return 0


def dry_run(config: Config, resume: bool = False) -> int:
    """Print the plan and every problem; return 0 if the run could start, else 2."""
    console = Console()
    _load_libraries(console)
    from flowright.app import preflight

    return preflight.dry_run(config, console, resume)


@contextmanager
def prepared(console: Console, kept: str = "") -> Iterator[None]:
    """Load the slow libraries; a signal from there on is answered with what was ``kept``."""
    with on_signal(lambda: kept):
        _load_libraries(console)
        yield


def _load_libraries(console: Console) -> None:
    """Load the slow libraries, with a line on the terminal; seconds from a cold disk."""
    _prepare_process()
    libraries = ("torch", "transformers", "peft")
    if not console.is_terminal:
        console.print(f"loading   {', '.join(libraries)}", highlight=False)
    with console.status("loading") as status:
        for name in libraries:
            status.update(f"loading {name}")
            importlib.import_module(name)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _prepare_process() -> None:
    """Before torch is imported: threads that sleep while they wait, and no progress bars and
    notices of libraries between our lines.

    OpenMP's threads spin by default. On a machine whose cores are also wanted by the embedded
    server, the sandbox or anything else, that made sampling eight times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers' reader of GGUF files, for one
    logging.getLogger("httpx2").setLevel(logging.WARNING)
