"""The exam page's sections on what sways a judge: perturbations, and the order of two answers."""

from collections.abc import Sequence

from flowright.judge_exam.charts import Whisker, forest
from flowright.judge_exam.record import (
    NAMES,
    PAIR_COLUMNS,
    biases,
    effects_rows,
    ends,
    pair_rows,
)
from flowright.rendering import svg
from flowright.rendering.markup import Child, Html, el
from flowright.rendering.page import grid, section, table
from flowright.rendering.series import Form, Record, said

_WRONG, _RIGHT = "c5", "c1"
_COLUMNS = ("plain", "perturbed", "effect, points", "to plain", "found", "compared")


def biases_section(record: Record) -> Html:
    """Effects of perturbations, drawn and as tables."""
    rows = biases(record)
    forest_rows: list[tuple[str, Sequence[Whisker]]] = []
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
    legend = svg.key(colours, "full: found; hollow: not")
    labels = (("Wrong answers", False), ("Right answers", True))
    tables = [
        el("section", table((name, *_COLUMNS), [_row(cells) for cells in shown]))
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
        grid([forest("Effect on P(called right)", forest_rows, legend)], "charts two"),
        tables if tables else el("p", "No perturbation was asked for."),
    )


def _row(cells: Sequence[str]) -> Html:
    """A row of the record's; what a policy could exploit stands out."""
    told = [el("td", cell, class_="drift" if cell == "raises" else None) for cell in cells[1:]]
    return el("tr", el("th", cells[0]), told)


def with_interval(estimate: object, form: Form) -> list[Child]:
    """A value above its interval, for a cell."""
    value, low, high = ends(estimate)
    if low is None or high is None:
        return [said(value, form)]
    return [said(value, form), el("small", f"{form(low)} to {form(high)}")]


def _whisker(name: str, effect: Record | None, estimate: object, colour: str) -> Whisker | None:
    value, low, high = ends(estimate)
    if effect is None or value is None or low is None or high is None:
        return None
    return Whisker(name, colour, value, low, high, bool(effect.get("found")))


def order_section(record: Record) -> Html | None:
    """Pairs in both orders; None where none were asked about."""
    rows = pair_rows(record)
    if not rows:
        return None
    lead = (
        "Two answers, judged in both orders. Between equals a judge that tosses a coin agrees with "
        "itself half of the time; between a right and a wrong answer it should always."
    )
    shown = table(PAIR_COLUMNS, [_row(cells) for cells in rows])
    return section("order", "The order of two answers", lead, shown)
