"""The report of a judge's exam, built from ``exam.json`` alone."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from flowright.core.errors import DataError
from flowright.core.formatting import (
    NOTHING,
    Form,
    Record,
    duration,
    format_value,
    percent,
    points,
    short_percent,
)
from flowright.core.report import (
    FactList,
    ForestChart,
    ForestMark,
    GridCell,
    GridChart,
    HistogramChart,
    Note,
    ReliabilityChart,
    Report,
    ReportBlock,
    ReportCell,
    ReportColumn,
    ReportSection,
    ReportTable,
    Tile,
    estimate_cell,
    estimate_ends,
)
from flowright.core.tables import read_object
from flowright.core.untrusted import one_line

SIMULATED = (
    "SIMULATED:",
    "the embedded server judged; these numbers say nothing about any real judge.",
)
NAMES: Mapping[str, str] = {
    "neutral": "neutral words",
    "verbosity": "verbosity",
    "authority": "authority",
    "tone": "confident tone",
    "formatting": "formatting",
    "distraction": "distraction",
    "injection": "injection",
    "self_preference": "self-reference",
    "master_key": "master key",
}
two_digits, three_digits = "{:.2f}".format, "{:.3f}".format
MEASURES: Sequence[tuple[str, str, Form]] = (
    ("agreement", "agreement", percent),
    ("kappa", "Cohen's kappa", two_digits),
    ("balanced_accuracy", "balanced accuracy", percent),
    ("false_positive_rate", "false positives", percent),
    ("false_negative_rate", "false negatives", percent),
    ("calibration_error", "calibration error, debiased", percent),
    ("calibration_error_plain", "the same, plain", percent),
    ("brier", "Brier score", three_digits),
    ("log_loss", "log loss", three_digits),
    ("roc_auc", "ROC AUC", two_digits),
)
"""Key, name and format."""
_PAIRS = {
    "equal_pair": "one answer, worded twice",
    "unequal_pair": "right and wrong",
    "evalbiasbench": "EvalBiasBench",
}


def read_exam(folder: Path) -> Record:
    """Read the record of an exam. Raises DataError."""
    path = folder / "exam.json"
    record = read_object(path)
    if not {"about", "measures", "effects"} <= record.keys():
        raise DataError(f"{path}: not the record of an exam; run the exam again")
    return record


def exam_report(record: Record) -> Report:
    """Build the report of a record."""
    about = record["about"]
    chips = [
        f"asks: {about.get('ask')}",
        f"mode: {about.get('mode')}",
        f"gate: {'on' if about.get('gate') else 'off'}",
        f"data: {about.get('data')}",
        f"seed: {record['plan']['seed']}",
    ]
    if about.get("simulated"):
        weights = about.get("planted") or {}
        listed = ", ".join(f"{name} {weight:+g}" for name, weight in weights.items())
        chips.append(f"planted: {listed or 'nothing'}")
    size = f"{record['answers']:,} answers to {record['questions']:,} questions"
    return Report(
        kind="Judge exam",
        title=f"Exam of judge {about['judge']} on {size}",
        sections=[_biases(record), *_order(record), _agreement(record), _service(record)],
        warnings=[SIMULATED] if about.get("simulated") else [],
        chips=[one_line(chip, 160) for chip in chips],
        subtitle=_dates(about),
        notes=[f"Note on the judge: {one_line(note, 300)}" for note in about.get("notes") or ()],
        tiles=_tiles(record),
    )


def _dates(about: Record) -> str:
    if not about.get("started") or not about.get("took_seconds"):
        return ""
    began = datetime.datetime.fromisoformat(about["started"])
    return f"Started {began:%Y-%m-%d %H:%M} UTC, took {duration(about['took_seconds'])}."


def _tiles(record: Record) -> list[Tile]:
    measures = record["measures"]["all"]
    known = [e for e in record["effects"] if not e["label"] and e["own"]["value"] is not None]
    found = [
        (effect["own"]["value"], NAMES.get(effect["bias"], effect["bias"]))
        for effect in known
        if effect.get("found") == "raises"
    ]
    worst = max(found, default=None)
    pairs = record.get("pairs") or {}
    swap = (pairs.get("unequal_pair") or pairs.get("equal_pair") or {}).get("consistency")
    return [
        _tile("Agreement with the labels", measures["agreement"], percent),
        _tile("Cohen's kappa", measures["kappa"], two_digits),
        _tile("Wrong answers called right", measures["false_positive_rate"], percent),
        _tile("Right answers called wrong", measures["false_negative_rate"], percent),
        Tile(
            "Largest bias a policy could exploit",
            f"{points(worst[0])} points" if worst else "none found" if known else NOTHING,
            f"{worst[1]}, on wrong answers" if worst else "on wrong answers",
            "alarm" if worst else "",
        ),
        _tile("The same winner in both orders", swap, percent),
    ]


def _tile(name: str, estimate: object, form: Form) -> Tile:
    cell = estimate_cell(estimate, form)
    return Tile(name, cell.text, cell.note)


# Biases: the effects of perturbations, and of the order of two answers.

_WRONG, _RIGHT, _EQUALS = "c5", "c1", "c2"
_EFFECT_COLUMNS = ("plain", "perturbed", "effect, points",
                   ReportColumn("to plain", page_only=True), "found", "compared")  # fmt: skip
_PAIR_COLUMNS = (
    *("pairs of", "compared", "first wins - second, points", "found"),
    *("same winner both ways", "the right one wins"),
)


def _biases(record: Record) -> ReportSection:
    tables = [
        ReportTable((f"{name} answers", *_EFFECT_COLUMNS), rows)
        for name, label in (("wrong", False), ("right", True))
        if (rows := _effect_rows(record, label))
    ]
    forest = ForestChart(
        "Effect on P(called right)",
        _forest_rows(record),
        [(_WRONG, "wrong answers"), (_RIGHT, "right answers"), (_EQUALS, "pairs of equals")],
        "full: found; hollow: not",
    )
    lead = (
        "Effect of a perturbation on the share of answers called right. Cues are compared with as "
        "many neutral words, so that their length does not count; verbosity, neutral words and "
        "master keys with the original answer. Intervals are at 95 %, each by itself. Found: "
        "significant in a randomization test, Holm-adjusted for all effects. Compared: answers "
        "with a verdict on both sides, of all that were asked about."
    )
    caption = Note(
        "Cues are compared with as many neutral words, the others with the plain answer. 95 % "
        "intervals; found: randomization test, Holm-adjusted for all effects.",
        soft=True,
        where="terminal",
    )
    blocks = (forest, *tables, caption) if tables else (forest, Note("No perturbation was asked."))
    return ReportSection("biases", "Biases", blocks, lead)


def _effect_rows(record: Record, label: bool) -> list[list[ReportCell | str]]:
    return [
        [
            NAMES.get(effect["bias"], effect["bias"]),
            format_value(effect["before"]["value"], percent),
            format_value(effect["after"]["value"], percent),
            estimate_cell(effect["own"], points),
            format_value(effect["total"]["value"], points),
            _found(effect),
            f"{effect['compared']}/{effect['asked']}",
        ]
        for effect in record["effects"]
        if bool(effect["label"]) is label
    ]


def _forest_rows(record: Record) -> list[tuple[str, list[ForestMark]]]:
    rows: dict[str, list[ForestMark]] = {}
    for effect in sorted(record["effects"], key=lambda effect: bool(effect["label"])):
        name = NAMES.get(effect["bias"], effect["bias"])
        mark = _mark(name, effect, effect["own"], _RIGHT if effect["label"] else _WRONG)
        if mark is not None:
            rows.setdefault(name, []).append(mark)
    position = (record.get("pairs") or {}).get("equal_pair")
    mark = position and _mark("position", position, position["position"], _EQUALS)
    return [*rows.items(), *([("position", [mark])] if mark else [])]


def _mark(name: str, effect: Record, estimate: object, colour: str) -> ForestMark | None:
    value, low, high = estimate_ends(estimate)
    if value is None or low is None or high is None:
        return None
    return ForestMark(name, colour, value, low, high, bool(effect.get("found")))


def _found(effect: Record) -> ReportCell | str:
    if effect.get("adjusted") is None:
        return NOTHING
    found = effect.get("found")
    return ReportCell("raises", style="alarm") if found == "raises" else str(found or "no")


def _order(record: Record) -> list[ReportSection]:
    rows: list[list[ReportCell | str]] = [
        [
            _PAIRS.get(kind) or str(kind),
            f"{pair['compared']:,} of {pair['pairs']:,}",
            estimate_cell(pair["position"], points),
            _found(pair),
            estimate_cell(pair["consistency"], percent),
            estimate_cell(pair["prefers"], percent) if kind != "equal_pair" else NOTHING,
        ]
        for kind, pair in (record.get("pairs") or {}).items()
    ]
    title = "The order of two answers"
    if not rows:
        note = Note("The order of two answers was not examined.", where="terminal")
        return [ReportSection("order", title, [note])]
    lead = (
        "Two answers, judged in both orders. Between equals a judge that tosses a coin agrees with "
        "itself half of the time; between a right and a wrong answer it should always agree."
    )
    # On a terminal a column for each kind of pairs: six columns are too wide.
    head, *lines = map(list, zip(_PAIR_COLUMNS, *rows, strict=True))
    shown = [
        ReportTable(_PAIR_COLUMNS, rows, where="page"),
        ReportTable([str(name) for name in head], lines, where="terminal"),
    ]
    return [ReportSection("order", title, shown, lead)]


# Agreement, and how the verdicts came about.


def _agreement(record: Record) -> ReportSection:
    groups = record["measures"]
    every, repeats = groups["all"], record["plan"]["repeats"]
    rows: list[list[ReportCell | str]] = [
        [name, *(estimate_cell(g.get(key), form) for g in groups.values())]
        for key, name, form in MEASURES
    ]
    for key, name in (
        ("right", "right answers"),
        ("wrong", "wrong answers"),
        ("scored", "with a verdict"),
    ):
        rows.append([name, *(f"{group[key]:,}" for group in groups.values())])
    if repeats > 1:
        rows.append([f"same verdict {repeats} times", estimate_cell(record["stability"], percent)])
        rows[-1] += [""] * (len(groups) - 1)
    by_type: list[list[ReportCell | str]] = [
        [
            one_line(name, 30),
            f"{group['scored']}/{group['answers']}",
            estimate_cell(group["agreement"], percent),
            format_value(estimate_ends(group["false_positive_rate"])[0], percent),
            format_value(estimate_ends(group["false_negative_rate"])[0], percent),
        ]
        for name, group in groups.items()
        if name != "all"
    ]
    heads = [ReportColumn(one_line(name, 30), page_only=group is not every)
             for name, group in groups.items()]  # fmt: skip
    type_heads = ("reference", "answers", "agreement", "false positives", "false negatives")
    reliability = [ReliabilityChart("Reliability", record["reliability"])]
    blocks: list[ReportBlock] = [
        _confusion(record["confusion"]),
        *(reliability if record["graded"] else []),
        ReportTable(["", *heads], rows),
        ReportTable(type_heads, by_type, where="terminal"),
    ]
    if record["service"]["source"].get("cache"):
        note = (
            "Verdicts came from the service's cache, so how often they repeat is not known: it "
            "ignores `fresh`."
        )
        blocks.append(Note(note))
    if not record.get("graded"):
        note = (
            "Scores are 0 or 1 alone, so the plain calibration error is the share of errors, and "
            "there is no log loss and no reliability chart."
        )
        blocks.append(Note(note, soft=True))
    lead = "Unchanged answers, judged once; 95 % intervals from a bootstrap over questions."
    return ReportSection("agreement", "Agreement with the labels", blocks, lead)


def _confusion(counts: Record) -> GridChart:
    """Findings by label, with shares of the label's row."""
    columns = {"called_right": "called right", "called_wrong": "called wrong"}
    columns |= {"unscored": "no verdict"}
    rows: list[tuple[str, list[GridCell]]] = []
    for label in ("right", "wrong"):
        found = {name: counts[f"{label}_{name}"] for name in columns}
        cells: list[GridCell] = []
        total = sum(found.values())
        for name, count in found.items():
            share = count / total if total else 0.0
            agrees = "c3" if name == f"called_{label}" else "c5"
            colour = "c6" if name == "unscored" else agrees
            note = short_percent(share) if total else NOTHING
            cells.append(GridCell(f"{count:,}", share, colour, note))
        rows.append((label, cells))
    return GridChart("Labels and findings", [*columns.values()], rows)


def _service(record: Record) -> ReportSection:
    service = record["service"]
    seconds = service.get("seconds") or {}
    shares = dict(service["status"])
    facts = [
        ("in all", f"{service['verdicts']:,}"),
        ("with a finding", format_value(shares.pop("ok", None), percent)),
        ("without", _shares(shares) or "none"),
        ("decided by", _shares(service["source"])),
        ("attempts, mean", format_value(service["tries_mean"], two_digits)),
        ("tried again", format_value(service["retried"], percent)),
        ("prompt tokens, mean", format_value(service["prompt_tokens_mean"], "{:,.0f}".format)),
        (
            "completion tokens, mean",
            format_value(service["completion_tokens_mean"], "{:,.0f}".format),
        ),
        ("seconds, median", format_value(seconds.get("p50"), "{:.3g}".format)),
        ("seconds, 95 %", format_value(seconds.get("p95"), "{:.3g}".format)),
    ]
    if service["cost"] is not None:
        facts.append(("cost of the exam", f"{service['cost']:.4g}"))
        facts.append(("cost of 1000 verdicts", f"{service['cost_per_1000']:.4g}"))
    histogram = HistogramChart(
        "Seconds per verdict",
        seconds.get("bins") or (),
        seconds.get("edges") or (),
        "seconds",
        "verdicts",
        [(seconds["p50"], "median"), (seconds["p95"], "95 %")] if seconds else (),
    )
    lead = "All verdicts of the exam. Attempts, tokens and seconds are of those that asked a model."
    return ReportSection("service", "Verdicts", [FactList(facts), histogram], lead)


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share)
