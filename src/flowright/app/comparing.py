"""The before/after table of a run or an evaluation: measured, and shown at the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from flowright.app.terminal import findings, say, stage_progress, table
from flowright.config.root import Config
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.evaluation.comparison import TRAINED, Comparison, Measure, compare
from flowright.evaluation.evaluator import Score
from flowright.evaluation.ledger import Ledger


async def run_comparison(
    config: Config,
    environment: Environment,
    policies: Mapping[str, Measure],
    problems: Sequence[Task],
    select_on: Sequence[Task],
    console: Console,
    ledger: Ledger | None = None,
) -> Comparison:
    """Measure, print and return the before/after table."""
    with stage_progress(console, "comparing") as progress:
        comparison = await compare(
            environment,
            policies,
            problems,
            config.evaluation.baselines,
            select_on,
            progress,
            ledger,
        )
    if comparison.by_reward:
        console.print(reward_table(comparison))
    else:
        console.print(table(comparison))
    for line in findings(comparison):
        say(console, line)
    return comparison


def reward_table(comparison: Comparison) -> Table:
    """Return the table where rewards are graded: a line for each row on all problems and, below it,
    one for each of several datasets: mean reward with its interval, and the unscored share."""
    label = ", simulated server" if comparison.simulated else ""
    shown = Table(
        title=f"Mean reward on {comparison.problems} held-out problems{label}",
        box=None,
        padding=(0, 2, 0, 0),
    )
    shown.add_column("", no_wrap=True)
    for name in ("problems", "reward", "95 %", "unscored"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        style = "bold" if row.name == TRAINED else None
        shown.add_row(row.name, *_cells(row.kinds["all"]), style=style)
        if len(row.sources) > 1:
            for source, score in row.sources.items():
                shown.add_row(f"  {source.rpartition('/')[2]}", *_cells(score))
    return shown


def _cells(score: Score) -> list[str]:
    mean = score.headline
    low, high = mean.low, mean.high
    return [
        f"{score.problems:,}",
        "-" if mean.value is None else f"{mean.value:.3f}",
        "-" if low is None or high is None else f"{low:.3f} to {high:.3f}",
        f"{score.unscored:.1%}",
    ]
