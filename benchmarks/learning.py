"""Is learning hurt by what makes it fast? The quickstart, seed by seed, in three ways.

- plain: ``grpo.prefix_sharing: false`` and strictly in turn;
- fast: sharing, and ``pipeline.max_staleness: 1``, so that a batch is sampled before the update of
  the one before it, with ``grpo.off_policy: ratio``;
- truncated: as fast, with ``grpo.off_policy: truncated``, where the clipped ratio is to the policy
  before the update and the sampler's has a weight of its own.

Whole runs of ``config/quickstart.yaml`` (embedded policy, simulated server), each with the adapter,
problems and draws of its seed; the embedded policy below is the same. Printed is the validation
accuracy along the way, by gold and not by the judge, and that of the final comparison: mean and
range over the seeds. A run on two cores takes 5 to 12 minutes; those that ``--runs`` has already
are not run again.

    python benchmarks/learning.py [--seeds 4] [--runs DIR] [--plot FILE.svg]
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from quickstart import trained

from flowright.evaluation.comparison import TRAINED
from flowright.runs.run_files import read_evaluation, read_metrics, read_state
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import Series, curve, picture
from flowright.viewer.rendering.markup import el

KINDS = {
    "plain": ("grpo.prefix_sharing=false", "pipeline.max_staleness=0"),
    "fast": ("pipeline.max_staleness=1", "grpo.off_policy=ratio"),
    "truncated": ("pipeline.max_staleness=1", "grpo.off_policy=truncated"),
}
COLOURS = {"plain": "c2", "fast": "c1", "truncated": "c3"}

Curve = Mapping[int, float]
"""Validation accuracy by step."""


def finished(output: Path, kind: str, seed: int) -> Path:
    """The run's directory, after it has run."""
    path = output / f"{kind}-{seed}"
    if read_state(path).get("status") == "finished":
        return path
    resume = ["--resume"] if path.exists() else []
    return trained(output, path.name, *KINDS[kind], f"seed={seed}", *resume)


def curve_of(run: Path) -> Curve:
    return {int(row["step"]): row["val/gold"] for row in read_metrics(run) if "val/gold" in row}


def final(run: Path) -> float:
    """Of the trained policy, on the problems of the comparison at the end."""
    evaluation = read_evaluation(run) or {}
    (gold,) = (r["kinds"]["all"]["gold"] for r in evaluation["rows"] if r["name"] == TRAINED)
    return gold


def spread(values: Sequence[float]) -> str:
    mean, low, high = (100 * of(values) for of in (statistics.fmean, min, max))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def table(curves: Mapping[str, Sequence[Curve]], finals: Mapping[str, Sequence[float]]) -> str:
    steps = sorted(curves["plain"][0])
    cells = [[kind, *(spread([c[s] for c in curves[kind]]) for s in steps)] for kind in KINDS]
    rows = [[*row, spread(finals[row[0]])] for row in cells]
    head = ["%, mean [least, most]", *(f"step {step}" for step in steps), "comparison"]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(curves: Mapping[str, Sequence[Curve]], file: Path) -> None:
    """Every seed's curve thin, their means bold."""
    steps = sorted(curves["plain"][0])
    values = [value for some in curves.values() for one in some for value in one.values()]
    x, y = svg.across(steps[0], steps[-1]), svg.upward(min(values), max(values))
    drawn = svg.y_axis(y.ticks(), y, svg.short_percent) + svg.x_axis(steps, x, svg.plain, "step")
    for kind, some in curves.items():
        for one in some:
            seed = svg.path([(x(s), y(one[s])) for s in steps])
            drawn.append(el("path", class_=f"curve raw {COLOURS[kind]}", d=seed))
        means = [(s, statistics.fmean(one[s] for one in some)) for s in steps]
        drawn.append(curve(Series(kind, COLOURS[kind], means), x, y))
    panels = [svg.ChartDrawing("Validation accuracy by gold", drawn)]
    file.write_text(picture(panels, [(COLOURS[kind], kind) for kind in curves]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--runs", type=Path, help="a folder that keeps them")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        output = (options.runs or Path(name)).absolute()
        runs = {k: [finished(output, k, s) for s in range(options.seeds)] for k in KINDS}
        curves = {kind: [curve_of(run) for run in some] for kind, some in runs.items()}
        print(table(curves, {kind: [final(run) for run in some] for kind, some in runs.items()}))
        if options.plot:
            plot(curves, options.plot)


if __name__ == "__main__":
    main()
