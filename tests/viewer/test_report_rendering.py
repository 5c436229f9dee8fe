"""A report as a page and on a terminal: the same facts, each where they fit, nothing obeyed."""

import io

from rich.console import Console

from flowright.core.report import (
    FactList,
    GridCell,
    GridChart,
    Note,
    Report,
    ReportCell,
    ReportColumn,
    ReportSection,
    ReportTable,
    Tile,
)
from flowright.viewer.rendering.report import report_html, report_text

HOSTILE = "<b>\x1b[1m"
REPORT = Report(
    kind="Test",
    title=f"Report of {HOSTILE}",
    warnings=[("SIMULATED:", "no real judge.")],
    chips=["seed: 0"],
    tiles=[Tile("Agreement", "91.0 %", "88.2 to 93.1", "alarm")],
    sections=[
        ReportSection(
            "measures",
            "Measures",
            [
                ReportTable(
                    ("", ReportColumn("wide", page_only=True), "share"),
                    [["agreement", "only on a page", ReportCell("91.0 %", "88.2 to 93.1")]],
                    caption="A caption.",
                ),
                ReportTable(("empty",), []),
                FactList([("verdicts", "12")]),
                GridChart("Counts", ("right",), [("right", [GridCell("3", 0.8)])]),
            ],
        ),
        ReportSection("left-out", "Left out", [Note("Only here.", where="terminal")]),
    ],
)


def on_terminal(report: Report) -> str:
    text = io.StringIO()
    Console(width=80, file=text).print(report_text(report))
    return text.getvalue()


def test_a_page_has_everything_and_escapes_it() -> None:
    page = report_html(REPORT)
    assert "&lt;b&gt;" in page and HOSTILE not in page and "\x1b" not in page
    assert "only on a page" in page and "<small>88.2 to 93.1</small>" in page
    assert 'class="tile alarm"' in page and page.count("<svg") == 1
    assert "SIMULATED:" in page.split("<main")[0], "before any number"
    assert "Left out" not in page and "Only here" not in page and "empty" not in page


def test_a_terminal_has_neither_charts_nor_wide_columns() -> None:
    shown = on_terminal(REPORT)
    assert "\x1b" not in shown and "<b>␛[1m" in shown
    assert "agreement  91.0 % (88.2 to 93.1)" in shown and "A caption." in shown
    assert "only on a page" not in shown and "Counts" not in shown and "empty" not in shown
    assert "SIMULATED: no real judge." in shown and "seed: 0" in shown
    assert ["verdicts", "12"] in [line.split() for line in shown.splitlines()]
    assert "Left out" in shown and "Only here." in shown
