"""``exam.html``: one self-contained page that tells a judge's exam, from ``exam.json`` alone."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from flowright.core.formatting import NOTHING, Form, Record, duration, format_value, percent, points
from flowright.core.report import (
    ConfusionChart,
    ForestChart,
    ForestMark,
    HistogramChart,
    ReliabilityChart,
)
from flowright.core.untrusted import one_line
from flowright.judging.measuring.exam.record import (
    MEASURES,
    NAMES,
    PAIR_COLUMNS,
    SIMULATED,
    biases,
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
from flowright.runs import disk_errors, write_text
from flowright.viewer.rendering.charts import chart_html
from flowright.viewer.rendering.markup import (
    Child,
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


def write_exam_page(folder: Path) -> Path:
    """Write the page beside the record; returns its path. Raises DataError without a record."""
    record = read_exam(folder)
    path = folder / "exam.html"
    with disk_errors(folder):
        write_text(path, render_exam(record))
    return path


def render_exam(record: Record) -> str:
    """The document."""
    about = record["about"]
    note = "The embedded server judged; these numbers say nothing about any real judge."
    body = [
        strip("Simulated numbers.", note) if about.get("simulated") else None,
        el(
            "main",
            _header(record),
            _tiles(record),
            biases_section(record),
            order_section(record),
            _agreement(record),
            _service(record),
            el("footer", f"{SIMULATED if about.get('simulated') else ''} Written by Flowright."),
        ),
    ]
    return page(f"{one_line(about['judge'], 60)} - judge exam", body)


def _header(record: Record) -> Html:
    about = record["about"]
    chips = [
        f"asks: {about.get('ask')}",
        f"mode: {about.get('mode')}",
        f"gate: {'on' if about.get('gate') else 'off'}",
        f"data: {about.get('data')}",
        f"seed: {record['plan']['seed']}",
    ]
    if about.get("simulated"):
        chips.append(f"planted: {planted(record)}")
    shown = [one_line(chip, 160) for chip in chips]
    told = f"{title(record)}.{_started(about)}"
    head = header("Judge exam", one_line(about["judge"], 100), shown, told)
    own = el("ul", [el("li", f"The judge's note: {note}") for note in notes(record)])
    return el("div", head, own if notes(record) else None)


def _started(about: Record) -> str:
    if not about.get("started") or not about.get("took_seconds"):
        return ""
    began = datetime.datetime.fromisoformat(about["started"])
    return f" Begun {began:%Y-%m-%d %H:%M} UTC, took {duration(about['took_seconds'])}."


def _tiles(record: Record) -> Html:
    measures = record["measures"]["all"]
    known = [e for e in record["effects"] if not e["label"] and e["own"]["value"] is not None]
    found = [
        (effect["own"]["value"], NAMES.get(effect["bias"], effect["bias"]))
        for effect in known
        if effect.get("found") == "raises"
    ]
    worst = max(found, default=None)
    nothing = "none found" if known else NOTHING
    bias = f"{points(worst[0])} points" if worst else nothing
    pairs = record.get("pairs") or {}
    swap = (pairs.get("unequal_pair") or pairs.get("equal_pair") or {}).get("consistency")
    tiles = [
        _tile("Agreement with the labels", measures["agreement"], percent),
        _tile("Cohen's kappa", measures["kappa"], plain),
        _tile("Wrong answers called right", measures["false_positive_rate"], percent),
        _tile("Right answers called wrong", measures["false_negative_rate"], percent),
        tile(
            "What a policy could exploit most",
            bias,
            f"{worst[1]}, on wrong answers" if worst else "on wrong answers",
            "alarm" if worst else None,
        ),
        _tile("The same winner in both orders", swap, percent),
    ]
    return el("div", tiles, class_="tiles")


def _tile(name: str, estimate: object, form: Form) -> Html:
    value, low, high = ends(estimate)
    note = f"{form(low)} to {form(high)}" if low is not None and high is not None else ""
    return tile(name, format_value(value, form), note)


def _agreement(record: Record) -> Html:
    groups = record["measures"]
    head = ("", *(one_line(name, 30) for name in groups))
    body = [
        _row(
            name,
            [with_interval(g.get(key), percent if is_share else plain) for g in groups.values()],
        )
        for key, name, is_share in MEASURES
    ]
    for key in ("right", "wrong", "scored"):
        name = {"right": "right answers", "wrong": "wrong answers"}.get(key, "with a verdict")
        body.append(_row(name, [f"{g[key]:,}" for g in groups.values()]))
    repeats = record["plan"]["repeats"]
    stable = estimated(record.get("stability"), percent)
    told = f"Asked {repeats} times, the verdict stays the same for {stable} of the answers."
    drawn = grid(
        [
            chart_html(_confusion(record["confusion"])),
            chart_html(ReliabilityChart("Reliability", record["reliability"]))
            if record["graded"]
            else None,
        ],
        "charts two",
    )
    plain_scores = (
        "This judge says right or wrong without a degree, so its confidence is always 1 and its "
        "calibration error is the share of its errors; there is no reliability to draw."
    )
    return section(
        "agreement",
        "Agreement with the labels",
        "Answers as they are, judged once; 95 % intervals from a bootstrap over questions.",
        drawn,
        table(head, body),
        el("p", told) if repeats > 1 else None,
        None if record["graded"] else el("p", plain_scores, class_="soft"),
    )


def _row(name: str, cells: Sequence[Child]) -> Html:
    return el("tr", el("th", name), [el("td", cell) for cell in cells])


def _service(record: Record) -> Html:
    figure = chart_html(_histogram(record["service"].get("seconds") or {}))
    lead = "All verdicts of the exam. Attempts, tokens and seconds are of those that asked a model."
    shown = el("div", facts(service_facts(record)), figure, class_="pair")
    return section("service", "How the verdicts came about", lead, shown)


# What sways a judge: perturbations, and the order of two answers.

_WRONG, _RIGHT = "c5", "c1"
_COLUMNS = ("plain", "perturbed", "effect, points", "to plain", "found", "compared")


def biases_section(record: Record) -> Html:
    """Effects of perturbations, drawn and as tables."""
    rows = biases(record)
    forest_rows: list[tuple[str, Sequence[ForestMark]]] = []
    for bias, wrong, right in rows:
        name = NAMES.get(bias, bias)
        shown = [
            whisker
            for effect, colour in ((wrong, _WRONG), (right, _RIGHT))
            if (whisker := _whisker(name, effect, effect and effect["own"], colour)) is not None
        ]
        if shown:
            forest_rows.append((name, shown))
    position = (record.get("pairs") or {}).get("equal_pair")
    whisker = _whisker("position", position, position and position["position"], "c2")
    if whisker is not None:
        forest_rows.append(("position", [whisker]))
    colours = [(_WRONG, "wrong answers"), (_RIGHT, "right answers"), ("c2", "pairs of equals")]
    chart = ForestChart(
        "Effect on P(called right)", forest_rows, colours, "full: found; hollow: not"
    )
    labels = (("Wrong answers", False), ("Right answers", True))
    tables = [
        el("section", table((name, *_COLUMNS), [_found_row(cells) for cells in shown]))
        for name, label in labels
        if (shown := effects_rows(record, label))
    ]
    lead = (
        "What a perturbation changes in the share of answers called right. Cues stand against as "
        "many neutral words, so that their length does not count for them; verbosity, neutral "
        "words and master keys against the answer as it was. Intervals are at 95 %, each by "
        "itself. Found is what a randomization test shows after Holm's adjustment for all of them. "
        "Compared are the answers of which both sides have a verdict, of all that were asked about."
    )
    return section(
        "biases",
        "Biases",
        lead,
        grid([chart_html(chart)], "charts two"),
        tables if tables else el("p", "No perturbation was asked for."),
    )


def _found_row(cells: Sequence[str]) -> Html:
    """A row of the record's; what a policy could exploit stands out."""
    told = [el("td", cell, class_="drift" if cell == "raises" else None) for cell in cells[1:]]
    return el("tr", el("th", cells[0]), told)


def with_interval(estimate: object, form: Form) -> list[Child]:
    """A value above its interval, for a cell."""
    value, low, high = ends(estimate)
    if low is None or high is None:
        return [format_value(value, form)]
    return [format_value(value, form), el("small", f"{form(low)} to {form(high)}")]


def _whisker(name: str, effect: Record | None, estimate: object, colour: str) -> ForestMark | None:
    value, low, high = ends(estimate)
    if effect is None or value is None or low is None or high is None:
        return None
    return ForestMark(name, colour, value, low, high, bool(effect.get("found")))


def order_section(record: Record) -> Html | None:
    """Pairs in both orders; None where none were asked about."""
    rows = pair_rows(record)
    if not rows:
        return None
    lead = (
        "Two answers, judged in both orders. Between equals a judge that tosses a coin agrees with "
        "itself half of the time; between a right and a wrong answer it should always."
    )
    shown = table(PAIR_COLUMNS, [_found_row(cells) for cells in rows])
    return section("order", "The order of two answers", lead, shown)


def _confusion(counts: Record) -> ConfusionChart:
    columns = ("called right", "called wrong", "no verdict")
    rows = (
        ("right", ("right_called_right", "right_called_wrong", "right_unscored")),
        ("wrong", ("wrong_called_right", "wrong_called_wrong", "wrong_unscored")),
    )
    shown = [(label, [counts[key] for key in keys]) for label, keys in rows]
    return ConfusionChart("Labels and findings", columns, shown)


def _histogram(seconds: Record) -> HistogramChart:
    marks = [(seconds["p50"], "median"), (seconds["p95"], "95 %")] if seconds else []
    return HistogramChart(
        "Seconds per verdict",
        seconds.get("bins") or (),
        seconds.get("edges") or (),
        "seconds",
        "verdicts",
        marks,
    )
