"""The before/after table of an evaluation with its 95 % intervals, and accuracy against tokens,
which can be a file of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowright.core.files import write_text
from flowright.core.formatting import (
    NOTHING,
    Form,
    Record,
    format_value,
    is_number,
    known_number,
    object_of,
    objects_in,
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
    estimate_cell,
)
from flowright.core.untrusted import one_line
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import picture, scatter_marks
from flowright.viewer.snapshot import (
    ACCURACY,
    MEAN_REWARD,
    TRAINED,
    Measured,
    Snapshot,
    has_rewards,
    kinds,
    paired_differences,
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
    evaluation = snapshot.evaluation or {}
    rows = _entries(snapshot)
    if not rows:
        return None
    measured = MEAN_REWARD if has_rewards(rows) else ACCURACY
    columns = _columns(snapshot, rows, measured)
    whole = [_with_drift(row["kinds"].get("all") or {}) for row in rows]
    more = [column for column in MORE if any(_has(cell, column[1]) for cell in whole)]
    first = snapshot.display.compared
    against = _Against(evaluation)
    passes = _passes(rows)
    heads = [
        *(first, *columns, *against.heads, *(f"pass@{k}" for k in passes)),
        *(name for name, _, _ in more),
    ]
    table = [
        [
            *_name_and_means(row, row["kinds"], columns, measured),
            *against.cells(row, measured),
            *(estimate_cell(object_of(row, "pass_at").get(k), ACCURACY.form) for k in passes),
            *(_cell(cell, *c) for c in more),
        ]
        for row, cell in zip(rows, whole, strict=True)
    ]
    own = [n for n, row in enumerate(rows) if more and row.get("group") == "policy"]
    blocks: list[ReportBlock] = [
        ReportTable(heads, table, against.caption, shaded=own),
        _at_money(evaluation, against),
        *_side_effects(evaluation.get("drift")),
    ]
    if names := _measured_in((row["sources"] for row in rows), measured):
        cells = [_name_and_means(row, row["sources"], names, measured) for row in rows]
        heads = [one_line(name, 30) for name in (first, *names)]
        blocks.append(Fold("By dataset", [ReportTable(heads, cells)]))
    blocks += _choices(evaluation)
    blocks += _probe(evaluation)
    closed = estimate_cell(object_of(evaluation, "summary").get("gap_closed"), percent)
    if closed.text != NOTHING:
        way = "Share of the way from the untrained policy to the last choice of baselines"
        blocks.append(FactList([(way, " · ".join(filter(None, (closed.text, closed.note))))]))
    if charts := _scatters([row for row in rows if row.get("group") != _BEST], columns):
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


def terminal_section(evaluation: Record) -> ReportSection:
    """The table of ``evaluation.json`` for a terminal of 80 columns: the rows of
    :func:`evaluation_section`; where rewards are graded, also those of several datasets."""
    snapshot = Snapshot(Path(), evaluation=evaluation)
    rows = _entries(snapshot)
    measured = MEAN_REWARD if has_rewards(rows) else ACCURACY
    form, kind_form = _SHORT_FORMS[measured]
    _, *named = _columns(snapshot, rows, measured) or [""]
    kinds_shown = named if measured is ACCURACY and len(named) <= MOST_KINDS else []
    against = _Against(evaluation)
    table: list[list[str]] = []
    for row in rows:
        whole, sources = row["kinds"].get("all") or {}, row["sources"]
        difference = against.texts(row, measured)
        kind_cells = [
            format_value((row["kinds"].get(kind) or {}).get(measured.key), kind_form)
            for kind in kinds_shown
        ]
        tokens = format_value(whole.get("tokens"), "{:,.0f}".format)
        name = str(row["name"]).removeprefix("fixed: ").replace("_", " ")
        table.append([name, *_short(whole, measured, form), *kind_cells, tokens, *difference])
        if measured is MEAN_REWARD and len(sources) > 1:
            for source, cell in sources.items():
                blank = [""] * (len(kinds_shown) + 1 + len(difference))
                shown = f"  {source.rpartition('/')[2]}"
                table.append([shown, *_short(cell, measured, form), *blank])
    label = ", simulated server" if evaluation.get("simulated") else ""
    what = "Gold accuracy in percent" if measured is ACCURACY else "Mean reward"
    heads = ("", "all", "95 %", *kinds_shown, "tokens", *against.short_heads)
    return ReportSection(
        "table",
        f"{what} on {evaluation.get('problems', '')} held-out problems{label}",
        [ReportTable(heads, table, against.caption), _at_money(evaluation, against)],
    )


_BEST = "best"
MOST_KINDS = 3
"""Kinds of problem with a column of their own on a terminal."""
_SHORT_FORMS: Mapping[Measured, tuple[Form, Form]] = {
    ACCURACY: (lambda share: f"{100 * share:.1f}", lambda share: f"{100 * share:.0f}"),
    MEAN_REWARD: ("{:.3f}".format, "{:.2f}".format),
}


def _entries(snapshot: Snapshot) -> list[Record]:
    """The rows of the table: policies, choices of baselines, and baselines, the most accurate
    first."""
    rows = snapshot.compared
    policies = [row for row in rows if row.get("group") == "policy"]
    fixed = [row for row in rows if row.get("group") != "policy"]
    fixed.sort(key=lambda row: -(known_number((row["kinds"].get("all") or {}).get("gold")) or 0.0))
    bests = objects_in((snapshot.evaluation or {}).get("bests"))
    return [*policies, *(_best_row(best) for best in bests if best.get("name")), *fixed]


def _best_row(best: Record) -> Record:
    """A choice of baselines as a row."""
    kinds: dict[str, dict[str, Any]] = {
        kind: {"gold": found.get("value"), "gold_low": found.get("low"),
               "gold_high": found.get("high")}
        for kind, found in object_of(best, "gold").items()
        if isinstance(found, dict)
    }  # fmt: skip
    kinds.setdefault("all", {})["tokens"] = best.get("tokens")
    return {"name": best.get("name"), "group": _BEST, "kinds": kinds, "sources": {}}


def _columns(snapshot: Snapshot, rows: Sequence[Record], measured: Measured) -> list[str]:
    """The kinds with a value in any row, "all" first."""
    found = _measured_in((row["kinds"] for row in rows), measured)
    return [k for k in dict.fromkeys(["all", *kinds(snapshot), *found]) if k in found]


class _Against:
    """The paired differences of one policy, trained if there is one, to the other rows. Runs of
    earlier versions have none."""

    def __init__(self, evaluation: Record) -> None:
        known = paired_differences(evaluation)
        self._policy = TRAINED if TRAINED in known else ([*known] or [""])[-1]
        self._found = known.get(self._policy, {})
        self.heads = ("Difference", "p") if self._found else ()
        self.short_heads = ("diff.", "95 %", "p") if self._found else ()
        self.caption = (
            f"Difference: {one_line(self._policy, 60)} minus the row on the same problems, with "
            "its paired 95 % interval and p"
            if self._found
            else ""
        )

    def cells(self, row: Record, measured: Measured) -> list[ReportCell | str]:
        """The cells of a row on a page."""
        value, ends, p = self.texts(row, measured) or ("", "", "")
        return [ReportCell(value, ends if ends != NOTHING else ""), p] if self._found else []

    def texts(self, row: Record, measured: Measured) -> tuple[str, ...]:
        """The difference, its interval and p, of a row."""
        if not self._found:
            return ()
        found = self._found.get(str(row["name"]), {})
        form = points if measured is ACCURACY else measured.change
        ends = [form(end) for key in ("low", "high") if is_number(end := found.get(key))]
        shown = " to ".join(end.removeprefix("+") for end in ends) or NOTHING
        return format_value(found.get("value"), form), shown, format_value(found.get("p"), _p)


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _short(cell: Record, measured: Measured, form: Form) -> tuple[str, str]:
    """A value and its interval, in a few characters."""
    low, high = (cell.get(key) for key in measured.ends)
    ends = NOTHING
    if is_number(low) and is_number(high):
        wide = measured is MEAN_REWARD  # and may be below zero
        ends = f"{low:.2f} to {high:.2f}" if wide else f"{100 * low:.0f}-{100 * high:.0f}"
    return format_value(cell.get(measured.key), form), ends


def _at_money(evaluation: Record, against: _Against) -> ReportTable:
    """Baselines at the money of the policy that rows are compared with; none without prices."""
    found = objects_in(evaluation.get("at_money"))
    shares, _ = _SHORT_FORMS[ACCURACY]
    table = [
        [
            one_line(one.get("name"), 60).removesuffix(", same money"),
            format_value(object_of(one, "gold").get("value"), shares),
            format_value(one.get("money"), "{:.3g}".format),
            *against.texts(one, ACCURACY),
            *(format_value(one.get(key), shares) for key in ("area", "area_with")),
        ]
        for one in found
    ]
    heads = ("Same money", "all", "money", *against.short_heads, "AIQ", "+ policy")
    note = (
        "Baselines at the policy's money: mixed by chance, by class of problem, by similar texts. "
        "AIQ: mean accuracy over all baselines' money; + policy: with the policy among them"
    )
    return ReportTable(heads, table, note)


def _passes(rows: Sequence[Record]) -> list[str]:
    """The k of pass@k that any row has."""
    found = {k for row in rows for k in object_of(row, "pass_at") if k.isdecimal()}
    return sorted(found, key=int)


def _choices(evaluation: Record) -> list[ReportBlock]:
    """The baselines of each choice, and those that they were chosen from."""
    chosen = [
        (one_line(best.get("name"), 60), one_line(label, 60), one_line(name, 60))
        for best in objects_in(evaluation.get("bests"))
        for label, name in object_of(best, "choice").items()
    ]
    tried = [
        (
            one_line(row.get("name"), 60),
            format_value(row.get("gold"), percent),
            format_value(row.get("tokens"), "{:,.0f}".format),
        )
        for row in objects_in(evaluation.get("tried"))
    ]
    on = one_line(object_of(evaluation, "summary").get("chosen_on") or "other problems", 60)
    blocks = [
        ReportTable(("Choice", "Problems", "Baseline"), chosen),
        ReportTable(("Baseline", "Accuracy", "Tokens"), tried),
    ]
    return [Fold(f"Best baselines, chosen on {on}", blocks)] if chosen else []


_EXAMPLE = ("task", "signature", "counterfactual", "counterfactual_signature")


def _probe(evaluation: Record) -> list[ReportBlock]:
    """The probe of the policy: does it write something else for a problem of another class?"""
    rows: list[Sequence[ReportCell | str]] = []
    examples: list[Sequence[str]] = []
    for found in objects_in(evaluation.get("probed")):
        label = one_line(found.get("label"), 60)
        shares = [
            estimate_cell(object_of(found, key), form)
            for key, form in (("changed", percent), ("resampled", percent), ("difference", points))
        ]
        rows.append((label, one_line(found.get("tasks"), 10), *shares))
        example = object_of(found, "example")
        texts = (example.get(key) for key in _EXAMPLE)
        examples.append((label, *(one_line(text, 300) for text in texts)))
    if not rows:
        return []
    heads = ("Class of problem", "Problems", "Other operators", "By chance", "Difference")
    note = "Only the words that make a problem large or small were replaced."
    shown = ("Class of problem", "Problem", "Operators", "With other words", "Operators")
    return [
        Heading("Does the policy read the problem?"),
        ReportTable(heads, rows, note),
        Fold("Examples", [ReportTable(shown, examples)]),
    ]


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
