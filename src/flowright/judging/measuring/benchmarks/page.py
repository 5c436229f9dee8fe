"""A judge's benchmark as one self-contained HTML page, from its record alone."""

from itertools import groupby
from pathlib import Path

from flowright.core.formatting import Record
from flowright.core.report import calibration_section
from flowright.core.untrusted import one_line
from flowright.judging.measuring.benchmarks.record import (
    COLUMNS,
    NAMES,
    SIMULATED,
    Line,
    counted,
    lines_of,
    published_rows,
    title,
)
from flowright.judging.measuring.benchmarks.trained_on import words
from flowright.runs import check_writable, disk_errors, write_text
from flowright.viewer.rendering.markup import (
    Html,
    el,
    facts,
    header,
    page,
    section,
    strip,
    table,
    tile,
)
from flowright.viewer.rendering.report import section_html

_TILES = 4


def write_page(record: Record, path: Path) -> None:
    """Raises RunError where the file cannot be written."""
    check_writable(path.parent)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, render(record))


def render(record: Record) -> str:
    """The document."""
    simulated = record["about"].get("simulated")
    note = "The embedded server judged; these numbers say nothing about any real judge."
    trained = [one_line(line, 200) for line in words(record["about"])]
    calibration = calibration_section(record.get("calibration") or {})
    body = [
        strip("Simulated numbers.", note) if simulated else None,
        strip(trained[0], " ".join(trained[1:])) if len(trained) > 1 else None,
        el(
            "main",
            _header(record),
            _tiles(record),
            _figures(record),
            calibration and section_html(calibration),
            _published(record),
            section("counts", "What the figures are of", " ".join(trained), facts(counted(record))),
            el("footer", f"{SIMULATED if simulated else ''} Written by Flowright."),
        ),
    ]
    return page(f"{one_line(record['about']['judge'], 60)} - judge benchmark", body)


def _header(record: Record) -> Html:
    about, told = record["about"], record["benchmark"]
    chips = [f"data: {about['data']}", f"rows' SHA-256: {about['sha256'][:16]}"]
    chips += [f"{name}: {about[name]}" for name in ("way", "outputs", "seed") if name in about]
    chips.append(f"Flowright {about['version']}")
    shown = [one_line(chip, 160) for chip in chips]
    note = f"{told['paper']}. {told['rule']}" if told["paper"] else told["rule"]
    return header("Judge benchmark", title(record), shown, note)


def _tiles(record: Record) -> Html:
    whole = [line for line in lines_of(record) if line.group == "all"][:_TILES]
    shown = [tile(NAMES.get(one.measure, one.measure), *one.cells[:2]) for one in whole]
    return el("div", shown, class_="tiles")


def _figures(record: Record) -> Html:
    lead = (
        "An unreadable reply counts as the benchmark counts it, and is left out beside that. The "
        "length is the judge that prefers the longer answer. Intervals are at 95 %, from a "
        "bootstrap over prompts."
    )
    tables = [
        el("section", table((NAMES.get(measure, measure), *COLUMNS), list(map(_row, lines))))
        for measure, lines in groupby(lines_of(record), lambda line: line.measure)
    ]
    return section("figures", "Figures", lead, tables)


def _row(line: Line) -> Html:
    return el("tr", el("th", one_line(line.group, 60)), [el("td", cell) for cell in line.cells])


def _published(record: Record) -> Html:
    rows = published_rows(record)
    lead = "Figures of others', with their source; none of them was measured here."
    if not rows:
        return section("published", "Published", "No figures of others' are kept for this.")
    body = [el("tr", el("th", row[0]), [el("td", cell) for cell in row[1:]]) for row in rows]
    head = ("work", "measure", "rows", "figure", "source")
    return section("published", "Published", lead, table(head, body))
