"""The exam page's sections on what sways a judge: perturbations, and the order of two answers."""

from collections.abc import Mapping, Sequence

from flowright.judge_exam.charts import Whisker, forest
from flowright.judge_exam.record import NAMES, biases, ends, estimated, verdict_on
from flowright.rendering import svg
from flowright.rendering.markup import Child, Html, el
from flowright.rendering.page import grid, section, table
from flowright.rendering.series import Row
from flowright.rendering.values import NOTHING, Form, percent, points, said

_WRONG, _RIGHT = "c5", "c1"
_PAIRS = {
    "equal_pair": "one answer, worded twice",
    "unequal_pair": "a right and a wrong answer",
}


def biases_section(record: Row) -> Html:
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
    tables = [
        drawn
        for label, place in (("Wrong answers", 1), ("Right answers", 2))
        if (drawn := _effects_table(label, [(row[0], row[place]) for row in rows])) is not None
    ]
    lead = (
        "What a perturbation changes in the share of answers called right. Cues stand against as "
        "many neutral words, so that their length does not count for them; verbosity, neutral "
        "words and master keys against the answer as it was. Intervals are at 95 %, each by "
        "itself. Found is what a randomization test shows after Holm's adjustment for all of them. "
        "Where verdicts failed, it says of how many answers both sides have one."
    )
    return section(
        "biases",
        "Biases",
        lead,
        grid([forest("Effect on P(called right)", forest_rows, legend)], "charts two"),
        el("div", tables, class_="pair") if tables else el("p", "No perturbation was asked for."),
    )


def _effects_table(label: str, rows: Sequence[tuple[str, object]]) -> Html | None:
    """The effects on the answers of one label, None without any."""
    body = [
        el("tr", el("th", NAMES.get(bias, bias)), _effect_cells(effect))
        for bias, effect in rows
        if isinstance(effect, Mapping)
    ]
    head = (label, "plain", "perturbed", "effect", "to plain", "found")
    return el("section", table(head, body)) if body else None


def _effect_cells(effect: Row) -> list[Html]:
    left_out = effect["asked"] - effect["compared"]
    note = el("small", f"{effect['compared']} of {effect['asked']}") if left_out else None
    return [
        el("td", said(effect["before"]["value"], percent)),
        el("td", said(effect["after"]["value"], percent), note),
        el("td", with_interval(effect["own"], points)),
        el("td", said(effect["total"]["value"], points)),
        el("td", verdict_on(effect), class_="drift" if effect.get("found") == "raises" else None),
    ]


def with_interval(estimate: object, form: Form) -> list[Child]:
    """A value above its interval, for a cell."""
    value, low, high = ends(estimate)
    if low is None or high is None:
        return [said(value, form)]
    return [said(value, form), el("small", f"{form(low)} to {form(high)}")]


def _whisker(name: str, effect: Row | None, estimate: object, colour: str) -> Whisker | None:
    value, low, high = ends(estimate)
    if effect is None or value is None or low is None or high is None:
        return None
    return Whisker(name, colour, value, low, high, bool(effect.get("found")))


def order_section(record: Row) -> Html | None:
    """Pairs in both orders; None where none were asked about."""
    pairs = record.get("pairs") or {}
    if not pairs:
        return None
    head = (
        "Pairs of",
        "compared",
        "first wins - second wins",
        "found",
        "same winner",
        "right wins",
    )
    body = [
        el(
            "tr",
            el("th", _PAIRS.get(name, name)),
            el("td", f"{found['compared']} of {found['pairs']}"),
            el("td", with_interval(found["position"], points)),
            el("td", verdict_on(found)),
            el("td", estimated(found["consistency"], percent)),
            el("td", estimated(found["prefers"], percent) if name != "equal_pair" else NOTHING),
        )
        for name, found in pairs.items()
    ]
    lead = (
        "Two answers, judged in both orders. Between equals a judge that tosses a coin agrees with "
        "itself half of the time; between a right and a wrong answer it should always."
    )
    return section("order", "The order of two answers", lead, table(head, body))
