"""Render a :class:`flowright.core.report.Report` as an HTML document or for a terminal."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowright.core.files import check_writable, disk_errors, write_text
from flowright.core.report import (
    BarList,
    Bullets,
    ChangeChart,
    FactList,
    Fold,
    Heading,
    Note,
    Report,
    ReportBlock,
    ReportCell,
    ReportChart,
    ReportColumn,
    ReportSection,
    ReportTable,
    ScatterChart,
    Tile,
)
from flowright.core.untrusted import one_line, visible
from flowright.viewer.rendering.charts import bar_list, chart_html, mark_html, scatter_key
from flowright.viewer.rendering.markup import (
    Child,
    Html,
    el,
    facts,
    folded,
    header,
    page,
    section,
    strip,
)

MOST_SPACED = 8
"""Columns of a table on a terminal that are set two characters apart."""
MOST_WIDE = 4
"""Charts in a row of sections that are drawn wide."""


def report_html(report: Report) -> str:
    """Render the document: one self-contained file."""
    head = header(report.kind, one_line(report.title, 200), report.chips, report.subtitle)
    notes = [el("li", note) for note in report.notes]
    labels = " ".join(label for label, _ in report.warnings)
    body = [
        [strip(label, text) for label, text in report.warnings],
        [strip(*banner) for banner in report.banners],
        el(
            "main",
            head,
            el("ul", notes) if notes else None,
            tiles_html(report.tiles),
            [section_html(one) for one in report.sections if one.lead or _on_page(one.blocks)],
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


def tiles_html(tiles: Iterable[Tile]) -> Html | None:
    """Render headline numbers; None without any."""
    drawn = [
        el("div", el("span", t.title), el("b", t.value), el("span", t.note),
           class_=f"tile {t.style}".strip())
        for t in tiles
    ]  # fmt: skip
    return el("div", drawn, class_="tiles") if drawn else None


def section_html(shown: ReportSection) -> Html:
    """Render a section; neighbouring charts share rows."""
    return section(shown.anchor, shown.title, shown.lead, content_html(shown.blocks))


def content_html(blocks: Iterable[ReportBlock]) -> list[Html | None]:
    """Render blocks below each other; neighbouring charts share rows, the dots of neighbouring
    scatters a key."""
    content: list[Html | None] = []
    for is_chart, some in groupby(_on_page(blocks), lambda block: isinstance(block, ReportChart)):
        if not is_chart:
            content += map(_block_html, some)
            continue
        charts = list(some)
        if isinstance(charts[0], ScatterChart):
            content.append(scatter_key(charts[0].dots))
        drawn = [figure for figure in map(_block_html, charts) if figure is not None]
        wide = len(drawn) <= MOST_WIDE and not isinstance(charts[0], ChangeChart)
        style = "charts two" if wide else "charts"
        content.append(el("div", drawn, class_=style) if drawn else None)
    return content


def _on_page(blocks: Iterable[ReportBlock]) -> list[ReportBlock]:
    return [block for block in blocks if getattr(block, "where", "both") != "terminal"]


def _block_html(block: ReportBlock) -> Html | None:
    match block:
        case Note():
            return el("p", block.text, class_="soft" if block.soft else None)
        case Heading():
            return el("h3", block.text)
        case Bullets():
            lines = [el("li", line) for line in block.lines]
            return el("ol" if block.numbered else "ul", lines) if lines else None
        case Fold():
            inner = [drawn for drawn in content_html(block.blocks) if drawn is not None]
            return folded(block.title, inner) if inner else None
        case FactList():
            return facts(block.rows)
        case BarList():
            return bar_list(block)
        case ReportTable():
            return table_html(block)
        case _:
            return chart_html(block)


def table_html(block: ReportTable) -> Html | None:
    """Render a table, which scrolls where the page is narrow; None without rows."""
    if not block.rows:
        return None
    heads = [
        el(
            "th",
            el("a", column.title, href=column.address, rel="nofollow")
            if column.address
            else column.title,
            scope="col",
            class_="text" if column.is_text else None,
            aria_sort=column.order,
            title=column.tip or None,
        )
        for column in map(_column, block.columns)
    ]
    body = [
        el(
            "tr",
            el("th", _linked(_cell(name)), _note_html(_cell(name)), scope="row"),
            map(cell_html, cells),
            class_="own" if n in block.shaded else None,
        )
        for n, (name, *cells) in enumerate(block.rows)
    ]
    caption = el("caption", block.caption) if block.caption else None
    named = any(column.title for column in map(_column, block.columns))
    top = el("thead", el("tr", heads)) if named else None
    shown = el("table", caption, top, el("tbody", body), id=block.anchor or None)
    return el("div", shown, class_="wide")


def cell_html(cell: ReportCell | str) -> Html:
    """Render a cell."""
    cell = _cell(cell)
    style = "drift" if cell.style == "alarm" else cell.style
    class_ = style or ("text" if cell.is_text else None)
    mark = mark_html(cell.mark) if cell.mark else None
    return el("td", _linked(cell), mark, _note_html(cell), class_=class_)


def _note_html(cell: ReportCell) -> Html | None:
    return el("small", cell.note) if cell.note else None


def _linked(cell: ReportCell) -> Child:
    return el("a", cell.text, href=cell.address) if cell.address else cell.text


def _cell(cell: ReportCell | str) -> ReportCell:
    return ReportCell(cell) if isinstance(cell, str) else cell


def _column(column: ReportColumn | str) -> ReportColumn:
    return ReportColumn(column) if isinstance(column, str) else column


def report_text(report: Report) -> Group:
    """Render for a terminal of at least 80 characters: without charts and tiles."""
    parts: list[RenderableType] = [Text(one_line(report.title, 200), style="bold")]
    for label, text in report.warnings:
        parts.append(Text(visible(f"{label} {text}"), style="bold magenta"))
    parts += [Text(visible(f"{label} {text}")) for label, text, _ in report.banners]
    if report.chips:
        parts.append(Text(visible(", ".join(report.chips)), style="dim"))
    parts += [Text(visible(note)) for note in report.notes]
    for one in report.sections:
        if any(_block_text(block) is not None for block in one.blocks):
            parts += [Text(), section_text(one)]
    return Group(*parts)


def section_text(shown: ReportSection) -> Group:
    """Render a section for a terminal, without its charts."""
    blocks = [drawn for block in shown.blocks if (drawn := _block_text(block)) is not None]
    return Group(Text(visible(shown.title), style="bold"), *blocks)


def _block_text(block: ReportBlock) -> RenderableType | None:
    if getattr(block, "where", "both") == "page" or isinstance(block, ReportChart | BarList):
        return None
    if isinstance(block, Heading):
        return Text(visible(block.text), style="bold")
    if isinstance(block, Note):
        return Text(visible(block.text), style="dim" if block.soft else "")
    if isinstance(block, Bullets):
        return Text(visible("\n".join(f"- {line}" for line in block.lines)))
    if isinstance(block, Fold):
        inner = [drawn for one in block.blocks if (drawn := _block_text(one)) is not None]
        return Group(*inner) if inner else None
    if isinstance(block, FactList):
        return _table_text(ReportTable(("", ""), block.rows))
    assert isinstance(block, ReportTable)
    return _table_text(block) if block.rows else None


def _table_text(block: ReportTable) -> Table:
    kept = [place for place, c in enumerate(block.columns) if not _column(c).page_only]
    heads = [visible(_column(block.columns[place]).title) for place in kept]
    narrow = len(kept) > MOST_SPACED
    padding = (0, 1, 0, 0) if narrow else (0, 1)
    shown = Table(box=None, pad_edge=False, show_header=any(heads), padding=padding)
    for head in heads:
        shown.add_column(Text(head))
    shown.caption, shown.caption_justify = visible(block.caption) or None, "left"
    shown.columns[0].no_wrap = not narrow
    for cells in block.rows:
        shown.add_row(*(_cell_text(cells[place]) for place in kept))
    for place, column in zip(kept[1:], shown.columns[1:], strict=True):
        if not any(_cell(row[place]).is_text for row in block.rows):
            column.justify, column.no_wrap = "right", True
    return shown


def _cell_text(cell: ReportCell | str) -> Text:
    cell = _cell(cell)
    note = f" ({cell.note})" if cell.note else ""
    return Text(visible(f"{cell.text}{note}"), style="bold" if cell.style == "alarm" else "")
