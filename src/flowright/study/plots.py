"""All plots of a study, by group and name: a page shows them, and files of their own keep them."""

from collections.abc import Mapping

from flowright.study import figures
from flowright.study.analysis import Analysed
from flowright.study.drawings import Chart

Plots = Mapping[str, Mapping[str, Chart | None]]
"""By group and name; None where nothing is to be drawn."""


def plots_of(seen: Analysed) -> Plots:
    """``learning`` of the strongest doses and ``learning_others``, ``paths`` of means over seeds,
    ``onsets``, ``doses``, ``errors`` (two parameters) and ``alarms``."""
    study, cells, found = seen.study, seen.cells, seen.found
    runs = figures.by_cell(cells, found)
    chosen = figures.strongest(study, cells)
    learning = {cell.name: figures.learning(cell, runs[cell.name], found) for cell in cells}
    names = [cell.name for cell in chosen]
    biased = figures.biased(study, cells)
    early, whole = (figures.roc(seen.alarms, early=each) for each in (True, False))
    return {
        "learning": {name: learning[name] for name in names},
        "learning_others": {n: chart for n, chart in learning.items() if n not in names},
        "paths": {
            "gold_against_kl": figures.gold_against_kl(biased, runs),
            "gap_and_share": figures.gap_and_share(biased, runs),
        },
        "onsets": figures.survivals(study, cells, found),
        "doses": _doses(seen),
        "errors": {
            f"{arm.name} {measure}": figures.two_parameters(
                arm.name, cells, found, study.control, measure
            )
            for arm in study.arms
            if len(arm.over) == 2
            for measure in ("gold_area", "final_gold", "exploitation")
        },
        "alarms": {"warning": early, "audit": whole},
    }


def _doses(seen: Analysed) -> dict[str, Chart | None]:
    study = seen.study
    control = next((s for s in seen.told if s.cell.name == study.control), None)
    return {
        arm.name: figures.dose_response(
            arm.name,
            seen.told,
            (arm.control_at, control) if arm.control_at is not None and control else None,
        )
        for arm in study.arms
        if len(arm.over) == 1
    }
