"""``report.html``: the report of a run in one self-contained file, written from its files alone.

It loads nothing from anywhere, runs in any browser, and stays small because it shows a choice of
the rollouts, found without keeping them all. The same files give the same report, byte for byte.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, pstdev

from flowright.core.errors import RunError
from flowright.core.files import disk_errors, write_text
from flowright.core.formatting import Record, object_of
from flowright.core.report import Block, Fold, ReportSection, ReportTable, Text, calibration_section
from flowright.core.untrusted import one_line
from flowright.environments.display import Display, blocks_of
from flowright.runs.run_files import rollout_steps
from flowright.viewer import sections, trust
from flowright.viewer.before_after import evaluation_section
from flowright.viewer.rendering.markup import Child, Html, el, folded, header, page, section, strip
from flowright.viewer.rendering.record_blocks import REPORT, blocks_html
from flowright.viewer.rendering.report import section_html, tiles_html
from flowright.viewer.rollout_records import problem_blocks, record_facts, reward_of
from flowright.viewer.snapshot import Snapshot, load_rollouts, take_snapshot
from flowright.viewer.turns import turn_facts, turns_html

CHIP = {"running": "note", "finished": "good", "paused": "warn", "interrupted": "warn"}


SEARCHED_STEPS = 40  # at most: enough to choose from, and a report of a long run stays quick
WIDEST, BEST, WORST, DISPUTED = 3, 2, 2, 4


@dataclass(frozen=True, slots=True)
class AttemptGroup:
    """All attempts at one problem in one step, best reward first, unscored ones last."""

    attempts: tuple[Record, ...]

    @property
    def step(self) -> int:
        return int(self.attempts[0].get("step") or 0)

    @property
    def task(self) -> Record:
        return self.attempts[0].get("task") or {}

    @property
    def rewards(self) -> list[float]:
        values = [reward_of(attempt) for attempt in self.attempts]
        return [value for value in values if value is not None]

    @property
    def mean(self) -> float:
        return fmean(self.rewards)

    @property
    def spread(self) -> float:
        """Standard deviation of the scored rewards."""
        return pstdev(self.rewards)


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups of a report. ``messages`` holds the newest failure message by reason; ``disputed``
    are single attempts that the judge called right and gold calls wrong, newest first."""

    widest: Sequence[AttemptGroup] = ()
    best: Sequence[AttemptGroup] = ()
    worst: Sequence[AttemptGroup] = ()
    disputed: Sequence[Record] = ()
    messages: Mapping[str, str] = field(default_factory=dict)
    searched: int = 0
    kept: int = 0


def select_groups(run: Path) -> Selection:
    """Search up to ``SEARCHED_STEPS`` steps, evenly spread, the first and the last included.

    The widest groups come from the whole run, the best and the worst from its last third, where the
    policy is what it became; each list takes another kind of problem first, and no group is shown
    twice.
    """
    steps = rollout_steps(run)
    chosen = steps
    if len(steps) > SEARCHED_STEPS:
        ends = len(steps) - 1, SEARCHED_STEPS - 1
        chosen = [steps[i * ends[0] // ends[1]] for i in range(SEARCHED_STEPS)]
    widest = _Shortlist(WIDEST)
    best, worst = _Shortlist(BEST), _Shortlist(WORST)
    disputed: list[Record] = []
    messages: dict[str, str] = {}
    late = chosen[-max(1, len(chosen) // 3)] if chosen else 0
    for step in chosen:
        rollouts = load_rollouts(run, step)
        for rollout in rollouts:
            failure = rollout.get("failure") or {}
            if failure.get("reason"):
                messages[str(failure["reason"])] = str(failure.get("message") or "")
        newer = [
            r for r in rollouts if (_correct(r, "verdict"), _correct(r, "gold")) == (True, False)
        ]
        disputed = [*newer, *disputed][:DISPUTED]
        for group in group_rollouts(rollouts):
            if len(group.rewards) < 2:
                continue
            widest.offer((group.spread, step), group)
            if step >= late:
                best.offer((group.mean, step), group)
                worst.offer((-group.mean, step), group)
    shown: set[int] = set()
    return Selection(
        widest=widest.take(shown),
        worst=worst.take(shown),
        best=best.take(shown),
        disputed=disputed,
        messages=messages,
        searched=len(chosen),
        kept=len(steps),
    )


def group_rollouts(rollouts: Sequence[Record]) -> list[AttemptGroup]:
    """Rollouts of one step as groups, in the order of their numbers."""
    groups: dict[int, list[Record]] = {}
    for rollout in rollouts:
        groups.setdefault(int(rollout.get("group") or 0), []).append(rollout)
    return [
        AttemptGroup(tuple(sorted(attempts, key=_rank))) for _, attempts in sorted(groups.items())
    ]


class _Shortlist:
    """The best offers of each kind of problem; holds few groups at any time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_kind: dict[str, list[tuple[tuple[float, int], AttemptGroup]]] = {}

    def offer(self, score: tuple[float, int], group: AttemptGroup) -> None:
        ranked = self._by_kind.setdefault(str(group.task.get("kind")), [])
        ranked.append((score, group))
        ranked.sort(key=lambda item: item[0], reverse=True)
        del ranked[self.size + WIDEST + WORST :]  # those that another list may take first

    def take(self, shown: set[int]) -> list[AttemptGroup]:
        taken: list[AttemptGroup] = []
        for row in zip_longest(*self._by_kind.values()):
            for _, group in sorted(filter(None, row), key=lambda item: item[0], reverse=True):
                if len(taken) < self.size and id(group) not in shown:
                    taken.append(group)
                    shown.add(id(group))
        return taken


def _correct(rollout: Record, key: str) -> object:
    return object_of(rollout, key).get("correct")


def _rank(rollout: Record) -> tuple[bool, float]:
    reward = reward_of(rollout)
    return (reward is None, -(reward or 0.0))


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
    """Render the document."""
    present = run_sections(snapshot, trust.failed_attempts(snapshot, selection.messages))
    attempts = attempts_section(selection, snapshot.display)
    links = [el("a", each.title, href=f"#{each.anchor}") for each in present]
    links += [el("a", "Attempts", href="#attempts")] if attempts else []
    label = "Simulated numbers. " if snapshot.simulated else ""
    footer = f"{label}Written by Flowright from the files in {snapshot.run}; nothing is loaded."
    name = snapshot.run.resolve().name
    body = el(
        "main",
        header("Flowright run", name, [status_chip(snapshot), *chips(snapshot)], _origin(snapshot)),
        tiles_html(sections.tiles(snapshot)) or el("div", class_="tiles"),
        el("nav", links),
        map(section_html, present),
        attempts,
        section_html(configuration(snapshot)) if snapshot.config else None,
        el("footer", footer),
    )
    return page(f"{name} - Flowright report", [strips(snapshot), body])


def run_sections(
    snapshot: Snapshot,
    failed: list[trust.FailedAttempts],
    own: Sequence[ReportSection | None] = (),
    at_step: sections.Address | None = None,
    at_outcome: Callable[[str, int], str | None] | None = None,
) -> list[ReportSection]:
    """Build the sections of a run, ``own`` ones of a screen after the judge's; steps lead to their
    addresses, those of a failure's chart by outcome."""
    built = [
        evaluation_section(snapshot),
        calibration_section(snapshot.calibration),
        sections.curves(snapshot, at_step),
        *(sections.mix_section(snapshot, mix) for mix in snapshot.display.mixes),
        trust.failure_section(snapshot, failed, at_outcome) if snapshot.training_rows else None,
        trust.judge_audit(snapshot),
        *own,
        sections.turns(snapshot),
        sections.learner(snapshot),
        sections.cost(snapshot),
        sections.plan(snapshot),
        trust.servers_section(snapshot),
    ]
    return [each for each in built if each is not None]


def configuration(snapshot: Snapshot) -> ReportSection:
    """All settings of a run, folded."""
    table = ReportTable(("", ""), sections.settings(snapshot.config))
    return ReportSection("configuration", "Configuration", [Fold("All settings", [table])])


def strips(snapshot: Snapshot) -> list[Html]:
    """Warnings above the page; the first one stays in sight."""
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


def status_chip(snapshot: Snapshot) -> Html:
    """The status of a run in its colour."""
    return el("li", snapshot.status, class_=CHIP.get(snapshot.status, "alarm"))


def chips(snapshot: Snapshot) -> list[Child]:
    """Step, models and labels of a run."""
    state, display = snapshot.state, snapshot.display
    step = [f"step {snapshot.step} of {state['steps']}"] if state.get("steps") else []
    shown = [key for key in (*display.models, *display.labels) if state.get(key)]
    return [*step, *(f"{key}: {one_line(state[key], 160)}" for key in shown)]


def _origin(snapshot: Snapshot) -> str:
    """Dates of the run, and the origin of its policy, if that was made on this machine."""
    state = snapshot.state
    dates = [
        f"{what} {datetime.datetime.fromtimestamp(when, datetime.UTC):%Y-%m-%d %H:%M} UTC"
        for what, key in (("Started", "started"), ("resumed", "resumed"), ("last news", "updated"))
        if (when := state.get(key))
    ]
    origin = one_line(state.get("policy_origin") or "", 300)
    line = ", ".join(dates)
    return " ".join(filter(None, (line and f"{line}.", origin and f"Policy: {origin}.")))


# --- attempts -------------------------------------------------------------------------------------


def attempts_section(chosen: Selection, display: Display) -> Html | None:
    """The chosen groups and disputed attempts; None without any."""
    lists = (
        ("Widest groups", "The largest spread of rewards: what the policy learnt most from.",
         [_group(group, display) for group in chosen.widest]),
        ("Worst groups", "The lowest mean reward at the end.",
         [_group(group, display) for group in chosen.worst]),
        ("Best groups", "The highest mean reward at the end.",
         [_group(group, display) for group in chosen.best]),
        ("Disputed verdicts", "The newest answers that the judge calls right and gold calls wrong.",
         [_single(record, display) for record in chosen.disputed]),
    )  # fmt: skip
    parts = [
        el("div", el("h3", title), el("p", lead, class_="lead"), shown)
        for title, lead, shown in lists
        if shown
    ]
    searched = (
        f"Chosen among the rollouts of {chosen.searched} of the {chosen.kept} steps that "
        "kept them. Long texts are cut here; the run's rollouts hold them whole."
    )
    return section("attempts", "Attempts", searched, parts) if parts else None


def _group(group: AttemptGroup, display: Display) -> Html:
    """One group: its problem, all its rewards, and its best and worst attempt side by side."""
    best = group.attempts[0]
    worst = next(a for a in reversed(group.attempts) if reward_of(a) is not None)
    title = "Best attempt" if group.spread else "One of these equal attempts"
    pair = [_attempt(title, best, display)]
    if group.spread:
        pair.append(_attempt("Worst attempt", worst, display))
    return el(
        "article",
        el("h4", _where(best), " ", el("span", group.task.get("id", ""), class_="soft")),
        el("div", f"mean reward {group.mean:.2f}, spread {group.spread:.2f}", class_="soft"),
        el("div", [_reward_chip(a) for a in group.attempts], class_="attempts"),
        _problem(best),
        el("div", pair, class_="pair"),
        class_="group",
    )


def _single(record: Record, display: Display) -> Html:
    shown = _attempt(_where(record), record, display)
    return el("article", _problem(record), shown, class_="group")


def _where(record: Record) -> str:
    task = object_of(record, "task")
    kind = ", ".join(str(task[key]) for key in ("kind", "source") if task.get(key))
    return f"Step {record.get('step')}: {kind or 'problem'}"


def _problem(record: Record) -> Html | None:
    blocks: list[Block] = [*problem_blocks(record)]
    if not blocks:
        return None
    reference = object_of(record, "task").get("reference")
    blocks += [Text("Reference", str(reference))] if reference else []
    title = "Problem and reference" if reference else "Problem"
    title += ", CUT for the policy" if record.get("cut_prompt") else ""
    return folded(title, blocks_html(blocks, REPORT))


def _attempt(title: str, record: Record, display: Display) -> Html:
    return el(
        "section",
        el("h4", title, " ", _reward_chip(record)),
        blocks_html([*record_facts(record), *turn_facts(record)], REPORT),
        turns_html(record, REPORT),
        blocks_html(blocks_of(display, record), REPORT),
    )


def _reward_chip(record: Record) -> Html:
    value = reward_of(record)
    if value is None:
        return el("span", "unscored", class_="chip warn")
    failed = bool(record.get("failure"))
    style = "alarm" if failed else "good" if value > 0.5 else None
    return el("span", f"{value:.2f}", class_=f"chip {style}" if style else "chip")
