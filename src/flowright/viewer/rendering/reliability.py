"""How often somebody is right against how sure they were, and what a calibration changed in that:
one drawing and one section for every page.
"""

from collections.abc import Sequence

from flowright.core.formatting import Record, percent, said
from flowright.core.untrusted import one_line
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.markup import Html, el
from flowright.viewer.rendering.page import grid, section, table


def reliability_diagram(title: str, bins: Sequence[Record]) -> Html | None:
    """Accuracy against confidence, from a half to 1; a judge that knows itself lies on the
    diagonal. ``bins`` have their mean ``confidence``, ``accuracy``, and how many ``verdicts``; None
    without any."""
    if not bins:
        return None
    x, y = svg.across(0.5, 1.0), svg.Scale(0.0, 1.0, svg.HEIGHT - svg.BOTTOM, svg.TOP)
    drawn = svg.y_axis((0.0, 0.25, 0.5, 0.75, 1.0), y, svg.short_percent)
    drawn += svg.x_axis((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), x, svg.short_percent, "confidence")
    drawn.append(svg.line("zero", x(0.5), x(1.0), y(0.5), y(1.0)))
    most = max(row["verdicts"] for row in bins)
    for row in bins:
        told = (
            f"{row['verdicts']} verdicts of {100 * row['confidence']:.0f} % confidence, "
            f"{100 * row['accuracy']:.0f} % of them right"
        )
        radius = round(3 + 7 * (row["verdicts"] / most) ** 0.5, 1)
        drawn.append(svg.dot("dot c1", x(row["confidence"]), y(row["accuracy"]), radius, told))
    return svg.figure(title, drawn)


def calibration_section(record: Record) -> Html | None:
    """The section of a calibration's record (``calibration.json``, or what a benchmark measured of
    it): one temperature, and both diagrams; None where there is no record."""
    if not record:
        return None
    before, after = record["before"], record["after"]
    others = " of other conversations" if "conversations" in record["measured"] else ""
    lead = (
        f"Scores are divided by a temperature of {record['temperature']:.3g}, fitted by maximum "
        f"likelihood on {record['fitted']['pairs']:,} pairs "
        f"({record['fitted']['conversations']:,} conversations). Below are "
        f"{record['measured']['pairs']:,} pairs{others}, from "
        f"{one_line(record['data'], 120)}: how often the answer with the higher score is the "
        f"preferred one, against how likely the scores say that is, in {record['bins']} bins."
    )
    if record.get("at_bound"):
        lead += " The temperature is the bound of its search: such scores have none."
    rows = [
        ("expected calibration error", *map(_error, (before, after))),
        ("log loss a pair", *(f"{each['log_loss']:.3f}" for each in (before, after))),
        ("ranked as preferred", *(percent(each["accuracy"]) for each in (before, after))),
    ]
    body = [el("tr", el("th", name), [el("td", cell) for cell in cells]) for name, *cells in rows]
    drawn = [
        reliability_diagram("As trained", before["reliability"]),
        reliability_diagram("Calibrated", after["reliability"]),
    ]
    shown = table(("", "As trained", "Calibrated"), body)
    return section("calibration", "Calibration", lead, grid(drawn, "charts two"), shown)


def _error(measured: Record) -> str:
    error = measured["error"]
    if error["low"] is None:
        return said(error["value"], percent)
    ends = f"{percent(error['low'])} to {percent(error['high'])}"
    return f"{said(error['value'], percent)} ({ends})"
