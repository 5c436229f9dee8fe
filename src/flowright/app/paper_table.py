"""The papers' table of an evaluation: printed, and kept beside ``evaluation.json``. No model is
asked and torch is not loaded."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowright.app.measuring import Evaluation
from flowright.config import SIMULATED
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.core.errors import RunError
from flowright.core.files import disk_errors, write_json, write_text
from flowright.data.provenance import provenance_of
from flowright.evaluation.papers import Models, PaperTable, paper_table, published_texts, sources
from flowright.evaluation.published import DATASETS
from flowright.runs.run_files import read_evaluation

_EMBEDDED = {SIMULATED: "the embedded server"}


def show_papers(evaluation: Evaluation, data: Path | None, console: Console) -> None:
    """Print the table of a finished evaluation and leave ``papers.md`` and ``papers.json``. Raises
    RunError where its evaluation.json cannot be read or the disk is full."""
    folder, config = evaluation.ledger.folder, evaluation.config
    found = read_evaluation(folder)
    if found is None:
        raise RunError(f"{folder / 'evaluation.json'}: cannot be read; --overwrite measures again")
    section = config.evaluation
    table = paper_table(
        found,
        models_of(config),
        provenance_of(str(data or config.held_out_from), "test" if data else "val"),
        section.final_samples or section.samples,
        evaluation.problems_hash,
    )
    print_papers(table, console)
    page, rows = folder / "papers.md", folder / "papers.json"
    with disk_errors(page):
        write_text(page, table.markdown())
    with disk_errors(rows):
        write_json(rows, table.to_json())
    for path in (page, rows):
        console.print(f"written   {path}", highlight=False, markup=False, soft_wrap=True)


def models_of(config: Config) -> Models:
    """Who answers by this configuration: what the servers call the models, not what we do. Of
    environments other than workflows, which ask whom they want, it is not known."""
    if config.environment != "workflow":
        own = f"whom environment {config.environment} asks"
        return Models(config.strategy_model, own, own)
    entries = load_entries(config.llm.file, config.models)

    def called(name: str) -> str:
        return entries[name].model_name if name in entries else _EMBEDDED.get(name, name)

    executor, judges = config.aflow_executor_model, config.judge_names
    roles = {"executor": (executor,), "judge": judges}
    return Models(
        config.strategy_model,
        called(executor),
        ", ".join(map(called, judges)),
        tuple(role for role, names in roles.items() if SIMULATED in names),
    )


def print_papers(table: PaperTable, console: Console) -> None:
    """The table and, below it, models, notes and sources, a line each."""
    console.print(_screen(table))
    lines = [f"models really used: {table.models.line()}", *table.notes]
    lines += [f"[{n}] {line}" for n, line in enumerate(sources(table.published), start=1)]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _screen(table: PaperTable) -> Table:
    shown = Table(
        title=f"The papers' table, in per cent{', ours simulated' * table.simulated}",
        box=None,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("", overflow="fold")
    for name in (*DATASETS.values(), "mean"):
        shown.add_column(name, justify="right", no_wrap=True)

    def add(name: str, cells: Sequence[str], style: str | None = None) -> None:
        shown.add_row(Text(name), *map(Text, cells), style=style)

    for number, one in enumerate(table.published, start=1):
        add(f"{one.system} [{number}]", published_texts(one))
    for row in table.ours:
        cells = [row.cells.get(key) for key in DATASETS]
        texts = [*(c.text if c else "" for c in cells), row.mean_text]
        add(f"ours: {table.name(row)}", texts, "bold")
        add("  95 %", [c.interval if c else "" for c in cells])
        add("  problems", [f"{c.problems:,}" if c else "" for c in cells])
    return shown
