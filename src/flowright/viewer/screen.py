"""The terminal screen of a run, laid out for any width and height.

Draws lines of text without frames: they survive 40 columns, a pipe and a terminal without colour.
One column below 100 characters, two above; what does not fit is left out, the least important
section first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flowright.core import report
from flowright.core.formatting import (
    Form,
    Point,
    Record,
    duration,
    is_number,
    object_of,
    objects_in,
    percent,
    points,
)
from flowright.core.untrusted import one_line, visible
from flowright.environments.display import Display, blocks_of
from flowright.runs.alarm import DRIFT, alarm_line
from flowright.viewer.rendering.terminal import (
    ASCII,
    LABEL,
    UNICODE,
    VALUE,
    Glyphs,
    bar,
    heading,
    line,
    shortened,
    wrapped,
)
from flowright.viewer.rollout_records import reward_of
from flowright.viewer.sections import LEARNER, TURNS
from flowright.viewer.snapshot import (
    AGREEMENT,
    CUT,
    QUIET_SECONDS,
    RECENT,
    Snapshot,
    all_held_out,
    eta_seconds,
    failures,
    is_ours,
    kinds,
    last,
    mean_seconds,
)
from flowright.viewer.trust import traffic

SHORTEST_WAIT = 0.1  # seconds a call from which waiting is shown
LONGEST = 20_000  # characters of a sample that are read
TWO_COLUMNS = 100  # characters, from which two columns are drawn
GUTTER = 4
_LEAST_FOR_BRIEF = 8  # lines below the head; with fewer there is hardly room for a section
STATUS_STYLE = {
    "running": "bold green",
    "finished": "bold cyan",
    "paused": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
    "died": "bold red",
}
RESUMABLE = ("paused", "interrupted", "failed", "died")
KEYS = (
    ("j k, arrows", "a line down, up"),
    ("space b, Page", "a page down, up"),
    ("g G, Home End", "the top, the end"),
    ("f", "what fits, as at first"),
    ("n p, left right", "the run that changed before it, after it"),
    ("?", "these keys"),
    ("q, Ctrl-C", "end; the run goes on"),
)


@dataclass(frozen=True, slots=True)
class View:
    """The visible part of a screen: ``top`` is its first line, None for what fits the terminal."""

    top: int | None = None
    help: bool = False
    over: bool = False

    def after(self, key: str, room: int, count: int) -> "View":
        """The view once a key was pressed; of ``count`` lines in all, ``room`` are shown at a
        time."""
        if key == "q":
            return replace(self, over=True)
        if key == "?":
            return replace(self, help=not self.help)
        if key == "f":
            return View()
        top, end = self.top or 0, max(0, count - room)
        moves = {"j": top + 1, "k": top - 1, " ": top + room, "b": top - room, "g": 0, "G": end}
        return View(max(0, min(moves[key], end))) if key in moves else self


# --- sections -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Panels:
    """The sections of one screen, as lines. ``rollouts`` are those of the latest step that kept
    any."""

    snapshot: Snapshot
    rollouts: Sequence[Record]
    width: int
    glyphs: Glyphs
    loads: Sequence[report.Fact] = ()

    def learning(self) -> list[Text]:
        """Loss, reward, accuracy and outcomes of the samples, as of the last step."""
        return [
            *self._row("loss", "train/loss", "{:.3f}".format),
            *self._row("accuracy", "train/accuracy", percent),
            *self._row("reward", "reward/mean", "{:.3f}".format),
            *self._row("gold", "gold/accuracy", percent),
            *self._by_kind(),
            *self._held_out(),
            *(self._row("cut", CUT, percent) if self.snapshot.cut else ()),
            *self._row("valid", "rollout/valid_frac", percent),
            *self._row("unscored", "rollout/unscored", percent),
            *self._row("no spread", "reward/zero_variance_frac", percent),
        ] or [Text("no step finished yet", style="dim")]

    def judge(self) -> list[Text]:
        """The judge's audit (law 3): agreement, drift of its verdicts from gold, its two
        errors, and the share of its verdicts that fallback rules gave instead (law 4)."""
        rows = self._row("agreement", AGREEMENT, percent)
        drifts = self.snapshot.series(DRIFT)
        recent = self.snapshot.recent_drift
        if recent is not None:
            value = _value(f"{points(recent)} points", self.snapshot.drift is not None)
            rows.append(self._line("drift", value, drifts))
        errors = (("false +", "false_positive_rate"), ("false -", "false_negative_rate"))
        found = [(label, self.snapshot.latest(f"judge/{name}")) for label, name in errors]
        rates = [f"{label} {percent(value)}" for label, value in found if value is not None]
        if recent is not None:
            rates.append(f"alarm {alarm_line(self.snapshot.drift_alarm)}")
        if rates:
            rows.append(Text(f"{'':<{LABEL}}{'  '.join(rates)}", style="dim"))
        if fallback := last(self.snapshot.series("judge/source/rule_fallback"), RECENT):
            rows.append(_label("by rules") + _value(percent(fallback), True))
        return rows

    def policy(self) -> list[Text]:
        """The learner's charts that have a label, the environment's, and shares by turn."""
        own = [(c.label, c.curves[0][2], c.value) for c in (*TURNS, *LEARNER)]
        own += [(c.label, c.metric, "{:,.0f}".format) for c in self.snapshot.display.curves]
        shown = [(label, metric, form) for label, metric, form in own if label]
        rows = [row for each in shown for row in self._row(*each)]
        by_turn = [("stops", "turns/stop/", percent)]
        by_turn += [("gap, nats", "policy/logprob_gap/", "{:.1e}".format)]
        for label, prefix, form in by_turn if self.snapshot.series("turns/mean") else ():
            names = self.snapshot.names(prefix)
            known = [(n.removeprefix(prefix), self.snapshot.latest(n)) for n in names]
            text = "  ".join(f"{name} {form(value)}" for name, value in known if value)
            rows.append(shortened(f"{label:<{LABEL}}{text}", self.width, "dim"))
        return rows

    def times(self) -> list[Text]:
        """Seconds of each stage, mean of the recent steps, and the GPU's memory where there is
        one."""
        stages = mean_seconds(self.snapshot)
        longest = max(stages.values(), default=0.0) or 1.0
        room = max(4, min(30, self.width - LABEL - VALUE))
        full = self.glyphs.bars[-1]
        lines = [
            _label(stage)
            + Text(f"{duration(seconds):<{VALUE}}")
            + Text(full * max(1, round(room * seconds / longest)), style="blue")
            for stage, seconds in stages.items()
        ]
        step = last(self.snapshot.series("time/step"), RECENT)
        if step is not None:
            lines.append(_label("whole step") + Text(duration(step), style="bold"))
        if whole := sum(self.snapshot.seconds.values()):
            took = Text(duration(whole), style="bold")
            lines.append(_label("whole run") + took + Text("  without loading", style="dim"))
        if parts := mean_seconds(self.snapshot, self.snapshot.display.seconds):
            text = "  ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items())
            lines.append(_label("a rollout") + Text(text, style="dim"))
        memory = self.snapshot.latest("gpu/memory_gb")
        if memory is not None:
            lines.append(_label("GPU memory") + Text(f"{memory:.1f} GB", style="bold"))
        return lines

    def failures(self) -> list[Text]:
        """Shares of the recent rollouts that failed, the policy's faults apart from ours, each
        with the newest message."""
        rows = self.snapshot.training_rows
        recent = failures(rows[-RECENT:])
        lines: list[Text] = []
        for whose, ours in (("policy's", False), ("ours", True)) if rows else ():
            found = [(r, share) for r, share in recent.items() if is_ours(r) is ours]
            if not found:
                lines.append(_label(whose) + Text("none", style="dim"))
            for position, (reason, share) in enumerate(found[:3]):
                text = f"{one_line(reason, 15):<15}{percent(share):>9}"
                lines.append(_label("" if position else whose) + Text(text, "red" if ours else ""))
            message = _latest_message(self.rollouts, ours) if found else None
            if message:
                lines.append(shortened(f"{'':<{LABEL}}{message}", self.width, "dim"))
        return lines

    def failures_in_brief(self) -> list[Text]:
        """The largest shares of the recent rollouts that failed, in a line; ours behind a mark."""
        rows = self.snapshot.training_rows
        if not rows:
            return []
        parts: list[Text] = []
        for reason, share in list(failures(rows[-RECENT:]).items())[:4]:
            text = f"{one_line(reason, 15)} {percent(share)}"
            parts.append(_value(f"{text} (ours)", True) if is_ours(reason) else Text(text))
        return [_label("failed") + (Text("  ").join(parts) if parts else Text("none", style="dim"))]

    def servers(self) -> list[Text]:
        """A line for each role whose requests the recent steps counted: calls, attempts that
        failed, and the mean time that a call waited in our queue and between attempts."""
        lines: list[Text] = []
        whole = traffic(self.snapshot.rows, self.snapshot.evaluation)
        for role, found in traffic(self.snapshot.training_rows[-RECENT:]).items():
            counts, run = found.counts, whole[role].counts
            row = _label(one_line(role, LABEL - 1)) + Text(f"{counts.get('calls', 0):,.0f} calls")
            if run.get("calls", 0) > counts.get("calls", 0):
                row += Text(f" of {run['calls']:,.0f} in the run", style="dim")
            if found.troubles:
                text = "  ".join(f"{name} {count:,.0f}" for name, count in found.troubles.items())
                row += Text("  ") + _value(text, True)
            waited = counts.get("wait_seconds", 0.0) / max(1.0, counts.get("calls", 0.0))
            if waited >= SHORTEST_WAIT:
                row += Text(f"  each waited {duration(waited)}", style="dim")
            lines.append(row)
        for load in self.loads:
            text = f"{load.name}  {load.alarm or load.text}"
            lines.append(shortened(text, self.width, "red" if load.alarm else ""))
        return lines

    def _row(self, label: str, metric: str, form: Form) -> list[Text]:
        """A metric's last value with its history, nothing without one; it stands out while it is
        out of its range."""
        course = self.snapshot.series(metric)
        if not course:
            return []
        alarming = self.snapshot.out_of_range(metric) is not None
        return [self._line(label, _value(form(course[-1][1]), alarming), course)]

    def _line(self, label: str, value: Text, course: Sequence[Point]) -> Text:
        return line(label, value, [v for _, v in course], self.width, self.glyphs)

    def _by_kind(self) -> list[Text]:
        series = [(k, self.snapshot.series(f"gold/accuracy/{k}")) for k in kinds(self.snapshot)]
        means = [(kind, last(course, RECENT)) for kind, course in series]
        shown = [f"{one_line(k, 8)} {100 * mean:.0f} %" for k, mean in means if mean is not None]
        if not shown:
            return []
        rows = wrapped("  ".join(shown), self.width, "dim", indent=LABEL)
        return [_label(f" last {RECENT}") + rows[0][LABEL:], *rows[1:]]

    def _held_out(self) -> list[Text]:
        """The held-out figure, and the validation of fixed data."""
        rows: list[Text] = []
        for found in all_held_out(self.snapshot):
            form = found.measured.form
            evaluated = found.where.startswith("evaluation")
            row = _label("held out" if evaluated else found.measured.label)
            row += Text(form(found.after), style="bold")
            if found.before is not None:
                row += Text(f"  was {form(found.before)}")
                if self.width >= 60:
                    row += Text(f"  ({found.where})", style="dim")
            rows.append(row)
        return rows


def _value(shown: str, alarming: bool) -> Text:
    # The exclamation mark is for terminals without colour.
    return Text(f"{shown} !", "bold yellow") if alarming else Text(shown, "bold")


def _label(text: str) -> Text:
    return Text(f"{text:<{LABEL}}", style="dim")


def _latest_message(rollouts: Sequence[Record], ours: bool) -> str | None:
    for rollout in reversed(rollouts):
        failure = object_of(rollout, "failure")
        if failure and (failure.get("blame") == "infrastructure") is ours:
            return one_line(f"{failure.get('reason')}: {failure.get('message')}")
    return None


def sample(
    display: Display, rollouts: Sequence[Record], width: int, room: int | None
) -> list[Text]:
    """One rollout of the latest step in at most ``room`` lines; another position each step, so
    that it is not always the best one."""
    if not rollouts or (room is not None and room < 5):
        return []
    step = rollouts[0].get("step")
    rollout = rollouts[(step if isinstance(step, int) else 0) % len(rollouts)]
    for block in blocks_of(display, rollout):
        if isinstance(block, report.Program):
            body = _highlighted(visible(block.source[:LONGEST]).strip("\n"))
        elif isinstance(block, report.Text) and not block.short:
            body = [Text(row) for row in visible(block.text[:LONGEST]).strip("\n").split("\n")]
        else:
            continue
        if room is not None and len(body) > room - 2:
            kept = room - 3
            body = [*body[:kept], Text(f"... {len(body) - kept} more lines", style="dim")]
        title = heading(f"Sample {one_line(block.title, 60).lower()}")
        return [title, shortened(_outcome(rollout), width, "dim"), *body]
    return []


def _outcome(rollout: Record) -> str:
    task, failure = object_of(rollout, "task"), object_of(rollout, "failure")
    reward = reward_of(rollout)
    parts = [f"step {rollout.get('step')}", str(task.get("kind", ""))]
    parts.append("unscored" if reward is None else f"reward {reward:.2f}")
    if failure.get("reason"):
        parts.append(f"failed: {failure['reason']}")
    if turns := objects_in(rollout.get("turns")):
        count = "1 turn" if len(turns) == 1 else f"{len(turns)} turns"
        parts.append(f"{count} ({rollout.get('stop')})")
    for who, key in (("judge", "verdict"), ("gold", "gold")):
        opinion = object_of(rollout, key).get("correct")
        if opinion is not None:
            parts.append(f"{who}: {'right' if opinion else 'wrong'}")
    return one_line(", ".join(filter(None, parts)))


def _highlighted(code: str) -> list[Text]:
    # Imported here: pygments costs a tenth of a second that a screen without a sample saves.
    from rich.syntax import Syntax

    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    rows = list(syntax.highlight(code).split("\n", allow_blank=True))
    while rows and not rows[-1].plain.strip():
        rows.pop()
    return rows


# --- layout ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScreenSection:
    """A section of the screen. The lower ``rank``, the longer it stays when space is short; where
    it goes, ``brief`` stands for it."""

    rank: int
    title: str
    lines: Callable[[Panels], list[Text]]
    brief: Callable[[Panels], list[Text]] = lambda panels: []


LEFT = (
    ScreenSection(0, "Learning", Panels.learning),
    ScreenSection(1, "Judge against gold", Panels.judge),
    ScreenSection(4, "Policy", Panels.policy),
)
RIGHT = (
    ScreenSection(2, f"Failures, last {RECENT} steps", Panels.failures, Panels.failures_in_brief),
    ScreenSection(3, "Time", Panels.times),
    ScreenSection(2, f"Servers, last {RECENT} steps", Panels.servers),
)


@dataclass(frozen=True, slots=True)
class Screen:
    """A snapshot as a rich renderable. ``rollouts`` are those of the latest step that kept any;
    ``full`` shows everything, as on paper, instead of the ``view``; ``loads`` are those of
    servers."""

    snapshot: Snapshot
    rollouts: Sequence[Record] = ()
    full: bool = False
    loads: Sequence[report.Fact] = ()
    view: View = field(default_factory=View)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = UNICODE if options.encoding.startswith("utf") else ASCII
        height = None if self.full else console.height
        for row in self.shown(options.max_width, height, glyphs):
            row.truncate(options.max_width, overflow="ellipsis")
            yield row

    def shown(self, width: int, height: int | None, glyphs: Glyphs) -> Sequence[Text]:
        """The part of it in the view, as lines."""
        if self.view.help and height is not None:
            return [Text("Keys", style="bold"), *(Text(f"  {k:<18}{what}") for k, what in KEYS)]
        if self.view.top is None or height is None:
            return self.lines(width, height, glyphs)
        lines, room = self.lines(width, None, glyphs), max(1, height - 1)
        top = min(self.view.top, max(0, len(lines) - room))
        part = lines[top : top + room]
        place = f"lines {top + 1}-{top + len(part)} of {len(lines)}  f: what fits  ?: keys"
        return [*part, Text(place, style="dim")]

    def lines(self, width: int, height: int | None, glyphs: Glyphs) -> list[Text]:
        """The screen as lines of at most ``width`` cells, at most ``height`` of them."""
        head = _head(self.snapshot, width, glyphs)
        room = None if height is None else height - len(head) - 1
        two = width >= TWO_COLUMNS
        column = (width - GUTTER) // 2 if two else width
        panels = Panels(self.snapshot, self.rollouts, column, glyphs, self.loads)
        if two:
            body = _side_by_side(_stack(LEFT, panels, room), _stack(RIGHT, panels, room), column)
        else:
            body = _stack((*LEFT, *RIGHT), panels, room)
        spare = None if room is None else room - len(body) - 1
        example = sample(self.snapshot.display, self.rollouts, width, spare)
        return [*head, Text(), *body, *([Text(), *example] if example else [])]


def _stack(stacked: Iterable[ScreenSection], panels: Panels, room: int | None) -> list[Text]:
    """Panels below each other; those of the lowest rank that fit, in their order."""
    drawn = [(panel, lines) for panel in stacked if (lines := panel.lines(panels))]
    short = room is not None and room >= _LEAST_FOR_BRIEF
    brief = {panel.title: panel.brief(panels) if short else [] for panel, _ in drawn}
    left = None if room is None else room - sum(map(len, brief.values()))
    kept = set[str]()
    for panel, lines in sorted(drawn, key=lambda item: item[0].rank):
        needed = len(lines) + 2 - len(brief[panel.title])
        if left is None or needed <= left + 1:
            kept.add(panel.title)
            left = None if left is None else left - needed
    result: list[Text] = []
    for panel, lines in drawn:
        if panel.title in kept:
            result += [*([Text()] if result else []), heading(panel.title), *lines]
        else:
            result += brief[panel.title]
    return result


def _side_by_side(left: Sequence[Text], right: Sequence[Text], column: int) -> list[Text]:
    result: list[Text] = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        row = one.copy()
        row.truncate(column, pad=True)
        result.append(row + Text(" " * GUTTER) + other)
    return result


def _head(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    state, status = snapshot.state, snapshot.status
    step, steps = snapshot.step, state.get("steps")
    name = Text(one_line(snapshot.run.name, max(8, width - 14)), style="bold")
    lines = [name + Text("  ") + Text(status, style=STATUS_STYLE.get(status, "bold"))]
    progress = [f"step {step}/{steps}" if is_number(steps) else "no state yet"]
    if snapshot.running and state.get("stage"):
        progress.append(one_line(state["stage"], 12))
    eta = eta_seconds(snapshot)
    if eta is not None:
        progress.append(f"ETA {duration(eta)}")
    lines.append(Text("  ".join(progress)))
    if is_number(step) and is_number(steps) and steps > 0:
        lines.append(bar(step / steps, min(width, 72), glyphs))
    for message, style in notices(snapshot):
        lines += wrapped(message, width, style)
    roles = [role for role in snapshot.display.models if state.get(role)]
    models = [f"{role} {one_line(state[role], 60)}" for role in roles]
    lines += wrapped(glyphs.between.join(models), width, "dim")
    return lines


def notices(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Everything that a reader must know before believing a number, worst first, with its style."""
    state, found = snapshot.state, list[tuple[str, str]]()
    patience = max(QUIET_SECONDS, 3 * (last(snapshot.series("time/step"), RECENT) or 0.0))
    silence = duration(snapshot.quiet_seconds)
    if snapshot.simulated:
        text = "SIMULATED: numbers come from the embedded server, not a real model"
        found.append((text, "bold magenta"))
    found += [(warning, "bold red") for warning in snapshot.warnings]
    if (drift := snapshot.drift) is not None:
        text = f"JUDGE DRIFTS from gold by {100 * drift:+.1f} points: rewards may be wrong"
        found.append((text, "bold red"))
    if snapshot.died:
        stage = one_line(state.get("stage", "unknown"), 20)
        text = f"DIED in stage {stage}, last news {silence} ago: the trainer is gone"
        found.append((text, "bold red"))
    elif snapshot.running and snapshot.quiet_seconds > patience:
        host = f" from {one_line(state['host'], 60)}" if state.get("host") else ""
        alive = "; the trainer is alive" if snapshot.alive else ""
        found.append((f"no news{host} for {silence}{alive}", "bold yellow"))
    if snapshot.display.note:
        found.append((one_line(snapshot.display.note, 200), "yellow"))
    if state.get("message"):
        found.append((one_line(state["message"], 400), "yellow"))
    if snapshot.status in RESUMABLE:
        found.append((f"resume: {snapshot.resume_command}", "yellow"))
    if snapshot.status == "finished" and (snapshot.run / "report.html").exists():
        found.append((f"report: {snapshot.run / 'report.html'}", "green"))
    return found
