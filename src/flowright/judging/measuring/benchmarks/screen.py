"""A judge's benchmark on the terminal, from its record alone."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowright.core.formatting import Record
from flowright.core.untrusted import one_line
from flowright.judging.measuring.benchmark_report import (
    COLUMNS,
    NAMES,
    SIMULATED,
    counted,
    lines_of,
    published_rows,
    title,
)
from flowright.judging.measuring.judge_benchmark import overlap_lines


def benchmark_screen(record: Record) -> Group:
    """Every figure, what it is of, and what others published."""
    parts: list[RenderableType] = [Text(title(record), style="bold")]
    if record["about"].get("simulated"):
        parts.append(Text(SIMULATED, style="bold magenta"))
    parts += _trained_on(record)
    parts += [_figures(record), _published(record), _counts(record)]
    return Group(*parts)


def _trained_on(record: Record) -> list[Text]:
    first, *more = [one_line(line, 200) for line in overlap_lines(record["about"])] or [""]
    style = "bold magenta" if more else "dim"
    return [Text(line, style=style) for line in (first, *more) if line]


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    table.caption_justify = "left"
    return table


def _figures(record: Record) -> RenderableType:
    """Subsets of the first measure alone: the record and the page have them of all."""
    table = _table("", *COLUMNS)
    lines = list(lines_of(record))
    for line in lines:
        if line.group == "all":
            table.add_row(NAMES.get(line.measure, line.measure), *line.cells)
        elif line.measure == lines[0].measure:
            table.add_row(Text(f"  {one_line(line.group, 22)}"), *line.cells)
    table.caption = f"{record['benchmark']['rule']} 95 % intervals: bootstrap over prompts."
    return table


def _published(record: Record) -> RenderableType:
    rows = [row for row in published_rows(record) if row[2] == "all" or row[2].startswith("mean")]
    if not rows:
        return Text("\nNo figures of others' are kept for this.")
    table = _table("\npublished by others", "", "")
    for work, measure, group, figure, _ in rows:
        table.add_row(work, measure if group == "all" else f"{measure}, {group}", figure)
    return table


def _counts(record: Record) -> RenderableType:
    table = _table("\ncounts", "")
    for name, count in counted(record):
        table.add_row(name, count)
    return table
