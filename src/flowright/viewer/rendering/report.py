"""Render a :class:`flowright.core.report.Report` as an HTML document or for a terminal."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from flowright.core.files import check_writable, disk_errors, write_text
from flowright.core.report import (
    FactList,
    Note,
    Report,
    ReportBlock,
    ReportCell,
    ReportColumn,
    ReportSection,
    ReportTable,
)
from flowright.core.untrusted import one_line, visible
from flowright.viewer.rendering.markup import (
    Html,
    el,
    facts,
    grid,
    header,
    page,
    section,
    strip,
    table,
    tile,
)
from flowright.viewer.rendering.report_charts import chart_html

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text


def report_html(report: Report) -> str:
    """Render the document: one self-contained file."""
    head = header(report.kind, one_line(report.title, 200), report.chips, report.subtitle)
    notes = [el("li", note) for note in report.notes]
    tiles = [tile(t.title, t.value, t.note, t.style or None) for t in report.tiles]
    labels = " ".join(label for label, _ in report.warnings)
    body = [
        [strip(label, text) for label, text in report.warnings],
        el(
            "main",
            head,
            el("ul", notes) if notes else None,
            el("div", tiles, class_="tiles") if tiles else None,
            [section_html(one) for one in report.sections],
            el("footer", f"{labels} Written by Flowright.".strip()),
        ),
    ]
    return page(f"{one_line(report.title, 60)} - {report.kind.lower()}", body)


def write_report(report: Report, path: Path) -> None:
    """Write the document. Raises RunError for a path that cannot be written."""
    check_writable(path.parent)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, report_html(report))


def section_html(shown: ReportSection) -> Html:
    """Render a section; neighbouring charts share a row."""
    content: list[Html | None] = []
    blocks = [b for b in shown.blocks if getattr(b, "where", "both") != "terminal"]
    for is_chart, some in groupby(blocks, _is_chart):
        if is_chart:
            content.append(grid([_block_html(block) for block in some], "charts two"))
        else:
            content += map(_block_html, some)
    return section(shown.anchor, shown.title, shown.lead, content)


def _is_chart(block: ReportBlock) -> bool:
    return not isinstance(block, Note | FactList | ReportTable)


def _block_html(block: ReportBlock) -> Html | None:
    if isinstance(block, Note):
        return el("p", block.text, class_="soft" if block.soft else None)
    if isinstance(block, FactList):
        return facts(block.rows)
    if not isinstance(block, ReportTable):
        return chart_html(block)
    if not block.rows:
        return None
    heads = [_column(column).title for column in block.columns]
    body = [
        el("tr", el("th", _cell(name).text), map(_cell_html, cells)) for name, *cells in block.rows
    ]
    caption = el("p", block.caption, class_="soft") if block.caption else None
    return el("div", table(heads, body), caption)


def _cell_html(cell: ReportCell | str) -> Html:
    cell = _cell(cell)
    class_ = "drift" if cell.style == "alarm" else "text" if cell.is_text else None
    return el("td", cell.text, el("small", cell.note) if cell.note else None, class_=class_)


def _cell(cell: ReportCell | str) -> ReportCell:
    return ReportCell(cell) if isinstance(cell, str) else cell


def _column(column: ReportColumn | str) -> ReportColumn:
    return ReportColumn(column) if isinstance(column, str) else column


def report_text(report: Report) -> "Group":
    """Render for a terminal of at least 80 characters: without charts and tiles."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(one_line(report.title, 200), style="bold")]
    for label, text in report.warnings:
        parts.append(Text(visible(f"{label} {text}"), style="bold magenta"))
    if report.chips:
        parts.append(Text(visible(", ".join(report.chips)), style="dim"))
    parts += [Text(visible(note)) for note in report.notes]
    for one in report.sections:
        shown = [drawn for block in one.blocks if (drawn := _block_text(block)) is not None]
        if shown:
            parts += [Text(), Text(visible(one.title), style="bold"), *shown]
    return Group(*parts)


def _block_text(block: ReportBlock) -> "Table | Text | None":
    from rich.text import Text

    if getattr(block, "where", "both") == "page" or _is_chart(block):
        return None
    if isinstance(block, Note):
        return Text(visible(block.text), style="dim" if block.soft else "")
    if isinstance(block, FactList):
        return _table_text(ReportTable(("", ""), block.rows))
    assert isinstance(block, ReportTable)
    return _table_text(block) if block.rows else None


def _table_text(block: ReportTable) -> "Table":
    from rich.table import Table
    from rich.text import Text

    kept = [place for place, c in enumerate(block.columns) if not _column(c).page_only]
    heads = [visible(_column(block.columns[place]).title) for place in kept]
    shown = Table(box=None, pad_edge=False, show_header=any(heads))
    for head in heads:
        shown.add_column(Text(head))
    shown.caption, shown.caption_justify = visible(block.caption) or None, "left"
    shown.columns[0].no_wrap = True
    for row in block.rows:
        shown.add_row(*(_cell_text(row[place]) for place in kept))
    for place, column in zip(kept[1:], shown.columns[1:], strict=True):
        if not any(_cell(row[place]).is_text for row in block.rows):
            column.justify, column.no_wrap = "right", True
    return shown


def _cell_text(cell: ReportCell | str) -> "Text":
    from rich.text import Text

    cell = _cell(cell)
    note = f" ({cell.note})" if cell.note else ""
    return Text(visible(f"{cell.text}{note}"), style="bold" if cell.style == "alarm" else "")
