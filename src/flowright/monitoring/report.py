"""``report.html``: one self-contained file that tells a run, written from its files alone.

It loads nothing from anywhere, runs in any browser, and stays small because it shows a choice of
the rollouts. The same files give the same report, byte for byte.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path

from flowright.errors import RunError
from flowright.monitoring import sections, trust
from flowright.monitoring.exhibits import exhibits, single_exhibit
from flowright.monitoring.headline import evaluation_section, tiles
from flowright.monitoring.selection import Selection, select_groups
from flowright.monitoring.snapshot import Snapshot, take_snapshot
from flowright.rendering.glyphs import duration
from flowright.rendering.markup import Html, el
from flowright.rendering.page import page, section
from flowright.rendering.untrusted import one_line
from flowright.runs import disk_errors, write_text

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
    shown = [
        ("table", "Before and after", evaluation_section(snapshot)),
        ("curves", "Learning curves", sections.curves(snapshot)),
        ("operators", "Operator mix", sections.operator_mix(snapshot)),
        ("failures", "Failures", trust.failure_taxonomy(snapshot, selection.messages)),
        ("judge", "Judge audit", trust.judge_audit(snapshot)),
        ("learner", "Learner", sections.learner(snapshot)),
        ("cost", "Time and tokens", sections.cost(snapshot)),
        ("attempts", "Attempts", _attempts(selection)),
    ]
    present = [(anchor, title, content) for anchor, title, content in shown if content]
    links = [el("a", title, href=f"#{anchor}") for anchor, title, _ in present]
    body = [
        _strips(snapshot),
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


def _strips(snapshot: Snapshot) -> list[Html]:
    """What must be known before a number is believed; the first one stays in sight."""
    found: list[Html] = []
    if snapshot.simulated:
        text = " Large model and judge are the embedded server's imitation, not a real model."
        found.append(_strip("strip", el("b", "Simulated numbers."), text))
    if snapshot.state.get("isolation_weaker"):
        told = one_line(snapshot.state.get("isolation", "unknown"), 300)
        found.append(_strip("strip alarm", el("b", "Weaker isolation than required: "), told))
    if snapshot.died:
        text = f" Go on with: {snapshot.resume_command}"
        found.append(_strip("strip alarm", el("b", "The trainer died."), text))
    if snapshot.state.get("message"):
        found.append(_strip("strip alarm", one_line(snapshot.state["message"], 600)))
    return found


def _strip(class_: str, *content: str) -> Html:
    return el("div", el("div", content), class_=class_)


def _header(snapshot: Snapshot) -> Html:
    state = snapshot.state
    chips = [el("li", snapshot.status, class_=CHIP.get(snapshot.status, "alarm"))]
    if state.get("steps"):
        chips.append(el("li", f"step {state.get('step')} of {state['steps']}"))
    for key in ("policy", "executor", "judge", "isolation"):
        if state.get(key):
            chips.append(el("li", f"{key}: {one_line(state[key], 160)}"))
    return el(
        "header",
        el("p", "Flowright run", class_="eyebrow"),
        el("h1", snapshot.run.resolve().name),
        el("ul", chips, class_="chips"),
        el("p", _dates(snapshot), class_="eyebrow"),
    )


def _dates(snapshot: Snapshot) -> str:
    started, updated = snapshot.state.get("started"), snapshot.state.get("updated")
    if not started or not updated:
        return ""
    begun, until = (
        datetime.datetime.fromtimestamp(t, datetime.UTC).strftime("%Y-%m-%d %H:%M")
        for t in (started, updated)
    )
    return f"Started {begun} UTC, last news {until} UTC, {duration(updated - started)} apart."


def _attempts(selection: Selection) -> Html | None:
    searched = (
        f"Chosen among the rollouts of {selection.searched} of the {selection.kept} steps that "
        "kept them. Long texts are cut here; the run's rollouts hold them whole."
    )
    parts: Sequence[Html | None] = [
        exhibits(
            "Widest groups",
            "The largest spread of rewards: what the policy learnt most from.",
            selection.widest,
        ),
        exhibits("Worst groups", "The lowest mean reward at the end.", selection.worst),
        exhibits("Best groups", "The highest mean reward at the end.", selection.best),
        _disputed(selection),
    ]
    if not any(parts):
        return None
    return section("attempts", "Attempts", searched, parts)


def _disputed(selection: Selection) -> Html | None:
    if not selection.disputed:
        return None
    lead = "The newest answers that the judge calls right and gold calls wrong."
    shown = [single_exhibit(rollout) for rollout in selection.disputed]
    return el("div", el("h3", "Disputed verdicts"), el("p", lead, class_="lead"), shown)


def _configuration(snapshot: Snapshot) -> Html | None:
    if not snapshot.config:
        return None
    rows = [
        el("tr", el("th", key), el("td", value, class_="text"))
        for key, value in sections.settings(snapshot.config)
    ]
    table = el("div", el("table", el("tbody", rows)), class_="wide")
    told = el("details", el("summary", "All settings"), table)
    return section("configuration", "Configuration", "", told)


def _footer(snapshot: Snapshot) -> Html:
    label = "Simulated numbers. " if snapshot.simulated else ""
    told = f"{label}Written by Flowright from the files in {snapshot.run}; nothing is loaded."
    return el("footer", told)
