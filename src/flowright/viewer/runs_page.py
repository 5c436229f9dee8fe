"""The page of all runs of a folder: headline figures, status, and in which settings one differs
from another.
"""

import datetime
from collections.abc import Sequence
from urllib.parse import quote

from flowright.core.errors import boundary
from flowright.core.formatting import NOTHING, Form, duration, percent, points
from flowright.core.untrusted import one_line
from flowright.viewer.layout import Column, Links, data_table, link
from flowright.viewer.monitoring.sections import differing
from flowright.viewer.monitoring.snapshot import DRIFT, Snapshot, edge, first, last, measured_of
from flowright.viewer.rendering.charts import spark
from flowright.viewer.rendering.markup import Html, el
from flowright.viewer.run_list import OpenedRun

MOST_DIFFERENCES = 12
STATUS = {"finished": "good", "running": "plain"}
_HEADS = (
    ("Run", True),
    ("Status", True),
    ("Step", False),
    ("What", True),
    ("Reward", False),
    ("", False),
    ("Gold", False),
    ("Held out", False),
    ("Drift", False),
    ("Unscored", False),
    ("Time", False),
    ("Last news", True),
)


def runs_body(runs: Sequence[OpenedRun], links: Links, against: str = "") -> Html:
    """A row a run. ``against``: the name of the run whose settings the others are compared with."""
    base = next((run.snapshot() for run in runs if run.name == against), None)
    heads = [Column(name, text) for name, text in _HEADS]
    if base is not None:
        heads.append(Column(f"Differs from {against}", True))
    if not links.exported:
        heads.insert(0, Column("", told="compare two runs"))
    rows = [_row_or_why(run, links, base) for run in runs]
    table = data_table(f"{len(runs)} run{'' if len(runs) == 1 else 's'}", heads, rows, id="rows")
    if links.exported:
        return el("div", el("h1", "Runs"), table)
    buttons = el(
        "div",
        el("button", "Compare the marked runs", type="submit"),
        el("span", "Mark two or more: curves over each other, and problem by problem.",
           class_="soft"),
        class_="bar",
    )  # fmt: skip
    form = el("form", table, buttons, action="/compare", method="get")
    return el("div", el("h1", "Runs"), form if runs else el("p", "No run here yet."))


def _row_or_why(run: OpenedRun, links: Links, base: Snapshot | None) -> Html:
    """A run's row, or why there is none: what is wrong with one hides no other."""
    with boundary("its files hold something that is not expected") as tried:
        return _row(run, run.snapshot(), links, base)
    why = one_line(tried.failure.message if tried.failure else "", 300)
    mark = None if links.exported else el("td")
    told = el("td", el("span", why, class_="tag alarm"),
              colspan=len(_HEADS) - 1 + (base is not None), class_="text")  # fmt: skip
    return el("tr", mark, el("th", run.name, scope="row"), told)


def _row(run: OpenedRun, snapshot: Snapshot, links: Links, base: Snapshot | None) -> Html:
    state = snapshot.state
    damaged = run.damaged.replace(f"{run.path}/", "")
    status = "damaged" if damaged else snapshot.status
    step = f"{state.get('step', 0)}/{state['steps']}" if state.get("steps") else NOTHING
    mark = el("input", type="checkbox", name="run", value=run.name, aria_label=f"mark {run.name}")
    measured = measured_of(snapshot)
    trained = sum(value for _, value in snapshot.series("time/step"))
    cells = [
        el("th", link(Links(run.name, links.exported, links.held).of_run(""), run.name),
           scope="row"),
        el("td", el("span", status, class_=f"tag {STATUS.get(status, 'alarm')}"), class_="text"),
        el("td", step),
        el("td", one_line(damaged or _what(snapshot), 80), class_="text"),
        el("td", _change(snapshot, "reward/mean", "{:.2f}".format)),
        el("td", spark(snapshot.series("reward/mean"), "c1")),
        el("td", _change(snapshot, "gold/accuracy", percent)),
        el("td", _held_out(snapshot, f"val/{measured.key}", measured.form)),
        el("td", _late(snapshot, DRIFT, points)),
        el("td", _late(snapshot, "rollout/unscored", percent)),
        el("td", duration(trained) if trained else NOTHING),
        el("td", _news(state.get("updated")), class_="text"),
    ]  # fmt: skip
    if base is not None:
        cells.append(el("td", _differences(base, snapshot), class_="long"))
    elif not links.exported:
        cells[-1] = el("td", _news(state.get("updated")), " ",
                       el("a", "differences", href=f"/?against={_quoted(run.name)}"),
                       class_="text")  # fmt: skip
    return el("tr", None if links.exported else el("td", mark), cells)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _what(snapshot: Snapshot) -> str:
    environment = snapshot.config.get("environment") or "workflow"
    policy = snapshot.state.get("policy") or snapshot.config.get("strategy_model") or ""
    label = " (simulated)" if snapshot.simulated else ""
    return ", ".join(str(told) for told in (environment, policy) if told) + label


def _change(snapshot: Snapshot, metric: str, form: Form) -> str:
    course = snapshot.series(metric)
    count = edge(len(course))
    before, after = first(course, count), last(course, count)
    if before is None or after is None:
        return NOTHING
    return f"{form(before)} → {form(after)}"


def _held_out(snapshot: Snapshot, metric: str, form: Form) -> str:
    course = snapshot.series(metric)
    if not course:
        return NOTHING
    start, end = form(course[0][1]), form(course[-1][1])
    return f"{start} → {end}" if len(course) > 1 else end


def _late(snapshot: Snapshot, metric: str, form: Form) -> str:
    course = snapshot.series(metric)
    value = last(course, edge(len(course)))
    return NOTHING if value is None else form(value)


def _news(updated: object) -> str:
    if not isinstance(updated, int | float):
        return NOTHING
    try:
        when = datetime.datetime.fromtimestamp(updated, datetime.UTC)
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return NOTHING
    return when.strftime("%Y-%m-%d %H:%M")


def _differences(base: Snapshot, snapshot: Snapshot) -> Html | str:
    """Settings that differ from the base's, as they are here."""
    changed = [
        f"{key}: {here} (there {there})"
        for key, (here, there) in differing(snapshot.config, base.config).items()
        if key != "run.name"
    ]
    if not changed:
        return "nothing"
    more = len(changed) - MOST_DIFFERENCES
    told = changed[:MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
    return el("span", [[line, el("br")] for line in told])
