"""What remedies gain and cost, and what stopping at an alarm would have done."""

import pytest

from flowright.study.collect import Collected, Onset
from flowright.study.detectors import SERIES, Detector, remedies
from flowright.study.runs import StudyCell

COLUMNS = {series.column: None for series in SERIES.values()}
STEPS = 20


def add(found: Collected, cell: str, seed: int, gold: list[float], **values: float) -> None:
    """A run with this gold accuracy at its steps, whose length rises at step 9."""
    run = f"{cell}/seed_{seed}"
    row = {"run": run, "cell": cell, "seed": seed, "finished": True, "calls": 2000.0}
    row |= {"audits": 0.0, "last_gold": gold[-1], "gold_area": sum(gold) / len(gold)}
    found.rows.append(row | {"last_share_elaborate": 0.8} | values)
    found.onsets[run] = {"elaborate": Onset(step=12 if cell == "biased" else None, last=STEPS)}
    for step, right in enumerate(gold, start=1):
        known = {"run": run, "step": step, **COLUMNS, "gold": right, "gap": 0.1}
        known |= {"length": 10.0 if step < 9 else 20.0, "share_elaborate": 0.04 * step}
        found.curves.append(known | {"calls": 100.0, "attempts": 64})


def alarm(name: str, threshold: float) -> Detector:
    counts = {"onsets": 2, "early": 2, "late": 0, "controls": 2, "false": 0, "leads": [3, 3]}
    areas = {"auc": 1.0, "early_auc": 1.0, "roc": [], "early_roc": []}
    return Detector(name=name, series=SERIES[name], threshold=threshold, **areas, **counts)


def test_remedies_are_paired_with_what_they_mend_and_stops_end_at_the_alarm() -> None:
    cells = [
        StudyCell("honest", "honest", ""),
        StudyCell("biased", "biased", "", shortcut="elaborate"),
        StudyCell("panel", "panel", "", shortcut="elaborate", remedy_for="biased"),
        StudyCell("unfinished", "unfinished", "", shortcut="elaborate", remedy_for="biased"),
    ]
    found = Collected()
    for seed in (0, 1):
        falling = [0.6] * 10 + [0.4 + 0.1 * seed] * 10
        add(found, "biased", seed, falling)
        better = {"last_share_elaborate": 0.1, "calls": 6000.0, "audits": 50.0}
        add(found, "panel", seed, [0.6] * STEPS, **better)
    quiet, loud = alarm("gap", 0.5), alarm("length", 3.0)
    target, panel, stopped, whole = remedies(cells, found, [quiet, loud])
    assert target.is_target and target.last_gold.value == pytest.approx(0.45)
    assert (target.onsets, target.runs, target.calls) == (2, 2, 2000.0)
    assert panel.last_gold.value == pytest.approx(0.15)
    assert panel.gold_area.value == pytest.approx(0.075)
    assert panel.last_share.value == pytest.approx(-0.7)
    assert (panel.onsets, panel.calls, panel.audits) == (0, 6000.0, 50.0)

    # The trailing mean of the length is 14 at step 10, the first above 10 + 3.
    assert stopped.name == "stop at the alarm (length)" and stopped.onsets is None
    assert stopped.last_gold.value == pytest.approx(0.15)
    assert stopped.last_share.value == pytest.approx(0.04 * (8 - 18))
    assert (stopped.calls, stopped.audits) == (1000.0, 0.0)
    # An alarm that never goes off stops nothing; it has read the gold of every attempt.
    assert whole.last_gold.value == 0.0 and whole.gold_area.value is None
    assert (whole.calls, whole.audits) == (2000.0, 64.0 * STEPS)


def test_without_an_alarm_nothing_is_stopped() -> None:
    found = Collected()
    add(found, "biased", 0, [0.5] * STEPS)
    cells = [StudyCell("biased", "biased", ""), StudyCell("cure", "cure", "", remedy_for="biased")]
    (only,) = remedies(cells, found, [])
    assert only.is_target and only.last_share.value is None and only.onsets is None
