"""What the live view shows of a screen, and how keys change that: what fits the terminal, or all of
it a part at a time. Nothing is read or drawn here.
"""

from dataclasses import dataclass, replace

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
    """``top`` is the first line that is shown of all there is, None for what fits."""

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
