"""``report.html``: one self-contained file that tells a run, written from its files alone.

It loads nothing from anywhere, runs in any browser, and stays small because it shows a choice of
the rollouts. The same files give the same report, byte for byte.
"""

import datetime
from pathlib import Path

from flowright.core.errors import RunError
from flowright.core.formatting import Form, Record, duration, is_number, percent, points
from flowright.core.report import calibration_section
from flowright.core.untrusted import one_line
from flowright.environments.display import Display
from flowright.runs import disk_errors, write_text
from flowright.runs.alarm import DRIFT
from flowright.viewer.monitoring import sections, trust
from flowright.viewer.monitoring.attempt_groups import (
    Selection,
    exhibits,
    select_groups,
    single_exhibit,
)
from flowright.viewer.monitoring.before_after import evaluation_section
from flowright.viewer.monitoring.snapshot import (
    Measured,
    Snapshot,
    edge,
    first,
    last,
    measured_of,
    take_snapshot,
)
from flowright.viewer.rendering.markup import (
    Html,
    el,
    folded,
    header,
    page,
    section,
    strip,
    table,
    tile,
)
from flowright.viewer.rendering.report import section_html

CHIP = {"running": "note", "finished": "good", "paused": "warn", "interrupted": "warn"}


def write_report(run: Path) -> Path:
    """Write ``report.html`` into a run directory, finished or not; returns its path.

    Raises RunError when there is no run, when a file of it is damaged, or on a full disk.
    """
    snapshot = take_snapshot(run)
    if not snapshot.state and not snapshot.rows:
        raise RunError(f"{run}: not a run directory: neither state.json nor metrics.jsonl in it")
    path = run / "report.html"
    with disk_errors(run):
        write_text(path, render(snapshot, select_groups(run)))
    return path


def render(snapshot: Snapshot, selection: Selection) -> str:
    """The document."""
    calibration = calibration_section(snapshot.calibration)
    shown = [
        ("table", "Before and after", evaluation_section(snapshot)),
        ("calibration", "Calibration", calibration and section_html(calibration)),
        ("curves", "Learning curves", sections.curves(snapshot)),
        *((m.prefix, m.title, sections.mix_section(snapshot, m)) for m in snapshot.display.mixes),
        ("failures", "Failures", trust.failure_taxonomy(snapshot, selection.messages)),
        ("judge", "Judge audit", trust.judge_audit(snapshot)),
        ("learner", "Learner", sections.learner(snapshot)),
        ("cost", "Time and tokens", sections.cost(snapshot)),
        ("plan", "Plan and run", sections.plan(snapshot)),
        ("servers", "Servers", trust.servers_section(snapshot)),
        ("attempts", "Attempts", _attempts(selection, snapshot.display)),
    ]
    present = [(anchor, title, content) for anchor, title, content in shown if content]
    links = [el("a", title, href=f"#{anchor}") for anchor, title, _ in present]
    body = [
        strips(snapshot),
        el(
            "main",
            _header(snapshot),
            tiles(snapshot),
            el("nav", links),
            [content for _, _, content in present],
            _configuration(snapshot),
            _footer(snapshot),
        ),
    ]
    return page(f"{snapshot.run.resolve().name} - Flowright report", body)


def strips(snapshot: Snapshot) -> list[Html]:
    """What must be known before a number is believed; the first one stays in sight."""
    found: list[Html] = []
    if snapshot.simulated:
        text = "Large model and judge are the embedded server's imitation, not a real model."
        found.append(strip("Simulated numbers.", text))
    found += [strip("", warning, alarm=True) for warning in snapshot.warnings]
    if snapshot.died:
        found.append(strip("The trainer died.", f"Go on with: {snapshot.resume_command}", True))
    if snapshot.state.get("message"):
        found.append(strip("", one_line(snapshot.state["message"], 600), alarm=True))
    if snapshot.display.note:
        found.append(strip("", one_line(snapshot.display.note, 300), alarm=True))
    return found


def _header(snapshot: Snapshot) -> Html:
    state, display = snapshot.state, snapshot.display
    chips: list[str] = [el("li", snapshot.status, class_=CHIP.get(snapshot.status, "alarm"))]
    if state.get("steps"):
        chips.append(f"step {state.get('step')} of {state['steps']}")
    shown = [key for key in (*display.models, *display.labels) if state.get(key)]
    chips += [f"{key}: {one_line(state[key], 160)}" for key in shown]
    return header("Flowright run", snapshot.run.resolve().name, chips, _told(snapshot))


def _told(snapshot: Snapshot) -> str:
    """When the run was, and where its policy comes from, if that was made on this machine."""
    origin = one_line(snapshot.state.get("policy_origin") or "", 300)
    return " ".join(filter(None, (_dates(snapshot), origin and f"Policy: {origin}.")))


def _dates(snapshot: Snapshot) -> str:
    started, updated = snapshot.state.get("started"), snapshot.state.get("updated")
    if not started or not updated:
        return ""
    begun, until = (
        datetime.datetime.fromtimestamp(t, datetime.UTC).strftime("%Y-%m-%d %H:%M")
        for t in (started, updated)
    )
    return f"Started {begun} UTC, last news {until} UTC, {duration(updated - started)} apart."


def _attempts(selection: Selection, display: Display) -> Html | None:
    searched = (
        f"Chosen among the rollouts of {selection.searched} of the {selection.kept} steps that "
        "kept them. Long texts are cut here; the run's rollouts hold them whole."
    )
    lists = (
        ("Widest groups", "The largest spread of rewards: what the policy learnt most from.",
         selection.widest),
        ("Worst groups", "The lowest mean reward at the end.", selection.worst),
        ("Best groups", "The highest mean reward at the end.", selection.best),
    )  # fmt: skip
    parts = [exhibits(*each, display) for each in lists]
    if selection.disputed:
        lead = "The newest answers that the judge calls right and gold calls wrong."
        shown = [single_exhibit(rollout, display) for rollout in selection.disputed]
        told = el("p", lead, class_="lead")
        parts.append(el("div", el("h3", "Disputed verdicts"), told, shown))
    if not any(parts):
        return None
    return section("attempts", "Attempts", searched, parts)


def _configuration(snapshot: Snapshot) -> Html | None:
    if not snapshot.config:
        return None
    rows = [
        el("tr", el("th", key), el("td", value, class_="text"))
        for key, value in sections.settings(snapshot.config)
    ]
    return section("configuration", "Configuration", "", folded("All settings", table((), rows)))


def _footer(snapshot: Snapshot) -> Html:
    label = "Simulated numbers. " if snapshot.simulated else ""
    told = f"{label}Written by Flowright from the files in {snapshot.run}; nothing is loaded."
    return el("footer", told)


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
    return el("div", [found for found in shown if found is not None], class_="tiles")


def _accuracy(snapshot: Snapshot) -> Html | None:
    """Held-out accuracy by gold, or the mean reward where that is what evaluations tell, before and
    after: from the evaluation, else from validation."""
    measured = measured_of(snapshot)
    before, after = _policy_cells(snapshot, measured)
    form = measured.form
    if before and after:
        change = after[measured.key] - before[measured.key]
        apart = _apart(before, after, measured)
        told = {True: "intervals do not overlap", False: "intervals overlap", None: ""}[apart]
        big = f"{form(before[measured.key])} → {form(after[measured.key])}"
        note = f"{measured.change(change)}{'; ' if told else ''}{told}"
        return tile(measured.title, big, note, "good" if apart and change > 0 else None)
    course = snapshot.series(f"val/{measured.key}")
    if not course:
        return None
    big = f"{form(course[0][1])} → {form(course[-1][1])}"
    return tile(measured.title, big, f"validation, steps {course[0][0]} and {course[-1][0]}")


def _drift(snapshot: Snapshot) -> Html | None:
    """Judge minus gold over the last steps, or that there is no gold to compare with; None where
    nothing is judged."""
    course = snapshot.series(DRIFT)
    count = edge(len(course))
    early, late = first(course, count), last(course, count)
    title = "Judge drift from gold"
    if not snapshot.names("judge/"):
        return None
    if early is None or late is None:
        return tile(title, "unknown", "no step has both verdicts and gold checks", "warn")
    alarm = snapshot.drift is not None
    told = [f"at first {points(early)}"]
    for label, metric in (
        ("agreement", "judge/agreement_with_gold"),
        ("false right", "judge/false_positive_rate"),
        ("false wrong", "judge/false_negative_rate"),
    ):
        value = last(snapshot.series(metric), count)
        if value is not None:
            told.append(f"{label} {percent(value)}")
    note = f"{'rewards may be wrong; ' if alarm else ''}{', '.join(told)}"
    return tile(title, f"{points(late)} points", note, "alarm" if alarm else "good")


def _change(snapshot: Snapshot, title: str, metric: str, form: Form) -> Html | None:
    course = snapshot.series(metric)
    count = edge(len(course))
    before, after = first(course, count), last(course, count)
    if before is None or after is None:
        return None
    steps = "step" if count == 1 else f"{count} steps"
    return tile(title, f"{form(before)} → {form(after)}", f"first and last {steps}")


def _unscored(snapshot: Snapshot) -> Html | None:
    course = snapshot.series("rollout/unscored")
    share = last(course, len(course))
    if share is None:
        return None
    note = "of all samples, through faults of ours; they train nothing"
    return tile("Unscored", f"{100 * share:.2f} %", note, "warn" if share > 0.01 else None)


def _pace(snapshot: Snapshot) -> Html | None:
    course = snapshot.series("time/step")
    mean = last(course, len(course))
    if mean is None:
        return None
    return tile(
        "Time", duration(sum(s for _, s in course)), f"{len(course)} steps of {duration(mean)}"
    )


def _policy_cells(snapshot: Snapshot, measured: Measured) -> tuple[Record | None, Record | None]:
    """The "all" cells of the untrained and of the trained policy."""
    cells: dict[str, Record] = {}
    for row in snapshot.compared:
        cell = row["kinds"].get("all") or {}
        if row.get("group") == "policy" and is_number(cell.get(measured.key)):
            cells[str(row["name"]).split()[0]] = cell
    return cells.get("untrained"), cells.get("trained")


def _apart(before: Record, after: Record, measured: Measured) -> bool | None:
    """Whether two intervals do not overlap; None where one is missing."""
    ends = [cell.get(key) for cell in (before, after) for key in measured.ends]
    numbers = [end for end in ends if is_number(end)]
    return None if len(numbers) < 4 else numbers[1] < numbers[2] or numbers[3] < numbers[0]
