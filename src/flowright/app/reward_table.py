"""The before/after table at the terminal where rewards are a matter of degree: mean
rewards in the place of accuracies.
"""

from rich.table import Table

from flowright.evaluation.comparison import TRAINED, Comparison
from flowright.evaluation.evaluator import Score


def reward_table(comparison: Comparison) -> Table:
    """A line for each row on all problems and, where these are of several datasets, below it one
    for each dataset: the mean reward with its interval, and the share that nobody could score."""
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
