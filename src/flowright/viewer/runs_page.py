"""The page of all runs of a folder: headline figures, status, and the settings in which one differs
from another.
"""

import datetime
from collections.abc import Sequence
from urllib.parse import quote

from flowright.core.errors import boundary
from flowright.core.formatting import NOTHING, Form, duration, percent, points
from flowright.core.report import Spark
from flowright.core.untrusted import one_line
from flowright.viewer.layout import Column, Links, data_table, link, text_cell
from flowright.viewer.monitoring.sections import differing
from flowright.viewer.monitoring.snapshot import DRIFT, Snapshot, measured_of, trend
from flowright.viewer.rendering.charts import mark_html
from flowright.viewer.rendering.markup import Html, el
from flowright.viewer.run_list import ViewedRun

MOST_DIFFERENCES = 12
STATUS = {"finished": "good", "running": "plain"}
_HEADS = (
    *(Column("Run", True), Column("Status", True), "Step", Column("What", True), "Reward", ""),
    *("Gold", "Held out", "Drift", "Unscored", "Time", Column("Last news", True)),
)


def runs_body(runs: Sequence[ViewedRun], links: Links, against: str = "") -> Html:
    """A row a run. ``against``: the name of the run whose settings the others are compared with."""
    base = next((run.snapshot() for run in runs if run.name == against), None)
    heads: list[Column | str] = [*_HEADS]
    if base is not None:
        heads.append(Column(f"Differs from {against}", True))
    if not links.exported:
        heads.insert(0, Column("", tip="compare two runs"))
    rows = [_row_or_why(run, links, base) for run in runs]
    table = data_table(f"{len(runs)} run{'' if len(runs) == 1 else 's'}", heads, rows, id="rows")
    if links.exported:
        return el("div", el("h1", "Runs"), table)
    hint = "Mark two or more: curves over each other, and problem by problem."
    button = el("button", "Compare the marked runs", type="submit")
    below = el("div", button, el("span", hint, class_="soft"), class_="bar")
    form = el("form", table, below, action="/compare", method="get")
    return el("div", el("h1", "Runs"), form if runs else el("p", "No run here yet."))


def _row_or_why(run: ViewedRun, links: Links, base: Snapshot | None) -> Html:
    """A run's row, or why there is none: a fault of one hides no other."""
    mark: Html | None = None
    if not links.exported:
        box = el("input", type="checkbox", name="run", value=run.name,
                 aria_label=f"mark {run.name}")  # fmt: skip
        mark = el("td", box)
    with boundary("its files hold something that is not expected") as tried:
        return el("tr", mark, _cells(run, run.snapshot(), links, base))
    why = one_line(tried.failure.message if tried.failure else "", 300)
    span = len(_HEADS) - 1 + (base is not None)
    cell = el("td", el("span", why, class_="tag alarm"), colspan=span, class_="text")
    return el("tr", None if links.exported else el("td"), el("th", run.name, scope="row"), cell)


def _cells(run: ViewedRun, snapshot: Snapshot, links: Links, base: Snapshot | None) -> list[Html]:
    state, measured = snapshot.state, measured_of(snapshot)
    damaged = run.damaged.replace(f"{run.path}/", "")
    status = "damaged" if damaged else snapshot.status
    address = Links(run.name, links.exported, links.held).of_run("")
    trained = sum(value for _, value in snapshot.series("time/step"))
    news = _date(state.get("updated"))
    to = f"/?against={quote(run.name, safe='')}"
    compare = base is None and not links.exported
    return [
        el("th", link(address, run.name), scope="row"),
        text_cell(el("span", status, class_=f"tag {STATUS.get(status, 'alarm')}")),
        el("td", f"{state.get('step', 0)}/{state['steps']}" if state.get("steps") else NOTHING),
        text_cell(one_line(damaged or _what(snapshot), 80)),
        el("td", _change(snapshot, "reward/mean", "{:.2f}".format)),
        el("td", mark_html(Spark(snapshot.series("reward/mean"), "c1"))),
        el("td", _change(snapshot, "gold/accuracy", percent)),
        el("td", _held_out(snapshot, f"val/{measured.key}", measured.form)),
        el("td", _late(snapshot, DRIFT, points)),
        el("td", _late(snapshot, "rollout/unscored", percent)),
        el("td", duration(trained) if trained else NOTHING),
        text_cell(news, [" ", el("a", "differences", href=to)] if compare else None),
        *([el("td", _differences(base, snapshot), class_="long")] if base is not None else ()),
    ]


def _what(snapshot: Snapshot) -> str:
    environment = snapshot.config.get("environment") or "workflow"
    policy = snapshot.state.get("policy") or snapshot.config.get("strategy_model") or ""
    label = " (simulated)" if snapshot.simulated else ""
    return ", ".join(str(part) for part in (environment, policy) if part) + label


def _change(snapshot: Snapshot, metric: str, form: Form) -> str:
    ends = trend(snapshot.series(metric))
    return ends.text(form) if ends else NOTHING


def _held_out(snapshot: Snapshot, metric: str, form: Form) -> str:
    course = snapshot.series(metric)
    if not course:
        return NOTHING
    start, end = form(course[0][1]), form(course[-1][1])
    return f"{start} → {end}" if len(course) > 1 else end


def _late(snapshot: Snapshot, metric: str, form: Form) -> str:
    ends = trend(snapshot.series(metric))
    return form(ends.last) if ends else NOTHING


def _date(updated: object) -> str:
    if not isinstance(updated, int | float):
        return NOTHING
    try:
        when = datetime.datetime.fromtimestamp(updated, datetime.UTC)
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return NOTHING
    return when.strftime("%Y-%m-%d %H:%M")


def _differences(base: Snapshot, snapshot: Snapshot) -> Html | str:
    """The run's settings that differ from the base's."""
    changed = [
        f"{key}: {here} (there {there})"
        for key, (here, there) in differing(snapshot.config, base.config).items()
        if key != "run.name"
    ]
    if not changed:
        return "nothing"
    more = len(changed) - MOST_DIFFERENCES
    shown = changed[:MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
    return el("span", [[line, el("br")] for line in shown])
