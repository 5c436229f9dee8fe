"""The report's first screen and its before/after table: what a reader must see first.

Judge drift from gold is among the tiles whatever its size (law 3).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flowright.monitoring.sections import settings
from flowright.monitoring.snapshot import DRIFT_ALARM, Snapshot, drift, edge, first, kinds, last
from flowright.rendering.cells import interval
from flowright.rendering.charts import Dot, numbered_key, scatter
from flowright.rendering.markup import Child, Html, el
from flowright.rendering.page import facts, folded, section, table, tile
from flowright.rendering.series import Row, is_number
from flowright.rendering.untrusted import one_line
from flowright.rendering.values import NOTHING, Form, duration, percent, points, said


def tiles(snapshot: Snapshot) -> Html:
    """The first screen."""
    shown = [
        _accuracy(snapshot),
        _drift(snapshot),
        _change(snapshot, "Reward", "reward/mean", "{:.2f}".format),
        _change(snapshot, f"Valid {snapshot.display.completion}s", "rollout/valid_frac", percent),
        _unscored(snapshot),
        _pace(snapshot),
    ]
    return el("div", [tile for tile in shown if tile is not None], class_="tiles")


def _accuracy(snapshot: Snapshot) -> Html | None:
    """Held-out accuracy by gold, before and after: from the evaluation, else from validation."""
    before, after = _policy_cells(snapshot)
    title = "Held-out accuracy, by gold"
    if before and after:
        change = 100 * (after["gold"] - before["gold"])
        apart = _apart(before, after)
        told = {True: "intervals do not overlap", False: "intervals overlap", None: ""}[apart]
        big = f"{percent(before['gold'])} → {percent(after['gold'])}"
        note = f"{change:+.1f} points{'; ' if told else ''}{told}"
        return tile(title, big, note, "good" if apart and change > 0 else None)
    points = snapshot.series("val/gold")
    if not points:
        return None
    big = f"{percent(points[0][1])} → {percent(points[-1][1])}"
    return tile(title, big, f"validation, steps {points[0][0]} and {points[-1][0]}")


def _drift(snapshot: Snapshot) -> Html:
    """Judge minus gold over the last steps, or that there is no gold to compare with."""
    points = drift(snapshot)
    count = edge(len(points))
    early, late = first(points, count), last(points, count)
    title = "Judge drift from gold"
    if early is None or late is None:
        return tile(title, "unknown", "no step has both verdicts and gold checks", "warn")
    alarm = abs(late) > DRIFT_ALARM
    facts = [f"at first {100 * early:+.1f}"]
    for label, metric in (
        ("agreement", "judge/agreement_with_gold"),
        ("false right", "judge/false_positive_rate"),
        ("false wrong", "judge/false_negative_rate"),
    ):
        value = last(snapshot.series(metric), count)
        if value is not None:
            facts.append(f"{label} {percent(value)}")
    note = f"{'rewards may be wrong; ' if alarm else ''}{', '.join(facts)}"
    return tile(title, f"{100 * late:+.1f} points", note, "alarm" if alarm else "good")


def _change(snapshot: Snapshot, title: str, metric: str, form: Form) -> Html | None:
    points = snapshot.series(metric)
    count = edge(len(points))
    before, after = first(points, count), last(points, count)
    if before is None or after is None:
        return None
    steps = "step" if count == 1 else f"{count} steps"
    return tile(title, f"{form(before)} → {form(after)}", f"first and last {steps}")


def _unscored(snapshot: Snapshot) -> Html | None:
    points = snapshot.series("rollout/unscored")
    share = last(points, len(points))
    if share is None:
        return None
    note = "of all samples, through faults of ours; they train nothing"
    return tile("Unscored", f"{100 * share:.2f} %", note, "warn" if share > 0.01 else None)


def _pace(snapshot: Snapshot) -> Html | None:
    points = snapshot.series("time/step")
    mean = last(points, len(points))
    if mean is None:
        return None
    return tile(
        "Time", duration(sum(s for _, s in points)), f"{len(points)} steps of {duration(mean)}"
    )


def evaluation_section(snapshot: Snapshot) -> Html | None:
    """The before/after table with its 95 % intervals, and accuracy against tokens."""
    rows = _rows(snapshot)
    if not rows:
        return None
    evaluation = snapshot.evaluation or {}
    found = [kind for row in rows for kind in row["kinds"]]
    shown = ["all", *[k for k in dict.fromkeys([*kinds(snapshot), *found]) if k != "all"]]
    columns = [kind for kind in shown if kind in found]
    costs = ("Judge - gold", *(name for name, _, _ in _costs(rows)))
    head = (snapshot.display.compared, *columns, *costs)
    body = [_table_row(row, columns, _costs(rows)) for row in rows]
    label = "Simulated numbers. " if evaluation.get("simulated") else ""
    lead = (
        f"{label}{evaluation.get('problems', '')} held-out problems, the same for every row; "
        "accuracy by gold with its 95 % interval. Costs are means per problem."
    )
    return section(
        "table",
        "Before and after",
        lead,
        table(head, body),
        _by_dataset(rows, snapshot.display.compared),
        _summary(evaluation.get("summary")),
        _scatters(rows, columns),
    )


def _costs(rows: Sequence[Row]) -> list[tuple[str, str, Form]]:
    """The table's last columns: the valid share, and what any row has of the others."""
    columns: list[tuple[str, str, Form]] = [
        ("Valid", "valid", percent),
        ("Unscored", "unscored", percent),
        ("LLM calls", "llm_calls", "{:.1f}".format),
        ("Tokens", "tokens", "{:,.0f}".format),
        ("Seconds", "seconds", "{:.1f}".format),
    ]
    cells = [row["kinds"].get("all") or {} for row in rows]
    return [c for c in columns if c[1] == "valid" or any(cell.get(c[1]) for cell in cells)]


def _table_row(row: Row, columns: Sequence[str], costs: Sequence[tuple[str, str, Form]]) -> Html:
    cells = row["kinds"]
    every: Mapping[str, Any] = cells.get("all") or {}
    gap = _difference(every.get("judge"), every.get("gold"))
    drifting = gap is not None and abs(gap) > DRIFT_ALARM
    return el(
        "tr",
        el("th", one_line(row["name"], 60)),
        [el("td", _accuracy_cell(cells.get(kind) or {}, _colour(row))) for kind in columns],
        el("td", said(gap, points), class_="drift" if drifting else None),
        [el("td", said(every.get(key), form)) for _, key, form in costs],
        class_="own" if row.get("group") == "policy" else None,
    )


def _by_dataset(rows: Sequence[Row], compared: str) -> Html | None:
    """Accuracy by gold on each dataset, folded away; None where the rows tell no datasets."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("sources") or {}))
    if not names:
        return None
    head = [one_line(name, 30) for name in (compared, *names)]
    body: list[Html] = []
    for row in rows:
        cells = [(row.get("sources") or {}).get(name) or {} for name in names]
        shown = [el("td", _accuracy_cell(cell, _colour(row))) for cell in cells]
        body.append(el("tr", el("th", one_line(row["name"], 60)), shown))
    return folded("By dataset", table(head, body))


def _accuracy_cell(cell: Row, colour: str) -> list[Child]:
    value, low, high = (cell.get(key) for key in ("gold", "gold_low", "gold_high"))
    if not is_number(value):
        return [NOTHING]
    if not is_number(low) or not is_number(high):
        return [percent(value)]
    return [
        percent(value),
        interval(low, value, high, colour),
        el("small", f"{100 * low:.0f} to {100 * high:.0f}"),
    ]


def _scatters(rows: Sequence[Row], columns: Sequence[str]) -> Html | None:
    """One scatter for all problems and one for each kind, with the same numbers in all."""
    by_kind = {kind: [_dot(row, row["kinds"].get(kind) or {}) for row in rows] for kind in columns}
    complete = {kind: [d for d in dots if d] for kind, dots in by_kind.items()}
    complete = {kind: dots for kind, dots in complete.items() if len(dots) == len(rows)}
    if not complete or not any(dot.x for dot in complete.get("all", ())):
        return None
    figures = [
        scatter("All problems" if kind == "all" else one_line(kind, 30), dots, "tokens per problem")
        for kind, dots in complete.items()
    ]
    key = numbered_key(next(iter(complete.values())))
    heading = el("h3", "Accuracy against tokens")
    return el("div", heading, key, el("div", figures, class_="charts two"))


def _dot(row: Row, cell: Row) -> Dot | None:
    tokens, gold = cell.get("tokens"), cell.get("gold")
    if not is_number(tokens) or not is_number(gold):
        return None
    low, high = cell.get("gold_low"), cell.get("gold_high")
    return Dot(one_line(row["name"], 40), _colour(row), tokens, gold, low, high)


def _summary(summary: object) -> Html | None:
    """Whatever else the evaluation says about itself, as it says it."""
    if not isinstance(summary, Mapping) or not summary:
        return None
    return folded("Summary of the evaluation", facts(settings(summary)), open=True)


def _rows(snapshot: Snapshot) -> list[Row]:
    rows = (snapshot.evaluation or {}).get("rows") or []
    return [row for row in rows if row.get("kinds") and row.get("name")]


def _policy_cells(snapshot: Snapshot) -> tuple[Row | None, Row | None]:
    """The "all" cells of the untrained and of the trained policy."""
    cells: dict[str, Row] = {}
    for row in _rows(snapshot):
        if row.get("group") == "policy" and is_number((row["kinds"].get("all") or {}).get("gold")):
            cells[str(row["name"]).split()[0]] = row["kinds"]["all"]
    return cells.get("untrained"), cells.get("trained")


def _apart(before: Row, after: Row) -> bool | None:
    """Whether two intervals do not overlap; None where one is missing."""
    ends = [cell.get(key) for cell in (before, after) for key in ("gold_low", "gold_high")]
    numbers = [end for end in ends if is_number(end)]
    if len(numbers) < 4:
        return None
    return numbers[1] < numbers[2] or numbers[3] < numbers[0]


def _colour(row: Row) -> str:
    if row.get("group") != "policy":
        return "c6"
    return "c2" if str(row["name"]).startswith("untrained") else "c1"


def _difference(a: object, b: object) -> float | None:
    return a - b if is_number(a) and is_number(b) else None
