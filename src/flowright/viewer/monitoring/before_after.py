"""The before/after table with its 95 % intervals, and accuracy against tokens, which can be a file
of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flowright.core.formatting import NOTHING, Form, Record, is_number, percent, points, said
from flowright.core.untrusted import one_line
from flowright.runs import write_text
from flowright.viewer.monitoring.sections import settings
from flowright.viewer.monitoring.snapshot import (
    ACCURACY,
    MEAN_REWARD,
    Measured,
    Snapshot,
    kinds,
    tells_rewards,
)
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import (
    Dot,
    Panel,
    dots_scale,
    interval,
    numbered_dots,
    numbered_key,
    picture,
    scatter,
)
from flowright.viewer.rendering.markup import Child, Html, el, facts, folded, grid, section, table

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


def evaluation_section(snapshot: Snapshot) -> Html | None:
    """Everything that ``evaluation.json`` holds; None where there is none yet."""
    rows, evaluation = snapshot.compared, snapshot.evaluation or {}
    if not rows:
        return None
    measured = MEAN_REWARD if tells_rewards(rows) else ACCURACY
    found = _measured_in((row["kinds"] for row in rows), measured)
    columns = [k for k in dict.fromkeys(["all", *kinds(snapshot), *sorted(found)]) if k in found]
    everything = [_with_drift(row["kinds"].get("all") or {}) for row in rows]
    more = [column for column in MORE if any(_tells(cell, column[1]) for cell in everything)]
    first = snapshot.display.compared
    head = (first, *columns, *(name for name, _, _ in more))
    body = [
        _table_row(
            row, row["kinds"], columns, measured, [_cell(cell, key, form) for _, key, form in more]
        )
        for row, cell in zip(rows, everything, strict=True)
    ]
    label = "Simulated numbers. " if evaluation.get("simulated") else ""
    with_interval = f"; {measured.name} with its 95 % interval" if columns else ""
    lead = (
        f"{label}{evaluation.get('problems', '')} held-out problems, the same for every row"
        f"{with_interval}. Costs are means per problem."
    )
    drift = _drift(evaluation.get("drift"))
    parts = [drift, _by_dataset(rows, first, measured), _summary(evaluation.get("summary"))]
    drawn = _scatters(rows, columns)
    return section("table", "Before and after", lead, table(head, body), parts, drawn)


def accuracy_against_tokens(evaluation: Record, path: Path) -> Path:
    """Gold accuracy with its interval over tokens per problem (log scale), one mark a row of
    ``evaluation.json``, as an SVG file; rows that could not be scored are left out."""
    found = [dot for row in evaluation["rows"] if (dot := _dot(row, row["kinds"]["all"]))]
    dots = [replace(dot, x=max(1.0, dot.x)) for dot in found]
    label = "tokens of the large model per problem"
    drawn: list[Html] = []
    if dots:
        costs = [dot.x for dot in dots]
        x, y = svg.across(min(costs) / 1.3, max(costs) * 1.3, log=True), dots_scale(dots)
        drawn = [svg.axes(x, y, svg.short_percent, label), *numbered_dots(dots, x, y, label)]
    title = f"Gold accuracy, {evaluation['problems']} problems, 95 % intervals"
    title += ", simulated" if evaluation["simulated"] else ""
    key = [(dot.colour, f"{number} {dot.name}") for number, dot in enumerate(dots, 1)]
    write_text(path, picture([Panel(title, drawn)], key))
    return path


def _table_row(
    row: Record, cells: Record, columns: Sequence[str], measured: Measured, more: Child = None
) -> Html:
    """What is measured of a row in each column, and ``more`` cells behind them."""
    own = row.get("group") == "policy"
    shown = [el("td", _mean(cells.get(name) or {}, _colour(row), measured)) for name in columns]
    name = el("th", one_line(row["name"], 60))
    return el("tr", name, shown, more, class_="own" if own and more else None)


def _with_drift(cell: Record) -> Record:
    judge, gold = cell.get("judge"), cell.get("gold")
    return {**cell, "drift": judge - gold} if is_number(judge) and is_number(gold) else cell


def _tells(cell: Record, key: str) -> bool:
    value = cell.get(key)
    return is_number(value) and (value != 0 or key in ("drift", "valid"))


def _cell(cell: Record, key: str, form: Form) -> Html:
    drifting = key == "drift" and abs(cell.get(key, 0.0)) > MARKED_DRIFT
    return el("td", said(cell.get(key), form), class_="drift" if drifting else None)


def _by_dataset(rows: Sequence[Record], first: str, measured: Measured) -> Html | None:
    """What is measured on each dataset, folded away; None where the rows tell none."""
    names = _measured_in((row.get("sources") or {} for row in rows), measured)
    if not names:
        return None
    body = [_table_row(row, row.get("sources") or {}, names, measured) for row in rows]
    return folded("By dataset", table([one_line(name, 30) for name in (first, *names)], body))


def _measured_in(several: Iterable[Mapping[str, Record | None]], measured: Measured) -> list[str]:
    """Names of the cells, kinds or datasets, of which any row has a value."""
    cells = [item for named in several for item in named.items()]
    known = [name for name, cell in cells if is_number((cell or {}).get(measured.key))]
    return list(dict.fromkeys(known))


def _mean(cell: Record, colour: str, measured: Measured) -> list[Child]:
    value, low, high = (cell.get(key) for key in (measured.key, *measured.ends))
    if not is_number(value):
        return [NOTHING]
    if not is_number(low) or not is_number(high):
        return [measured.form(value)]
    if measured is MEAN_REWARD:  # not always between 0 and 1, as the drawn scale is
        return [measured.form(value), el("small", f"{low:.2f} to {high:.2f}")]
    ends = el("small", f"{100 * low:.0f} to {100 * high:.0f}")
    return [percent(value), interval(low, value, high, colour), ends]


def _scatters(rows: Sequence[Record], columns: Sequence[str]) -> Html | None:
    """One scatter for all problems and one for each kind, with the same numbers in all."""
    figures: list[Html | None] = []
    dots: list[Dot] = []
    for kind in columns:
        found = [dot for row in rows if (dot := _dot(row, row["kinds"].get(kind) or {}))]
        if len(found) == len(rows) and any(dot.x for dot in found):
            title = "All problems" if kind == "all" else one_line(kind, 30)
            figures.append(scatter(title, found, "tokens per problem"))
            dots = dots or found
    drawn = grid(figures, "charts two")
    return drawn and el("div", el("h3", "Accuracy against tokens"), numbered_key(dots), drawn)


def _dot(row: Record, cell: Record) -> Dot | None:
    tokens, gold = cell.get("tokens"), cell.get("gold")
    if not is_number(tokens) or not is_number(gold):
        return None
    low, high = cell.get("gold_low"), cell.get("gold_high")
    return Dot(one_line(row["name"], 40), _colour(row), tokens, gold, low, high)


def _colour(row: Record) -> str:
    if row.get("group") != "policy":
        return "c6"
    return "c2" if str(row["name"]).startswith("untrained") else "c1"


DRIFT: Mapping[str, tuple[str, Form, Form]] = {
    "perplexity": ("Perplexity of a text not trained on", "{:.2f}".format, "× {:.3f}".format),
    "completion_tokens": ("Tokens of a completion", "{:.1f}".format, "{:+.1f}".format),
}
"""What else training changed: how it is called, a value of it, and its change."""


def _drift(drift: object) -> Html | None:
    """What training changed beside what it was for, of each trained policy."""
    if not isinstance(drift, Mapping):
        return None
    body = []
    for name, changes in drift.items():
        for key, (title, form, change) in DRIFT.items():
            if found := changes.get(key):
                cells = [said(found.get(end), form) for end in ("before", "after")]
                cells += [said(found.get("change"), change), _ends(found, change)]
                whose = f"{one_line(name, 60)}: " if len(drift) > 1 else ""
                body.append(el("tr", el("th", whose, title), [el("td", cell) for cell in cells]))
    head = ("", "Untrained", "Trained", "Change", "95 %, paired")
    return el("div", el("h3", "What else changed"), table(head, body)) if body else None


def _ends(found: Record, form: Form) -> str:
    ends = found.get("low"), found.get("high")
    return " to ".join(form(end) for end in ends if is_number(end)) or NOTHING


def _summary(summary: object) -> Html | None:
    """Whatever else the evaluation says about itself, as it says it."""
    if not isinstance(summary, Mapping) or not summary:
        return None
    return folded("Summary of the evaluation", facts(settings(summary)), open=True)
