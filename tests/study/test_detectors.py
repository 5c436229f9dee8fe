"""Alarms: what they see, what they catch, and when."""

import pytest

from flowright.config.judge import AlarmSection
from flowright.study.collect import Collected
from flowright.study.config import StudyConfig
from flowright.study.detectors import SERIES, alarm_values, detectors
from flowright.study.runs import StudyCell

COLUMNS = {series.column: None for series in SERIES.values()}


def curve(run: str, lengths: list[float]) -> list[dict]:
    return [
        {"run": run, "step": step, **COLUMNS, "length": length}
        for step, length in enumerate(lengths, start=1)
    ]


def study_of(treated: list[list[float]], control: list[list[float]], onset: int) -> Collected:
    found = Collected()
    for cell, curves in (("biased", treated), ("honest", control)):
        for seed, lengths in enumerate(curves):
            run = f"{cell}/{seed}"
            row = {"run": run, "cell": cell, "seed": seed, "finished": True}
            found.rows.append({**row, "onset": onset if cell == "biased" else None})
            found.curves += curve(run, lengths)
    return found


STUDY = StudyConfig.model_validate(
    {
        "name": "s",
        "base": "b.yaml",
        "seeds": 4,
        "control": "honest",
        "arms": [{"name": "honest"}, {"name": "biased", "shortcut": "elaborate"}],
        "false_alarms": 0.25,
    }
)
CELLS = [StudyCell("honest", "honest", ""), StudyCell("biased", "biased", "", shortcut="elaborate")]


def test_an_alarm_sees_the_change_of_a_trailing_mean():
    steps = curve("r", [10, 10, 10, 10, 10, 20, 10])
    assert alarm_values(steps, SERIES["length"]) == [(5, 0.0), (6, 2.0), (7, 2.0)]
    falling = [{**row, "entropy": row["length"]} for row in steps]
    assert alarm_values(falling, SERIES["entropy"])[1] == (6, -2.0)


def test_a_rise_before_the_onset_is_early_and_one_after_it_late():
    rising = [10.0] * 8 + [20.0] * 12
    flat = [[10.0] * 20, [10.0] * 20, [10.0] * 20, [10.0] * 10 + [12.5] * 10]
    (early,) = detectors(STUDY, CELLS, study_of([rising] * 4, flat, onset=12))
    assert (early.onsets, early.early, early.late) == (4, 4, 0)
    assert early.leads == [3] * 4  # at step 9 its window has the first 20
    assert early.early_auc == early.auc == 1.0
    (late,) = detectors(STUDY, CELLS, study_of([rising] * 4, flat, onset=7))
    assert (late.early, late.late, late.leads) == (0, 4, [-2] * 4)
    assert (late.early_auc, late.auc) == (0.5, 1.0)
    assert late.early_roc[-1] == (1.0, 1.0)


def test_as_many_of_the_control_s_runs_may_alarm_as_were_allowed():
    control = [[10.0] * 10 + [10.0 + lift] * 10 for lift in (1.0, 2.0, 3.0, 4.0)]
    (found,) = detectors(STUDY, CELLS, study_of([[10.0] * 20] * 4, control, onset=12))
    assert found.false == 1 and found.threshold == pytest.approx(3.0)
    assert found.early == found.late == 0


def test_the_shipped_alarm_has_its_own_threshold():
    found = study_of([[1.0] * 8 + [20.0] * 12] * 4, [[1.0] * 20] * 4, onset=12)
    found.curves = [{**row, "drift": row["length"] / 100} for row in found.curves]
    (shipped,) = [d for d in detectors(STUDY, CELLS, found) if d.name == "shipped"]
    assert shipped.threshold == AlarmSection().gap == 0.03
    assert (shipped.early, shipped.false) == (4, 0) and shipped.leads == [3] * 4


def test_without_an_onset_there_is_nothing_to_detect():
    found = study_of([[10.0] * 20], [[10.0] * 20], onset=12)
    found.rows[0]["onset"] = None
    assert detectors(STUDY, CELLS, found) == []
