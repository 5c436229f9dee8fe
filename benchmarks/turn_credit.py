"""Does credit reach the turns? The games of ``config/games.yaml``, seed by seed, with each way to
credit turns, and the same with credit shuffled among what it compares, which should learn nothing.

Whole runs: the embedded policy, which is cold-started once for each game, before and after, on
tasks held out. ``chance`` and ``optimum`` are computed from the rules. CPU seconds are those of the
whole command, loading and both evaluations included, and of the first run of a game its cold start,
too. Runs that ``--runs`` has already are not run again.

    python benchmarks/turn_credit.py [--arms grid:gigpo grid:outcome number:gigpo:shuffled]
        [--seeds 3] [--runs DIR] [--set grpo.steps=20 ...] [--plot FILE.svg]
"""

import argparse
import json
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from quickstart import trained

from flowright.evaluation.comparison import TRAINED, UNTRAINED
from flowright.runs.run_files import read_evaluation, read_metrics, read_state
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import Series, curve, picture
from flowright.viewer.rendering.markup import Html, el

CREDITS = ("outcome", "discounted", "gigpo")
COLOURS = ("c1", "c2", "c3", "c4")
SETTINGS = {
    "grid": [],
    # A leash to the cold start, which guesses evenly: without one the first guess is settled before
    # the later ones are any good, and so before it matters which it is.
    "number": ["grpo.kl_coefficient=0.15", "grpo.steps=160", "evaluation.final_samples=25"],
}
ARMS = [
    *(f"grid:{credit}{more}" for credit in CREDITS for more in ("", ":shuffled")),
    *("number:gigpo", "number:gigpo:shuffled"),
]


def measured(output: Path, arm: str, seed: int, more: Sequence[str]) -> dict[str, Any]:
    """Return chance, optimum, mean rewards before and after, and the CPU seconds of a run."""
    name = name_of(arm, seed)
    kept = output / f"{name}.json"
    if not kept.exists():
        game, credit, *shuffled = arm.split(":")
        settings = [f"games.game={game}", f"grpo.turns.credit={credit}", f"seed={seed}"]
        settings += [*SETTINGS[game], *more]
        settings += ["grpo.advantage_scale=benchmarks.shuffled:shuffled"] * bool(shuffled)
        begun = cpu_seconds()
        run = trained(output, name, "--config", "config/games.yaml", *settings)
        spent, state = cpu_seconds() - begun, read_state(run)
        rows = {r["name"]: r for r in (read_evaluation(run) or {})["rows"]}
        found = {key: state[key] for key in ("chance", "optimum")}
        for key, row in (("before", UNTRAINED), ("after", TRAINED)):
            found[key] = rows[row]["kinds"]["all"]["reward"]
        kept.write_text(json.dumps(found | {"seconds": spent}))
    return json.loads(kept.read_text())


def name_of(arm: str, seed: int) -> str:
    return f"{arm.replace(':', '-')}-{seed}"


def plot(output: Path, arms: Sequence[str], seeds: int, file: Path) -> None:
    """Mean reward of the sampled attempts by step: seeds thin, their mean bold; a panel a game."""
    panels: list[svg.ChartDrawing] = []
    colours = dict(zip(dict.fromkeys(arm.partition(":")[2] for arm in arms), COLOURS, strict=False))
    for game in dict.fromkeys(arm.partition(":")[0] for arm in arms):
        drawn: list[Html] = []
        for arm in (arm for arm in arms if arm.startswith(f"{game}:")):
            rows = [read_metrics(output / name_of(arm, seed))[1:] for seed in range(seeds)]
            curves = [[row["reward/mean"] for row in run] for run in rows]
            steps = len(curves[0])
            x, y = svg.across(1, steps), svg.upward(0.0, 1.0)
            drawn = drawn or svg.y_axis(y.ticks(), y, svg.plain) + svg.x_axis(
                [1, steps // 2, steps], x, svg.plain, "step"
            )
            colour = colours[arm.partition(":")[2]]
            for values in curves:
                seed = svg.path([(x(s), y(v)) for s, v in enumerate(values, start=1)])
                drawn.append(el("path", class_=f"curve raw {colour}", d=seed))
            means = [(s, fmean(some)) for s, some in enumerate(zip(*curves, strict=True), start=1)]
            drawn.append(curve(Series(arm, colour, means), x, y))
        panels.append(svg.ChartDrawing(f"{game}: mean reward of sampled attempts", drawn))
    legend = [(colour, name.replace(":", ", ")) for name, colour in colours.items()]
    file.write_text(picture(panels, legend), encoding="utf-8")


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--arms", nargs="+", default=ARMS, help="game:credit, or :shuffled behind")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, help="a folder that keeps them")
    parser.add_argument("--set", nargs="+", default=[], help="settings of all runs")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    options = parser.parse_args()
    print("| arm | chance | optimum | before | after | share of the optimum | CPU seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        output = (options.runs or Path(folder)).absolute()
        output.mkdir(parents=True, exist_ok=True)
        for arm in options.arms:
            runs = [measured(output, arm, seed, options.set) for seed in range(options.seeds)]
            cells = [f"{runs[0][key]:.2f}" for key in ("chance", "optimum")]
            for key, digits in (("before", 2), ("after", 2)):
                cells.append(", ".join(f"{run[key]:.{digits}f}" for run in runs))
            cells.append(", ".join(f"{run['after'] / run['optimum']:.2f}" for run in runs))
            cells.append(", ".join(f"{run['seconds']:.0f}" for run in runs))
            print(f"| {arm} | {' | '.join(cells)} |", flush=True)
        if options.plot:
            plot(output, options.arms, options.seeds, options.plot)


if __name__ == "__main__":
    main()
