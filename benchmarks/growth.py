"""How an update's time and memory grow with the group, the prompt and the completion.

Two prompts of P tokens with G completions of C each; the model is that of ``step.py``. One of the
three grows at a time, from P=1024, C=128, G=8; each point in a process of its own, on one thread.
The plain path has at most 32,768 tokens in a batch, so its memory ends growing there. What a
completion more costs is found from groups of 8 and of 16.

    python benchmarks/growth.py [--figures FILE.json] [--plot FILE.svg] [--repeats 1]

``--figures`` keeps the least of every figure over all runs that are given the file, each as soon as
it is found; ``--repeats 0`` only prints and draws them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from meter import Meter, apart, least
from shapes import Shape, checkpoint, groups_of, learner, policy

from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import Series, curve, picture
from flowright.viewer.rendering.markup import Html

BASE = Shape(groups=2, template=0, problem=1024, size=8, length=128)
GROWTH = {
    "size": (1, 2, 4, 8, 16, 32),
    "problem": (256, 512, 1024, 2048, 4096),
    "length": (64, 128, 256, 512, 1024),
}
LETTERS = {"size": "G", "problem": "P", "length": "C"}
NAMES = {
    "size": "completions of a prompt G",
    "problem": "tokens of a prompt P",
    "length": "tokens of a completion C",
}
UNITS = {"update s": "CPU seconds", "update GB": "GB above the model"}
COLOURS = {"plain": "c2", "shared": "c1"}
PATHS = tuple(COLOURS)
BUDGET = 768
"""grpo.micro_batch_tokens of the shared path."""

Figures = dict[str, dict[str, float]]
"""By path and shape, "shared G=8 P=1024 C=128"."""


def key(path: str, shape: Shape) -> str:
    return f"{path} G={shape.size} P={shape.problem} C={shape.length}"


def measure(folder: Path, shape: Shape, sharing: bool) -> dict[str, float]:
    """One update in this process."""
    torch.set_num_threads(1)
    trainer = learner(policy(folder), sharing, BUDGET)
    groups = groups_of(shape)
    meter = Meter()
    meter.measure("update", lambda: trainer.update(groups, 2, 2048))
    return meter.found()


def points() -> list[tuple[str, Shape]]:
    """What is measured: each path along each line, and for each prompt a group twice as large."""
    lines = [replace(BASE, **{name: value}) for name in GROWTH for value in GROWTH[name]]
    doubled = [replace(BASE, problem=p, size=2 * BASE.size) for p in GROWTH["problem"]]
    shapes = dict.fromkeys([*lines, *doubled])
    return [(path, shape) for shape in shapes for path in PATHS]


def measured(figures: Figures, repeats: int, paths: Sequence[str], file: Path | None) -> None:
    """Measure every point; ``figures`` has the least of what it had and what was found."""
    with tempfile.TemporaryDirectory() as name:
        checkpoint(Path(name))
        for path, shape in [each for each in points() if each[0] in paths] * repeats:
            sizes = ",".join(map(str, (shape.size, shape.problem, shape.length)))
            command = [sys.executable, __file__, "--measure", name, "--sizes", sizes]
            found = apart([*command, "--path", path], sys.path)
            point = key(path, shape)
            figures[point] = least([found, figures.get(point, found)])
            if file:
                file.write_text(json.dumps(figures, indent=1))


def marginal(figures: Figures, path: str, prompt: int) -> float:
    """CPU seconds of one completion more behind each of the prompts, for one of them."""
    small = replace(BASE, problem=prompt)
    large = replace(small, size=2 * BASE.size)
    more = figures[key(path, large)]["update s"] - figures[key(path, small)]["update s"]
    return more / BASE.groups / BASE.size


def table(figures: Figures) -> str:
    lines = ["| | plain s | shared s | plain GB | shared GB |", "|---|---|---|---|---|"]
    for name, values in GROWTH.items():
        for value in values:
            shape = replace(BASE, **{name: value})
            plain, shared = (figures[key(path, shape)] for path in PATHS)
            lines.append(
                f"| {LETTERS[name]}={value} | {plain['update s']:.1f} | {shared['update s']:.2f} | "
                f"{plain['update GB']:.2f} | {shared['update GB']:.2f} |"
            )
    lines += ["", "| a completion more | plain ms | shared ms |", "|---|---|---|"]
    for prompt in GROWTH["problem"]:
        cost = [f"{1000 * marginal(figures, path, prompt):.0f}" for path in PATHS]
        lines.append(f"| P={prompt} | {' | '.join(cost)} |")
    return "\n".join(lines)


def plot(figures: Figures, file: Path) -> None:
    """Time above, memory below, for each of the three; all scales are logarithmic."""
    panels = [_panel(figures, name, unit) for unit in UNITS for name in GROWTH]
    key = [(colour, path) for path, colour in COLOURS.items()]
    file.write_text(picture(panels, key, columns=len(GROWTH)), encoding="utf-8")


def _panel(figures: Figures, name: str, unit: str) -> svg.ChartDrawing:
    """One unit along one line, on the scale of all lines."""
    every = [point[unit] for point in figures.values()]
    values = GROWTH[name]
    x = svg.across(values[0] / 1.1, values[-1] * 1.1, log=True)
    y = svg.Scale(min(every) / 1.2, max(every) * 1.2, svg.HEIGHT - svg.BOTTOM, svg.TOP, log=True)
    drawn: list[Html] = svg.y_axis(y.ticks(), y, svg.plain)
    drawn += svg.x_axis(values, x, svg.plain, NAMES[name])
    for path, colour in COLOURS.items():
        shapes = [replace(BASE, **{name: value}) for value in values]
        found = [figures[key(path, shape)][unit] for shape in shapes]
        course = list(zip(map(float, values), found, strict=True))
        drawn.append(curve(Series(path, colour, course, marks=True), x, y))
    return svg.ChartDrawing(UNITS[unit], drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=1, help="times to measure; 0 is not at all")
    parser.add_argument("--figures", type=Path, help="a file that keeps what was measured")
    parser.add_argument("--path", choices=PATHS, help="measure only this one")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    for name in ("--measure", "--sizes"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        size, problem, length = map(int, options.sizes.split(","))
        shape = replace(BASE, size=size, problem=problem, length=length)
        print(json.dumps(measure(Path(options.measure), shape, options.path == "shared")))
        return
    figures: Figures = {}
    if options.figures and options.figures.exists():
        figures = json.loads(options.figures.read_text())
    paths = (options.path,) if options.path else PATHS
    measured(figures, options.repeats, paths, options.figures)
    print(table(figures))
    if options.plot:
        plot(figures, options.plot)


if __name__ == "__main__":
    main()
