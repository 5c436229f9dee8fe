"""Parts of a terminal screen: bars, sparklines, rows."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

LABEL = 11  # width of a row's label
VALUE = 15  # width of a row's value, before its sparkline


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters to draw with: what a terminal can show depends on its encoding."""

    bars: str  # from the lowest to the highest
    done: str
    todo: str
    between: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "━", "─", " · ")
ASCII = Glyphs("_.-:=+*#", "=", "-", ", ")


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs = UNICODE) -> str:
    """The values as ``width`` bars or fewer, each the mean of its stretch, from the lowest mean to
    the highest; a flat line where all are equal."""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    if span <= 1e-9 * max(abs(low), abs(low + span)):  # rounding, not movement
        return glyphs.bars[0] * count
    top = len(glyphs.bars) - 1
    levels = [round((mean - low) / span * top) for mean in means]
    return "".join(glyphs.bars[level] for level in levels)


def bar(share: float, width: int, glyphs: Glyphs) -> Text:
    """A progress bar with its percentage, ``width`` cells in all."""
    share = min(1.0, max(0.0, share))
    label = f" {100 * share:3.0f} %"
    room = max(4, width - len(label))
    done = round(room * share)
    return Text.assemble((glyphs.done * done, "green"), (glyphs.todo * (room - done), "dim"), label)


def line(label: str, value: Text, values: Sequence[float], width: int, glyphs: Glyphs) -> Text:
    """A label, a value and, where at least eight cells are left, the sparkline of its history."""
    row = Text(f"{label:<{LABEL}}", style="dim") + value
    room = min(40, width - LABEL - VALUE)
    if room >= 8:
        row.pad_right(max(1, VALUE - len(value)))
        row.append(sparkline(values, room, glyphs), style="cyan")
    return row


def heading(title: str) -> Text:
    return Text(title, style="bold underline")


def shortened(text: str, width: int, style: str) -> Text:
    """The text on one line of at most ``width`` cells."""
    row = Text(text, style=style)
    row.truncate(width, overflow="ellipsis")
    return row


def wrapped(text: str, width: int, style: str, indent: int = 0) -> list[Text]:
    """The text on as many lines as it needs; none for an empty one."""
    if not text:
        return []
    rows = Text(text, style=style).wrap(_MEASURE, max(8, width - indent))
    return [Text(" " * indent) + row for row in rows]


_MEASURE = Console(width=80, force_terminal=False)  # only measures, never prints
