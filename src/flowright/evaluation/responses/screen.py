"""Scores of responses on the terminal, from their record alone."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowright.core.formatting import Record, percent
from flowright.core.untrusted import one_line


def scores_screen(record: Record) -> Group:
    table = Table("", "score", "95 %", "rows", "responses", "missing", "ungraded", box=None)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for source, told in record["sources"].items():
        table.add_row(
            f"test_score/{one_line(source, 60)}",
            "" if told["score"] is None else f"{told['score']:.4f}",
            _interval(told),
            *(f"{told[name]:,}" for name in ("rows", "responses", "missing", "ungraded")),
        )
    parts: list[RenderableType] = []
    if record["simulated"]:
        parts.append(Text("simulated: the embedded judge graded", style="bold yellow"))
    parts.append(table)
    if healthbench := record.get("healthbench"):
        parts.append(Text(_healthbench(healthbench)))
    for why, count in record["ungraded"].items():
        parts.append(Text(f"{count:,} ungraded, in no mean: {one_line(why, 200)}"))
    return Group(*parts)


def _interval(told: Record) -> str:
    if told["low"] is None:
        return ""
    return f"{told['low']:.3f} to {told['high']:.3f}"


def _healthbench(told: Record) -> str:
    if told["score"] is None:
        return "HealthBench: no response was graded"
    return (
        f"HealthBench: {percent(told['score'])}, bootstrap standard deviation "
        f"{percent(told['bootstrap_std'])}, {told['samples']:,} samples, "
        f"{told['unscored']:,} unscored"
    )
