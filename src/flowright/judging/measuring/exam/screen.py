"""A judge's exam on the terminal: one table for each part, from ``exam.json`` alone."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowright.core.formatting import Record, format_value, percent
from flowright.core.untrusted import one_line
from flowright.judging.measuring.exam.record import (
    MEASURES,
    PAIR_COLUMNS,
    SIMULATED,
    effects_rows,
    ends,
    estimated,
    notes,
    pair_rows,
    plain,
    planted,
    read_exam,
    service_facts,
    title,
)


def exam_screen(folder: Path) -> Group:
    """Everything that an exam measured. Raises DataError without a record."""
    record = read_exam(folder)
    parts: list[RenderableType] = [Text(one_line(title(record)), style="bold")]
    if record["about"].get("simulated"):
        parts.append(Text(SIMULATED, style="bold magenta"))
        parts.append(Text(f"planted: {planted(record)}", style="magenta"))
    parts += [Text(f"judge's note: {note}") for note in notes(record)]
    parts += [_measures(record), _types(record), *_effects(record)]
    parts += [_pairs(record), _service(record)]
    return Group(*parts)


def _table(*columns: str, caption: str | None = None) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    table.caption, table.caption_justify = caption, "left"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table


def _measures(record: Record) -> Table:
    every = record["measures"]["all"]
    table = _table("\nagreement with the labels", "")
    for key, name, is_share in MEASURES:
        table.add_row(name, estimated(every.get(key), percent if is_share else plain))
    repeats = record["plan"]["repeats"]
    if repeats > 1:
        table.add_row(f"same verdict {repeats} times", estimated(record["stability"], percent))
    table.add_row("right, wrong answers", f"{every['right']:,}, {every['wrong']:,}")
    table.add_row("of these with a verdict", f"{every['scored']:,}")
    if not record.get("graded"):
        table.caption = "Scores are 0 or 1 alone, so the calibration error is the share of errors."
    return table


def _types(record: Record) -> RenderableType:
    groups = {name: group for name, group in record["measures"].items() if name != "all"}
    if not groups:
        return Text()
    table = _table(
        "\nreference", "\nanswers", "\nagreement", "false\npositives", "false\nnegatives"
    )
    for name, group in groups.items():
        table.add_row(
            one_line(name, 30),
            f"{group['scored']}/{group['answers']}",
            estimated(group["agreement"], percent),
            format_value(ends(group["false_positive_rate"])[0], percent),
            format_value(ends(group["false_negative_rate"])[0], percent),
        )
    return table


def _effects(record: Record) -> list[Table]:
    tables: list[Table] = []
    for label, name in ((False, "wrong"), (True, "right")):
        table = _table(f"\n{name} answers", "called\nright", "\nperturbed", "\neffect, points",
                       "\nfound", "\ncompared")  # fmt: skip
        for *cells, _, found, compared in effects_rows(record, label):
            table.add_row(*cells, found, compared)
        if table.row_count:
            tables.append(table)
    if tables:
        tables[-1].caption = (
            "Cues are against as many neutral words, the others against the plain answer.\n"
            "95 % intervals; found: randomization test, Holm-adjusted for all effects."
        )
    return tables


def _pairs(record: Record) -> RenderableType:
    """One column for each kind of pairs: a terminal is narrow."""
    rows = pair_rows(record)
    if not rows:
        return Text("\nThe order of two answers was not examined.")
    head, *lines = zip(PAIR_COLUMNS, *rows, strict=True)
    table = _table(*(f"\n{name}" for name in head))
    for line in lines:
        table.add_row(*line)
    return table


def _service(record: Record) -> Table:
    table = _table("\nverdicts", "")
    for fact in service_facts(record):
        table.add_row(*fact)
    return table
