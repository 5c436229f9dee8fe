"""The terminal screen: a snapshot laid out for the width and height that there are.

Draws lines of text, no frames: they survive 40 columns, a pipe and a terminal without colour. One
column below 100 characters, two above; what does not fit goes, the least telling section first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flowright.core.formatting import Record, duration, is_number
from flowright.core.untrusted import one_line
from flowright.viewer.monitoring.health import Health
from flowright.viewer.monitoring.panels import Panels, sample
from flowright.viewer.monitoring.snapshot import QUIET_SECONDS, RECENT, Snapshot, eta_seconds, last
from flowright.viewer.monitoring.view import KEYS, View
from flowright.viewer.rendering.glyphs import ASCII, UNICODE, Glyphs, bar, heading, wrapped

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


@dataclass(frozen=True, slots=True)
class Section:
    """A block of the screen. The lower ``rank``, the longer it stays when space is short; where it
    goes, what is ``brief`` stands for it."""

    rank: int
    title: str
    lines: Callable[[Panels], list[Text]]
    brief: Callable[[Panels], list[Text]] = lambda panels: []


LEFT = (
    Section(0, "Learning", Panels.learning),
    Section(1, "Judge against gold", Panels.judge),
    Section(4, "Policy", Panels.policy),
)
RIGHT = (
    Section(2, f"Failures, last {RECENT} steps", Panels.failures, Panels.failures_in_brief),
    Section(3, "Time", Panels.times),
    Section(2, f"Servers, last {RECENT} steps", Panels.servers),
)


@dataclass(frozen=True, slots=True)
class Screen:
    """Renders a snapshot. ``rollouts`` are those of the latest step that kept any; ``full`` shows
    everything, as on paper, instead of what ``view`` does of it; ``health`` is of servers by their
    URL."""

    snapshot: Snapshot
    rollouts: Sequence[Record] = ()
    full: bool = False
    health: Mapping[str, Health] = field(default_factory=dict)
    view: View = field(default_factory=View)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = UNICODE if options.encoding.startswith("utf") else ASCII
        height = None if self.full else console.height
        for row in self.shown(options.max_width, height, glyphs):
            row.truncate(options.max_width, overflow="ellipsis")
            yield row

    def shown(self, width: int, height: int | None, glyphs: Glyphs) -> Sequence[Text]:
        """What the view shows of it, as lines."""
        if self.view.help and height is not None:
            return [Text("Keys", style="bold"), *(Text(f"  {k:<18}{what}") for k, what in KEYS)]
        if self.view.top is None or height is None:
            return self.lines(width, height, glyphs)
        lines, room = self.lines(width, None, glyphs), max(1, height - 1)
        top = min(self.view.top, max(0, len(lines) - room))
        part = lines[top : top + room]
        told = f"lines {top + 1}-{top + len(part)} of {len(lines)}  f: what fits  ?: keys"
        return [*part, Text(told, style="dim")]

    def lines(self, width: int, height: int | None, glyphs: Glyphs) -> list[Text]:
        """The screen as lines of at most ``width`` cells, at most ``height`` of them."""
        head = _head(self.snapshot, width, glyphs)
        room = None if height is None else height - len(head) - 1
        two = width >= TWO_COLUMNS
        column = (width - GUTTER) // 2 if two else width
        panels = Panels(self.snapshot, self.rollouts, column, glyphs, self.health)
        if two:
            body = _side_by_side(_stack(LEFT, panels, room), _stack(RIGHT, panels, room), column)
        else:
            body = _stack((*LEFT, *RIGHT), panels, room)
        spare = None if room is None else room - len(body) - 1
        example = sample(self.snapshot.display, self.rollouts, width, spare)
        return [*head, Text(), *body, *([Text(), *example] if example else [])]


def _stack(sections: Iterable[Section], panels: Panels, room: int | None) -> list[Text]:
    """Sections below each other; those of the lowest rank that fit, in their given order."""
    drawn = [(section, lines) for section in sections if (lines := section.lines(panels))]
    short = room is not None and room >= _LEAST_FOR_BRIEF
    brief = {section.title: section.brief(panels) if short else [] for section, _ in drawn}
    left = None if room is None else room - sum(map(len, brief.values()))
    kept = set[str]()
    for section, lines in sorted(drawn, key=lambda item: item[0].rank):
        needed = len(lines) + 2 - len(brief[section.title])
        if left is None or needed <= left + 1:
            kept.add(section.title)
            left = None if left is None else left - needed
    result: list[Text] = []
    for section, lines in drawn:
        if section.title in kept:
            result += [*([Text()] if result else []), heading(section.title), *lines]
        else:
            result += brief[section.title]
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
    step, steps = state.get("step"), state.get("steps")
    name = Text(one_line(snapshot.run.name, max(8, width - 14)), style="bold")
    lines = [name + Text("  ") + Text(status, style=STATUS_STYLE.get(status, "bold"))]
    facts = [f"step {step}/{steps}" if is_number(steps) else "no state yet"]
    if snapshot.running and state.get("stage"):
        facts.append(one_line(state["stage"], 12))
    eta = eta_seconds(snapshot)
    if eta is not None:
        facts.append(f"ETA {duration(eta)}")
    lines.append(Text("  ".join(facts)))
    if is_number(step) and is_number(steps) and steps > 0:
        lines.append(bar(step / steps, min(width, 72), glyphs))
    for message, style in notices(snapshot):
        lines += wrapped(message, width, style)
    roles = [role for role in snapshot.display.models if state.get(role)]
    models = [f"{role} {one_line(state[role], 60)}" for role in roles]
    lines += wrapped(glyphs.between.join(models), width, "dim")
    return lines


def notices(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Everything that a reader must know before believing a number, worst first."""
    state, found = snapshot.state, list[tuple[str, str]]()
    patience = max(QUIET_SECONDS, 3 * (last(snapshot.series("time/step"), RECENT) or 0.0))
    if snapshot.simulated:
        found.append(
            ("SIMULATED: numbers come from the embedded server, not a real model", "bold magenta")
        )
    found += [(warning, "bold red") for warning in snapshot.warnings]
    if (drift := snapshot.drift) is not None:
        text = f"JUDGE DRIFTS from gold by {100 * drift:+.1f} points: rewards may be wrong"
        found.append((text, "bold red"))
    if snapshot.died:
        found.append(
            (
                f"DIED in stage {one_line(state.get('stage', 'unknown'), 20)}, "
                f"last news {duration(snapshot.quiet_seconds)} ago: the trainer is gone",
                "bold red",
            )
        )
    elif snapshot.running and snapshot.quiet_seconds > patience:
        host = f" from {one_line(state['host'], 60)}" if state.get("host") else ""
        told = "; the trainer is alive" if snapshot.alive else ""
        found.append((f"no news{host} for {duration(snapshot.quiet_seconds)}{told}", "bold yellow"))
    if snapshot.display.note:
        found.append((one_line(snapshot.display.note, 200), "yellow"))
    if state.get("message"):
        found.append((one_line(state["message"], 400), "yellow"))
    if snapshot.status in RESUMABLE:
        found.append((f"resume: {snapshot.resume_command}", "yellow"))
    if snapshot.status == "finished" and (snapshot.run / "report.html").exists():
        found.append((f"report: {snapshot.run / 'report.html'}", "green"))
    return found
