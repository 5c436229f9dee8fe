"""Charts as an SVG file that stands by itself, for papers, slides and documentation: panels beside
and below each other above the key of their colours, on light and on dark ground.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flowright.rendering import svg
from flowright.rendering.markup import Html, el
from flowright.rendering.page import asset

FONT = "svg { font-family: system-ui, sans-serif; } .title { fill: var(--ink); font-weight: 600; }"
GAP, HEAD, LINE = 20, 22, 18


@dataclass(frozen=True, slots=True)
class Panel:
    """A title above drawings on the units of :mod:`flowright.rendering.svg`."""

    title: str
    drawn: Sequence[Html]


def picture(panels: Sequence[Panel], key: Sequence[tuple[str, str]], columns: int = 1) -> str:
    """The file. ``key`` are colours by class, and their names."""
    wide, tall = svg.WIDTH + GAP, svg.HEIGHT + HEAD + GAP
    width = columns * wide + GAP
    drawn: list[Html] = []
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        move = f"translate({GAP + column * wide} {GAP + row * tall + HEAD})"
        title = svg.word(panel.title, 0, -8, "start", "title")
        drawn.append(el("g", title, panel.drawn, transform=move))
    bottom = GAP + -(-len(panels) // columns) * tall
    for number, (colour, name) in enumerate(key):
        y = bottom + LINE * number
        drawn.append(svg.dot(f"dot {colour}", GAP + 6, y - 4, 6))
        drawn.append(svg.word(name, GAP + 20, y, "start"))
    box = f"0 0 {width} {bottom + LINE * len(key)}"
    ground = el("rect", width="100%", height="100%", style="fill:var(--ground)")
    style = el("style", Html(asset("charts.css") + FONT))
    shown = el("svg", style, ground, drawn, xmlns="http://www.w3.org/2000/svg", viewBox=box)
    return f"{shown}\n"
