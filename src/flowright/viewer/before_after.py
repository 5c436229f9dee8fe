"""The before/after table of an evaluation with its 95 % intervals, and accuracy against tokens,
which can be a file of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flowright.core.files import write_text
from flowright.core.formatting import (
    NOTHING,
    Form,
    Record,
    format_value,
    is_number,
    percent,
    points,
)
from flowright.core.report import (
    FactList,
    Fold,
    Heading,
    IntervalMark,
    ReportBlock,
    ReportCell,
    ReportSection,
    ReportTable,
    ScatterChart,
    ScatterDot,
)
from flowright.core.untrusted import one_line
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import picture, scatter_marks
from flowright.viewer.sections import settings
from flowright.viewer.snapshot import (
    ACCURACY,
    MEAN_REWARD,
    Measured,
    Snapshot,
    has_rewards,
    kinds,
)

MARKED_DRIFT = 0.05  # judge less gold, as a share of the answers
MORE: Sequence[tuple[str, str, Form]] = (
    ("Judge - gold", "drift", points),
    ("Valid", "valid", percent),
    ("Unscored", "unscored", percent),
    ("LLM calls", "llm_calls", "{:.1f}".format),
    ("Tokens", "tokens", "{:,.0f}".format),
    ("Seconds", "seconds", "{:.1f}".format),
)
"""The table's last columns; one that no row has a value for is left out."""
CHANGES: Mapping[str, tuple[str, Form, Form]] = {
    "perplexity": ("Perplexity of a text not trained on", "{:.2f}".format, "× {:.3f}".format),
    "completion_tokens": ("Tokens of a completion", "{:.1f}".format, "{:+.1f}".format),
}
"""Side effects of training: title, format of a value, format of its change."""


def evaluation_section(snapshot: Snapshot) -> ReportSection | None:
    """Everything in ``evaluation.json``; None where there is none yet."""
    rows, evaluation = snapshot.compared, snapshot.evaluation or {}
    if not rows:
        return None
    measured = MEAN_REWARD if has_rewards(rows) else ACCURACY
    found = _measured_in((row["kinds"] for row in rows), measured)
    columns = [k for k in dict.fromkeys(["all", *kinds(snapshot), *sorted(found)]) if k in found]
    whole = [_with_drift(row["kinds"].get("all") or {}) for row in rows]
    more = [column for column in MORE if any(_has(cell, column[1]) for cell in whole)]
    first = snapshot.display.compared
    table = [
        [*_name_and_means(row, row["kinds"], columns, measured), *(_cell(cell, *c) for c in more)]
        for row, cell in zip(rows, whole, strict=True)
    ]
    own = [n for n, row in enumerate(rows) if more and row.get("group") == "policy"]
    blocks: list[ReportBlock] = [
        ReportTable((first, *columns, *(name for name, _, _ in more)), table, shaded=own),
        *_side_effects(evaluation.get("drift")),
    ]
    if names := _measured_in((row["sources"] for row in rows), measured):
        cells = [_name_and_means(row, row["sources"], names, measured) for row in rows]
        heads = [one_line(name, 30) for name in (first, *names)]
        blocks.append(Fold("By dataset", [ReportTable(heads, cells)]))
    if isinstance(summary := evaluation.get("summary"), Mapping) and summary:
        blocks += [Heading("Summary of the evaluation"), FactList(settings(summary))]
    if charts := _scatters(rows, columns):
        blocks += [Heading("Accuracy against tokens"), *charts]
    label = "Simulated numbers. " if evaluation.get("simulated") else ""
    cut = max((n for row in rows if is_number(n := row.get("cut"))), default=0)
    seen = f" {cut:,} of the prompts were cut to fit policy.max_prompt_tokens." if cut else ""
    with_interval = f"; {measured.name} with its 95 % interval" if columns else ""
    lead = (
        f"{label}{evaluation.get('problems', '')} held-out problems, the same for every row"
        f"{with_interval}. Costs are means per problem.{seen}"
    )
    return ReportSection("table", "Before and after", blocks, lead)


def accuracy_against_tokens(evaluation: Record, path: Path) -> Path:
    """Draw gold accuracy with its interval over tokens per problem (log scale), one mark a row of
    ``evaluation.json``, as an SVG file; rows that could not be scored are left out."""
    found = [dot for row in evaluation["rows"] if (dot := _dot(row, row["kinds"]["all"]))]
    dots = [replace(dot, x=max(1.0, dot.x)) for dot in found]
    label = "tokens of the large model per problem"
    costs = [dot.x for dot in dots]
    x = svg.across(min(costs) / 1.3, max(costs) * 1.3, log=True) if costs else None
    title = f"Gold accuracy, {evaluation['problems']} problems, 95 % intervals"
    title += ", simulated" if evaluation["simulated"] else ""
    key = [(dot.colour, f"{number} {dot.name}") for number, dot in enumerate(dots, 1)]
    drawing = svg.ChartDrawing(title, scatter_marks(dots, x, label) if x else [], key)
    write_text(path, picture([drawing], key))
    return path


def _name_and_means(
    row: Record, cells: Record, columns: Sequence[str], measured: Measured
) -> list[ReportCell | str]:
    means = [_mean(cells.get(name) or {}, _colour(row), measured) for name in columns]
    return [one_line(row["name"], 60), *means]


def _with_drift(cell: Record) -> Record:
    judge, gold = cell.get("judge"), cell.get("gold")
    return {**cell, "drift": judge - gold} if is_number(judge) and is_number(gold) else cell


def _has(cell: Record, key: str) -> bool:
    value = cell.get(key)
    return is_number(value) and (value != 0 or key in ("drift", "valid"))


def _cell(cell: Record, _: str, key: str, form: Form) -> ReportCell:
    drifting = key == "drift" and abs(cell.get(key, 0.0)) > MARKED_DRIFT
    return ReportCell(format_value(cell.get(key), form), style="alarm" if drifting else "")


def _measured_in(several: Iterable[Mapping[str, Record | None]], measured: Measured) -> list[str]:
    """Names of the cells, kinds or datasets, of which any row has a value."""
    cells = [item for named in several for item in named.items()]
    known = [name for name, cell in cells if is_number((cell or {}).get(measured.key))]
    return list(dict.fromkeys(known))


def _mean(cell: Record, colour: str, measured: Measured) -> ReportCell:
    value, low, high = (cell.get(key) for key in (measured.key, *measured.ends))
    shown = format_value(value, measured.form)
    if not is_number(value) or not is_number(low) or not is_number(high):
        return ReportCell(shown)
    if measured is MEAN_REWARD:  # not always between 0 and 1, as the drawn scale is
        return ReportCell(shown, f"{low:.2f} to {high:.2f}")
    mark = IntervalMark(low, value, high, colour)
    return ReportCell(shown, f"{100 * low:.0f} to {100 * high:.0f}", mark=mark)


def _scatters(rows: Sequence[Record], columns: Sequence[str]) -> list[ScatterChart]:
    """One scatter for all problems and one for each kind, with the same numbers in all."""
    charts: list[ScatterChart] = []
    for kind in columns:
        dots = [dot for row in rows if (dot := _dot(row, row["kinds"].get(kind) or {}))]
        if len(dots) == len(rows) and any(dot.x for dot in dots):
            title = "All problems" if kind == "all" else one_line(kind, 30)
            charts.append(ScatterChart(title, dots, "tokens per problem"))
    return charts


def _dot(row: Record, cell: Record) -> ScatterDot | None:
    tokens, gold = cell.get("tokens"), cell.get("gold")
    if not is_number(tokens) or not is_number(gold):
        return None
    low, high = cell.get("gold_low"), cell.get("gold_high")
    return ScatterDot(one_line(row["name"], 40), _colour(row), tokens, gold, low, high)


def _colour(row: Record) -> str:
    if row.get("group") != "policy":
        return "c6"
    return "c2" if str(row["name"]).startswith("untrained") else "c1"


def _side_effects(drift: object) -> list[ReportBlock]:
    """Further changes of each trained policy."""
    rows: list[Sequence[str]] = []
    trained: Mapping[str, Record] = drift if isinstance(drift, dict) else {}
    for name, changes in trained.items():
        for key, (title, form, change) in CHANGES.items():
            if found := changes.get(key):
                ends = [change(end) for k in ("low", "high") if is_number(end := found.get(k))]
                whose = f"{one_line(name, 60)}: " if len(trained) > 1 else ""
                values = [format_value(found.get(end), form) for end in ("before", "after")]
                values.append(format_value(found.get("change"), change))
                rows.append((whose + title, *values, " to ".join(ends) or NOTHING))
    head = ("", "Untrained", "Trained", "Change", "95 %, paired")
    return [Heading("What else changed"), ReportTable(head, rows)] if rows else []
