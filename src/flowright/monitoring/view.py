"""What the live view shows of a screen, and how keys change that: what fits the terminal, or the
whole of it a part at a time. Nothing is read or written here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flowright.monitoring.screen import Screen
from flowright.rendering.glyphs import ASCII, UNICODE, Glyphs

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
    """``top`` is the first line of the whole screen that is shown, None for what fits."""

    top: int | None = None
    help: bool = False
    over: bool = False

    def after(self, key: str, room: int) -> "View":
        """The view once a key was pressed; ``room`` is how many lines are shown at a time. A
        ``top`` beyond the end is one that :func:`part` brings back."""
        if key == "q":
            return replace(self, over=True)
        if key == "?":
            return replace(self, help=not self.help)
        if key == "f":
            return View()
        top = self.top or 0
        moved = {
            "j": top + 1,
            "k": top - 1,
            " ": top + room,
            "b": top - room,
            "g": 0,
            "G": 1 << 30,
        }.get(key)
        return self if moved is None else View(max(0, moved))


def part(view: View, lines: Sequence[Text], room: int) -> tuple[View, Sequence[Text]]:
    """The lines that are shown, and the view with a ``top`` that is among them."""
    top = min(view.top or 0, max(0, len(lines) - room))
    return replace(view, top=top), lines[top : top + room]


@dataclass(frozen=True, slots=True)
class Viewed:
    """A screen as a view shows it."""

    screen: Screen
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, max(2, console.height)
        glyphs = UNICODE if options.encoding.startswith("utf") else ASCII
        for row in self._lines(width, height, glyphs):
            row.truncate(width, overflow="ellipsis")
            yield row

    def _lines(self, width: int, height: int, glyphs: Glyphs) -> Sequence[Text]:
        if self.view.help:
            return [Text("Keys", style="bold"), *(Text(f"  {k:<18}{what}") for k, what in KEYS)]
        if self.view.top is None:
            return self.screen.lines(width, height, glyphs)
        whole = self.screen.lines(width, None, glyphs)
        view, shown = part(self.view, whole, height - 1)
        first = (view.top or 0) + 1
        told = f"lines {first}-{first + len(shown) - 1} of {len(whole)}  f: what fits  ?: keys"
        return [*shown, Text(told, style="dim")]
