"""A study's runs, compared in all ways that its report speaks of."""

from collections.abc import Sequence
from dataclasses import dataclass

from flowright.study.cells import Cell
from flowright.study.collect import Collected
from flowright.study.compare import Outcome, Summary, outcomes, summaries
from flowright.study.config import StudyConfig
from flowright.study.detectors import Detector, detectors
from flowright.study.remedies import Remedy, remedies

SUMMARISED = (
    *("final_gold", "final_proxy", "final_gap", "gold_area", "exploitation", "max_share"),
    *("unscored", "calls", "seconds"),
)
"""Measures that are summarised for each arm."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """What came of it: ``decided`` of its claims, ``told`` of its arms, ``alarms`` the best first,
    ``mended`` of its remedies."""

    study: StudyConfig
    cells: Sequence[Cell]
    found: Collected
    decided: Sequence[Outcome]
    told: Sequence[Summary]
    alarms: Sequence[Detector]
    mended: Sequence[Remedy]


def analyse(study: StudyConfig, cells: Sequence[Cell], found: Collected) -> Analysed:
    """Everything that the report says, as numbers."""
    alarms = detectors(study, cells, found)
    return Analysed(
        study=study,
        cells=cells,
        found=found,
        decided=outcomes(study, cells, found),
        told=summaries(study, cells, found, SUMMARISED),
        alarms=alarms,
        mended=remedies(cells, found, alarms),
    )
