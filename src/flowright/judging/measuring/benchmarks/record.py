"""The record of a measurement, read from its JSON, and what it says in words: the same on the
terminal and on the page.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.formatting import Form, Record, format_value, is_number, percent
from flowright.core.untrusted import one_line

SIMULATED = "SIMULATED: the embedded server judged; these numbers say nothing about a real judge."

NAMES = {
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
}
COLUMNS = ("by the rule", "95 %", "readable", "length", "rows")


@dataclass(frozen=True, slots=True)
class Line:
    """A figure in words: by the published rule, its interval, of what can be read, of the length of
    answers, and of how many rows."""

    measure: str
    group: str
    cells: tuple[str, str, str, str, str]


def read_record(path: Path) -> Record:
    """Raises DataError for a file that holds none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not {"about", "figures", "counts"} <= record.keys():
            raise ValueError("no figures in it")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: not a record of a judge's benchmark ({error})") from None
    return record


def lines_of(record: Record) -> Iterator[Line]:
    """Every figure, by measure and group."""
    answered = {_key(f): f for f in record["figures"] if f["reading"] == "answered"}
    length = {_key(f): f for f in record["length"]}
    for figure in record["figures"]:
        if figure["reading"] != "published":
            continue
        form = plain if "kappa" in figure["measure"] else percent
        readable, longest = answered.get(_key(figure), {}), length.get(_key(figure), {})
        cells = (
            format_value(figure["value"], form),
            interval(figure, form),
            format_value(readable.get("value"), form),
            format_value(longest.get("value"), form),
            f"{figure['rows']:,}",
        )
        yield Line(figure["measure"], figure["group"], cells)


def published_rows(record: Record) -> list[tuple[str, str, str, str, str]]:
    """Work, measure, group, figure and source of what others published."""
    return [
        (
            one["work"],
            NAMES.get(one["measure"], str(one["measure"])),
            one["group"],
            percent(one["value"]),
            one["source"],
        )
        for one in record.get("published", [])
    ]


def counted(record: Record) -> list[tuple[str, str]]:
    """What the figures are of."""
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
    shown = [(name, f"{counts[key]:,}") for key, name in named if key in counts]
    if calibrated := record.get("calibration"):
        for key, name in (("before", "as trained"), ("after", "calibrated")):
            error = format_value(calibrated[key]["error"]["value"], percent)
            shown.append((f"calibration error, {name}", error))
    return shown


def title(record: Record) -> str:
    about, told = record["about"], record["benchmark"]
    data = "" if about["data"] in told["title"].casefold() else f" ({about['data']})"
    return one_line(f"{about['judge']} on {told['title']}{data}", 200)


def interval(figure: Record, form: Form) -> str:
    """Its ends, nothing where there is none."""
    low, high = figure["low"], figure["high"]
    if not is_number(low) or not is_number(high):
        return ""
    return f"{form(low).removesuffix(' %')} to {form(high)}"


def plain(value: float) -> str:
    return f"{value:.3f}"


def _key(figure: Record) -> tuple[Any, Any]:
    return figure["measure"], figure["group"]
