"""``report.html``: one self-contained file that tells a run, written from its files alone.

It loads nothing from anywhere, runs in any browser, and stays small because it shows a choice of
the rollouts. The same files give the same report, byte for byte.
"""

import datetime
from pathlib import Path

from flowright.environments.display import Display
from flowright.errors import RunError
from flowright.monitoring import sections, trust
from flowright.monitoring.before_after import evaluation_section
from flowright.monitoring.exhibits import exhibits, single_exhibit
from flowright.monitoring.headline import tiles
from flowright.monitoring.selection import Selection, select_groups
from flowright.monitoring.servers import servers_section
from flowright.monitoring.snapshot import Snapshot
from flowright.monitoring.watcher import take_snapshot
from flowright.rendering.markup import Html, el
from flowright.rendering.page import folded, header, page, section, strip, table
from flowright.rendering.untrusted import one_line
from flowright.rendering.values import duration
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
        *((m.prefix, m.title, sections.mix_section(snapshot, m)) for m in snapshot.display.mixes),
        ("failures", "Failures", trust.failure_taxonomy(snapshot, selection.messages)),
        ("judge", "Judge audit", trust.judge_audit(snapshot)),
        ("learner", "Learner", sections.learner(snapshot)),
        ("cost", "Time and tokens", sections.cost(snapshot)),
        ("servers", "Servers", servers_section(snapshot)),
        ("attempts", "Attempts", _attempts(selection, snapshot.display)),
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
    return header("Flowright run", snapshot.run.resolve().name, chips, _dates(snapshot))


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
