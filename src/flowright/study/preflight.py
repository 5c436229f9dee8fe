"""What runs need and whether it is there: the dry run of ``train.py`` for every cell. Nothing is
written or started.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from flowright.config import SIMULATED, load_config
from flowright.config.root import Config
from flowright.core.errors import UserError
from flowright.study.cells import Run


@dataclass(slots=True)
class Needs:
    """``missing`` names for each problem the cells that have it; of so many cells ``looked_at``."""

    looked_at: int = 0
    missing: dict[str, list[str]] = field(default_factory=dict)


def needs_of(base: Path, runs: Sequence[Run]) -> Needs:
    """Look at the first run of every cell. One of the embedded policy whose judge and executor are
    embedded, too, needs nothing but this checkout, and is not looked at."""
    found = Needs()
    firsts = {run.cell.name: run for run in reversed(runs)}
    for name, run in reversed(firsts.items()):
        config = load_config(base, run.overrides)
        if run.embedded and config.models <= {SIMULATED} and config.judge.service is None:
            continue
        found.looked_at += 1
        for problem in _problems(config):
            found.missing.setdefault(problem, []).append(name)
    return found


def _problems(config: Config) -> list[str]:
    from flowright.app.preflight import look  # loads torch

    try:
        return look(config.model_copy(update={"run": _fresh(config)})).problems
    except UserError as error:
        return [*error.problems]


def _fresh(config: Config) -> object:
    """A run that goes on is no problem here: a study resumes by itself."""
    return config.run.model_copy(update={"name": f"{config.run.name}.dry_run"})


def print_needs(needs: Needs, console: Console) -> int:
    """A line for each problem with its cells; the exit status, 2 where something is missing."""
    if not needs.looked_at:
        return 0
    lines = [f"checked   {needs.looked_at} arms and doses, as train.py --dry-run does"]
    for problem, cells in needs.missing.items():
        some = ", ".join(cells) if len(cells) < needs.looked_at else "all"
        lines.append(f"missing   {problem} [{some}]")
    lines += [] if needs.missing else ["ready     everything that the runs need is there"]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return 2 if needs.missing else 0
