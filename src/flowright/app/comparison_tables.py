"""The before/after comparison of a run or an evaluation: measured, and rendered for the
terminal."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from flowright.app.terminal import stage_progress
from flowright.config.root import Config
from flowright.core.command_line import say
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.evaluation.comparison import (
    TRAINED,
    UNTRAINED,
    Comparison,
    Measure,
    change_lines,
    compare,
)
from flowright.evaluation.evaluator import Score, TableRow as TableRow
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
        console.print(comparison_table(comparison))
    for line in findings(comparison):
        say(console, line)
    return comparison


def reward_table(comparison: Comparison) -> Table:
    """Return the table where rewards are graded: a line for each row on all problems and, below it,
    one for each of several datasets: mean reward with its interval, and the unscored share."""
    title = f"Mean reward on {_problems(comparison)}"
    shown = _table(title, ("problems", "reward", "95 %", "unscored"))
    for row in comparison.rows:
        style = "bold" if row.name == TRAINED else None
        shown.add_row(row.name, *_reward_cells(row.kinds["all"]), style=style)
        if len(row.sources) > 1:
            for source, score in row.sources.items():
                shown.add_row(f"  {source.rpartition('/')[2]}", *_reward_cells(score))
    return shown


def _problems(comparison: Comparison) -> str:
    label = ", simulated server" if comparison.simulated else ""
    return f"{comparison.problems} held-out problems{label}"


def _table(title: str, columns: Iterable[str], no_wrap: bool = True) -> Table:
    shown = Table(title=title, box=None, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=no_wrap)
    return shown


def _reward_cells(score: Score) -> list[str]:
    mean = score.headline
    low, high = mean.low, mean.high
    return [
        f"{score.problems:,}",
        "-" if mean.value is None else f"{mean.value:.3f}",
        "-" if low is None or high is None else f"{low:.3f} to {high:.3f}",
        f"{score.unscored:.1%}",
    ]


def _shown(value: float | None, form: str) -> str:
    """Format a number; a dash for None."""
    return "-" if value is None else form.format(value)


def _name(row: TableRow) -> str:
    return row.name.removeprefix("fixed: ").replace("_", " ")


def _both(cell: Score) -> str:
    gold, judge = (None if share is None else 100 * share for share in (cell.gold, cell.judge))
    return f"{_shown(gold, '{:.0f}')}/{_shown(judge, '{:.0f}')}"


def _way_gone(share: float) -> str:
    """Describe the share of the gap that training closed; above 1 the share itself means little, as
    a judge's baselines are hardly above chance."""
    if share > 1:
        return "training went past the best baseline of each kind"
    return (
        f"training went {share:.0%} of the way from the untrained policy to the best baseline of "
        "each kind"
    )


def _baselines(comparison: Comparison) -> list[TableRow]:
    """The best single baseline, and those that the environment marks as shown."""
    fixed = [row for row in comparison.rows if row.group == "baseline"]
    chosen = [row for row in fixed if row.shown or row.name == comparison.best_single]
    return sorted(chosen, key=lambda row: -(row.kinds["all"].gold or 0.0))


def _cells(row: TableRow, kinds: Sequence[str]) -> list[str]:
    every = row.kinds["all"]
    low, high = every.gold_low, every.gold_high
    return [
        _name(row),
        _shown(every.gold, "{:.1%}"),
        "-" if low is None or high is None else f"{100 * low:.0f}-{100 * high:.0f}",
        *(_shown(row.kinds[k].gold if k in row.kinds else None, "{:.0%}") for k in kinds),
        _shown(every.judge, "{:.0%}"),
        _shown(every.valid, "{:.0%}"),
        f"{every.tokens:,.0f}",
    ]


def comparison_table(comparison: Comparison) -> Table:
    """Render policies and the main baselines for a terminal of 80 columns; all rows are in
    ``evaluation.json`` and in the report."""
    policies = [row for row in comparison.rows if row.group == "policy"]
    kinds = [kind for kind in policies[0].kinds if kind != "all"]
    title = f"Gold accuracy on {_problems(comparison)}"
    shown = _table(title, ("all", "95 %", *kinds, "judge", "valid", "tokens"))
    for row in policies:
        shown.add_row(*_cells(row, kinds), style="bold" if row.name == TRAINED else None)
    if comparison.best_by_kind:
        best = f"{comparison.best_by_kind_gold:.1%}"
        shown.add_row("best fixed per kind", best, *[""] * (len(kinds) + 4))
    for row in _baselines(comparison):
        shown.add_row(*_cells(row, kinds))
    return shown


def source_table(comparison: Comparison) -> Table:
    """Render gold accuracy and the judge's by dataset, with the rows of :func:`comparison_table` as
    columns."""
    policies = [row for row in comparison.rows if row.group == "policy"]
    rows = [*policies, *_baselines(comparison)]
    shown = _table("By dataset, gold / judge in percent", map(_name, rows), no_wrap=False)
    for source in sorted({source for row in rows for source in row.sources}):
        cells = [row.sources.get(source) for row in rows]
        texts = [_both(cell) if cell else "-" for cell in cells]
        shown.add_row(source.rpartition("/")[2], *texts)
    return shown


def findings(comparison: Comparison) -> list[str]:
    """Render the findings of the table, a line each."""
    lines = []
    if comparison.best_by_kind:
        chosen = "  ".join(
            f"{kind} {name.removeprefix('fixed: ').replace('_', ' ')}"
            for kind, name in comparison.best_by_kind.items()
        )
        lines.append(f"best baseline, chosen on {comparison.chosen_on}: {chosen}")
    if comparison.gap_closed is not None:
        lines.append(_way_gone(comparison.gap_closed))
    for name, changes in comparison.drift.items():
        whose = "" if name == TRAINED else f"{name}: "
        lines += [f"{whose}{line}" for line in change_lines(changes)]
    if cut := max((row.cut for row in comparison.rows), default=0):
        lines.append(
            f"prompts cut to fit policy.max_prompt_tokens: {cut} of {comparison.problems}; the "
            "policy saw only a part of these problems"
        )
    lost = {row.name: row.kinds["all"].unscored for row in comparison.rows}
    if worst := max(lost.values(), default=0.0):
        name = max(lost, key=lambda name: lost[name])
        lines.append(f"not scored, by no fault of the policy: up to {worst:.1%} ({name})")
    for name in (UNTRAINED, TRAINED):
        row = comparison.row(name)
        for kind, mix in (row.mix if row else {}).items():
            calls = "  ".join(f"{what} {mean:.2f}" for what, mean in mix.items())
            lines.append(f"{name.split()[0]:<9} {kind:<4} {calls}")
    return lines
