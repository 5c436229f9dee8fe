"""The report of a judge's benchmark, built from its record alone; and two judges on the same pairs:
McNemar's test on the pairs that only one of them has right."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError, UserError
from flowright.core.formatting import Record, format_value, percent
from flowright.core.report import (
    FactList,
    Note,
    Report,
    ReportBlock,
    ReportCell,
    ReportSection,
    ReportTable,
    Tile,
    calibration_section,
    estimate_cell,
    estimate_ends,
)
from flowright.core.statistics import DIFFERENCE, Resampler, mean, sign_test
from flowright.core.tables import read_object
from flowright.core.untrusted import one_line
from flowright.data.contamination import TRAINED_ON
from flowright.judging.measuring.benchmark_rows import RESAMPLES
from flowright.judging.measuring.exam_report import SIMULATED
from flowright.judging.measuring.pair_figures import LENGTH_CONTROLLED

MEASURE_NAMES = {
    "two_games": "right by two games",
    "three_class": "three-class accuracy",
    "kappa": "Cohen's kappa",
    "agreement": "agreement",
    "agreement_without_ties": "agreement, no ties",
    "both_right": "right in both orders",
    "consistency": "same in both orders",
    "first_place": "place shown first",
    "longer": "the longer answer",
    "annotators": "with each annotator",
    "annotators_kappa": "kappa, each annotator",
    "among_annotators": "among annotators",
    "score": "score",
    "win_rate": "win rate",
    LENGTH_CONTROLLED: "win rate, length-controlled",
}
_COLUMNS = ("by the rule", "readable", "length", "rows")
_TILES = 4

Row = list[ReportCell | str]


def read_record(path: Path) -> Record:
    """Read the record of a benchmark. Raises DataError."""
    record = read_object(path)
    if not {"about", "figures", "counts"} <= record.keys():
        raise DataError(f"{path}: not a record of a judge's benchmark")
    return record


def benchmark_report(record: Record) -> Report:
    """Build the report of a record."""
    about, benchmark = record["about"], record["benchmark"]
    chips = [f"data: {about['data']}", f"rows' SHA-256: {about['sha256'][:16]}"]
    chips += [f"{name}: {about[name]}" for name in ("way", "outputs", "seed") if name in about]
    chips.append(f"Flowright {about['version']}")
    data = (
        "" if about["data"].casefold() in benchmark["title"].casefold() else f" ({about['data']})"
    )
    overlap = [one_line(line, 200) for line in overlap_lines(about)]
    is_simulated = about.get("simulated") or record.get("against", {}).get("simulated")
    warnings: list[tuple[str, str]] = [SIMULATED] if is_simulated else []
    if partial := _partial(record):
        warnings.append(("PARTIAL:", partial))
    if len(overlap) > 1:
        warnings.append((overlap[0], " ".join(overlap[1:])))
    calibration = calibration_section(record.get("calibration") or {})
    against = two_judges_section(record)
    paper = f"{benchmark['paper']}. " if benchmark["paper"] else ""
    return Report(
        kind="Judge benchmark",
        title=f"{about['judge']} on {benchmark['title']}{data}",
        sections=[
            _figures(record),
            *([against] if against else []),
            *([calibration] if calibration else []),
            _published(record),
            _counts(record, overlap),
        ],
        warnings=warnings,
        chips=[one_line(chip, 160) for chip in chips],
        subtitle=f"{paper}{benchmark['rule']}",
        tiles=[
            Tile(_name(figure), row[1].text, row[1].note)
            for figure, row in _rows(record)
            if figure["group"] == "all" and isinstance(row[1], ReportCell)
        ][:_TILES],
    )


def _partial(record: Record) -> str:
    """Say in which way the rows are not the whole benchmark; empty if they are."""
    lines = [one_line(line, 100) for line in record.get("partial") or ()]
    return f"{'; '.join(lines)}. The figures are not those of the whole data." if lines else ""


def _figures(record: Record) -> ReportSection:
    """On a terminal subsets of the first measure alone."""
    rows = list(_rows(record))
    blocks: list[ReportBlock] = [
        ReportTable(
            (_name({"measure": measure}), *_COLUMNS), [row for _, row in some], where="page"
        )
        for measure, some in groupby(rows, lambda each: each[0]["measure"])
    ]
    brief: list[Row] = []
    for figure, (group, *cells) in rows:
        if figure["group"] == "all":
            brief.append([_name(figure), *cells])
        elif figure["measure"] == rows[0][0]["measure"]:
            brief.append([f"  {one_line(group, 22)}", *cells])
    caption = f"{record['benchmark']['rule']} 95 % intervals: bootstrap over prompts."
    blocks.append(ReportTable(("", *_COLUMNS), brief, caption, where="terminal"))
    lead = (
        "An unreadable reply counts as the benchmark counts it; under readable it is left out. "
        "Length is the judge that prefers the longer answer. Intervals are at 95 %, from a "
        "bootstrap over prompts."
    )
    return ReportSection("figures", "Figures", blocks, lead)


def _rows(record: Record) -> list[tuple[Record, Row]]:
    """Every figure by the published rule, with its row: its group, the figure, of readable replies
    alone, of the length of answers, and the number of rows."""
    answered = {_key(f): f for f in record["figures"] if f["reading"] == "answered"}
    length = {_key(f): f for f in record["length"]}
    rows: list[tuple[Record, Row]] = []
    for figure in record["figures"]:
        if figure["reading"] == "published":
            form = "{:.3f}".format if "kappa" in figure["measure"] else percent
            readable, longest = answered.get(_key(figure), {}), length.get(_key(figure), {})
            row: Row = [
                one_line(figure["group"], 60),
                estimate_cell(figure, form),
                format_value(readable.get("value"), form),
                format_value(longest.get("value"), form),
                f"{figure['rows']:,}",
            ]
            rows.append((figure, row))
    return rows


def _key(figure: Record) -> tuple[Any, Any]:
    return figure["measure"], figure["group"]


def _name(figure: Record) -> str:
    return MEASURE_NAMES.get(figure["measure"], str(figure["measure"]))


def _published(record: Record) -> ReportSection:
    published = record.get("published", [])
    if not published:
        return ReportSection("published", "Published", [Note("No published figures are kept.")])
    rows: list[Row] = [
        [each["work"], _name(each), each["group"], percent(each["value"]), each["source"]]
        for each in published
    ]
    brief: list[Row] = [
        [work, ReportCell(f"{measure}, {group}".removesuffix(", all"), is_text=True), figure]
        for work, measure, group, figure, _ in rows
        if group == "all" or str(group).startswith("mean")
    ]
    columns = ("work", "measure", "rows", "figure", "source")
    blocks = (
        ReportTable(columns, rows, where="page"),
        ReportTable(("work", "", ""), brief, where="terminal"),
    )
    lead = "Figures of other works, with their source; none of them was measured here."
    return ReportSection("published", "Published by others", blocks, lead)


def _counts(record: Record, overlap: list[str]) -> ReportSection:
    counts = record["counts"]
    named = (
        ("rows", "rows"),
        ("prompts", "prompts"),
        ("unscored", "unscored: the judge failed"),
        ("questions", "replies"),
        ("unreadable", "of these unreadable"),
        ("ties", "of these a tie"),
        ("labelled_ties", "labelled a tie"),
    )
    facts = [(name, f"{counts[key]:,}") for key, name in named if key in counts]
    if calibrated := record.get("calibration"):
        for key, name in (("before", "as trained"), ("after", "calibrated")):
            error = estimate_cell(calibrated[key]["error"], percent)
            facts.append((f"calibration error, {name}", error.text))
    notes = [Note(overlap[0], soft=True)] if len(overlap) == 1 else []
    return ReportSection("counts", "Counts", [*notes, FactList(facts)])


def overlap_lines(about: Mapping[str, Any]) -> Sequence[str]:
    """Return the lines on training overlap in a record's ``about``; the first of several is a
    warning. Baselines have none."""
    overlap = about.get("trained_on")
    if overlap is None:
        return ()
    if overlap["found"]:
        warning = "TRAINED ON THESE ROWS: the figures do not hold for other data."
        return (warning, *overlap["found"])
    if overlap["files"]:
        return (f"Not trained on these rows, according to {', '.join(overlap['files'])}.",)
    return (f"Training data unknown: no {TRAINED_ON} found (--trained-on).",)


def compare_judges(first: Record, second: Record) -> dict[str, Any]:
    """Compare the records of two judges: counts of rows by who has them right, the difference of
    the shares with its interval (bootstrap over prompts), and McNemar's exact p-value, which takes
    rows for independent. Rows that one of them left unscored are only counted. Raises UserError for
    records of different rows, or of rows without labels."""
    if first["about"]["sha256"] != second["about"]["sha256"]:
        raise UserError("--against: the two records are of different rows")
    if not any("right" in row for record in (first, second) for row in record["rows"]):
        raise UserError(
            "--against: no row has a label and both verdicts; compare on labelled pairs"
        )
    both = [
        (mine["prompt"], bool(mine["right"]), bool(other["right"]))
        for mine, other in zip(first["rows"], second["rows"], strict=True)
        if "right" in mine and "right" in other
    ]
    outcomes = [(mine, other) for _, mine, other in both]
    only, only_other = outcomes.count((True, False)), outcomes.count((False, True))
    prompts = [prompt for prompt, *_ in both]
    found = Resampler(prompts, RESAMPLES, first["about"]["seed"]).estimate(
        prompts, [(mine - other, 1.0) for mine, other in outcomes], mean, DIFFERENCE
    )
    return {
        "judge": second["about"]["judge"],
        "simulated": second["about"]["simulated"],
        "both_right": outcomes.count((True, True)),
        "only_first": only,
        "only_second": only_other,
        "neither": outcomes.count((False, False)),
        "unscored": len(first["rows"]) - len(both),
        "difference": {"value": found.value, "low": found.low, "high": found.high},
        "p": sign_test(only, only_other),
    }


def two_judges_section(record: Record) -> ReportSection | None:
    """Build the section of a record that has a comparison."""
    against = record.get("against")
    if against is None:
        return None
    names = record["about"]["judge"], against["judge"]
    value, low, high = (
        None if end is None else f"{100 * end:+.1f}" for end in estimate_ends(against["difference"])
    )
    interval = "" if low is None else f" ({low} to {high})"
    counts = (
        ("both right", "both_right"),
        (f"only {names[0]}", "only_first"),
        (f"only {names[1]}", "only_second"),
        ("neither", "neither"),
        ("unscored by one of them", "unscored"),
    )
    facts = [(name, f"{against[key]:,}") for name, key in counts]
    facts.append(("difference, points", f"{value or '-'}{interval}"))
    facts.append(("exact p (McNemar)", f"{against['p']:.3g}"))
    lead = (
        f"{names[0]} minus {names[1]}{' (simulated)' if against['simulated'] else ''}. Right: the "
        "verdict of both orders is the label, in RewardBench 2 the whole row. The interval is at "
        "95 %, from a bootstrap over prompts; p takes the rows for independent."
    )
    return ReportSection("against", "Two judges", [FactList(facts)], lead)
