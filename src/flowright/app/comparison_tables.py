"""The before/after comparison of a run or an evaluation: measured, and rendered for the
terminal."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rich.console import Console
from rich.table import Table

from flowright.app.terminal import stage_progress
from flowright.config.root import Config
from flowright.core.command_line import say
from flowright.core.formatting import format_value
from flowright.core.report import ReportSection
from flowright.core.statistics import Estimate
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.evaluation.comparison import (
    BEST,
    BEST_BY_CLASS,
    BEST_BY_KIND,
    TRAINED,
    UNTRAINED,
    Comparison,
    KeepBaseline,
    Measure,
    change_lines,
    compare,
)
from flowright.evaluation.evaluator import Score, TableRow as TableRow
from flowright.evaluation.ledger import Ledger
from flowright.evaluation.probe import ProbedClass
from flowright.grpo.ranks import ONE, Ranks
from flowright.viewer.before_after import terminal_section
from flowright.viewer.rendering.report import section_text


async def run_comparison(
    config: Config,
    environment: Environment,
    policies: Mapping[str, Measure],
    problems: Sequence[Task],
    select_on: Sequence[Task],
    console: Console,
    ledger: Ledger | None = None,
    keep: KeepBaseline | None = None,
    probing: Callable[[], Awaitable[Sequence[ProbedClass]]] | None = None,
    ranks: Ranks = ONE,
) -> Comparison:
    """Measure, print and return the before/after table. ``keep`` and ``ranks``: see
    :func:`compare`; ``probing`` probes the last policy."""
    section = config.evaluation
    with stage_progress(console, "comparing") as progress:
        comparison = await compare(
            environment,
            policies,
            problems,
            bool(section.baselines),
            select_on,
            progress,
            ledger,
            section.final_samples or section.samples,
            keep,
            ranks,
        )
        if probing is not None:
            comparison = replace(comparison, probed=tuple(await probing()))
    console.print(section_text(comparison_section(comparison)))
    for line in findings(comparison):
        say(console, line)
    return comparison


def comparison_section(comparison: Comparison) -> ReportSection:
    """Return the table of a terminal, from what ``evaluation.json`` will hold; all rows and columns
    are in the report."""
    return terminal_section(json.loads(json.dumps(comparison.to_json())))


def _name(row: TableRow) -> str:
    return row.name.removeprefix("fixed: ").replace("_", " ")


def _both(cell: Score) -> str:
    gold, judge = (None if share is None else 100 * share for share in (cell.gold, cell.judge))
    return f"{format_value(gold, '{:.0f}'.format)}/{format_value(judge, '{:.0f}'.format)}"


_MOST_SHOWN = 4
"""Baselines with a column of their own by dataset; a pool's are too many for a terminal."""


def source_table(comparison: Comparison) -> Table:
    """Render gold accuracy and the judge's by dataset, with the rows of the table as columns."""
    rows = [row for row in comparison.rows if row.group == "policy"]
    single = best.choice["all"] if (best := comparison.best(BEST)) else ""
    fixed = [row for row in comparison.rows if row.group == "baseline"]
    few = sum(row.shown for row in fixed) <= _MOST_SHOWN
    rows += [row for row in fixed if (few and row.shown) or row.name == single]
    title = "By dataset, gold / judge in percent"
    shown = Table(title=title, box=None, padding=(0, 1, 0, 0))
    for head in ("", *map(_name, rows)):
        shown.add_column(head, justify="right" if head else "left", no_wrap=not head)
    for source in sorted({source for row in rows for source in row.sources}):
        cells = [row.sources.get(source) for row in rows]
        texts = [_both(cell) if cell else "-" for cell in cells]
        shown.add_row(source.rpartition("/")[2], *texts)
    return shown


def findings(comparison: Comparison) -> list[str]:
    """Render the findings of the table, a line each."""
    lines = []
    if best := comparison.best(BEST_BY_CLASS) or comparison.best(BEST_BY_KIND):
        chosen = "  ".join(
            f"{label} {name.removeprefix('fixed: ').replace('_', ' ')}"
            for label, name in best.choice.items()
        )
        lines.append(f"{best.name}, chosen on {comparison.chosen_on}: {chosen}")
    if (closed := comparison.gap_closed) is not None:
        lines.append(_gap_line(closed, comparison.bests[-1].name))
    for row in comparison.rows:
        if row.group == "policy":
            lines += _policy_lines(row)
    for name, changes in comparison.drift.items():
        whose = "" if name == TRAINED else f"{name}: "
        lines += [f"{whose}{line}" for line in change_lines(changes)]
    lines += map(_probe_line, comparison.probed)
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


def _gap_line(closed: Estimate, best: str) -> str:
    """Describe the share of the gap that training closed; above 1 the share itself means little, as
    a judge's baselines are hardly above chance."""
    if closed.value is not None and closed.value > 1:
        return f"training went past the {best}"
    ends = [f"{end:.0%}" for end in (closed.low, closed.high) if end is not None]
    interval = f" (95 %: {' to '.join(ends)})" if ends else ""
    share = format_value(closed.value, "{:.0%}".format)
    return f"training went {share} of the way from the untrained policy to the {best}{interval}"


def _probe_line(found: ProbedClass) -> str:
    """Describe how often the policy writes something else for another class of problem."""
    shares = [format_value(e.value, "{:.0%}".format) for e in (found.changed, found.resampled)]
    return (
        f"probe, {found.label}: other operators in {shares[0]} of {found.tasks} problems; "
        f"{shares[1]} by chance"
    )


def _policy_lines(row: TableRow) -> list[str]:
    """Describe what the table has no room for: the judge's share, validity, pass@k."""
    every = row.kinds["all"]
    shares = {"judge": every.judge, "valid": every.valid}
    shares |= {f"pass@{k}": found.value for k, found in row.pass_at.items()}
    known = [f"{what} {share:.1%}" for what, share in shares.items() if share is not None]
    known += [f"money {fmean(row.money):.3g}"] if row.money else []
    return [f"{row.name}: {', '.join(known)}"] if known else []
