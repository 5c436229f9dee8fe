"""One temperature for a judge's scores: fitted as by hand, measured on other conversations."""

import json
import math
import random
from pathlib import Path

import pytest

from flowright.core.errors import DataError
from flowright.core.report import ReportTable, calibration_section
from flowright.data.task import Preferred
from flowright.judging.trained.calibration import (
    COLDEST,
    FILE,
    HOTTEST,
    Calibration,
    ScoredPair,
    calibrate,
    fit_temperature,
    halves,
    read_calibration,
    reliability_of,
    write_calibration,
)


def pairs(*given: tuple[float, Preferred]) -> list[ScoredPair]:
    """Of differences and labels, a conversation each."""
    return [ScoredPair(d, 0.0, label, f"c{n}") for n, (d, label) in enumerate(given)]


def overconfident(count: int, temperature: float) -> list[ScoredPair]:
    """Labels drawn by sigmoid(d / temperature)."""
    draw = random.Random(5)
    found: list[tuple[float, Preferred]] = []
    for _ in range(count):
        d = draw.gauss(0, 4)
        wins = draw.random() < 1 / (1 + math.exp(-d / temperature))
        found.append((d, "first" if wins else "second"))
    return pairs(*found)


def test_three_of_four_right_is_three_quarters_sure():
    some = pairs((2.0, "first"), (2.0, "first"), (-2.0, "second"), (2.0, "second"))
    temperature = fit_temperature(some)
    assert temperature == pytest.approx(2 / math.log(3), rel=1e-9)
    assert Calibration(temperature).preferred(2.0) == pytest.approx(0.75)


def test_a_tie_counts_half_as_either():
    # sigmoid(1 / T) = (1 + 1 + 1/2) / 3 = 5/6, whose log odds are log 5.
    some = pairs((1.0, "first"), (1.0, "first"), (1.0, "tie"))
    assert fit_temperature(some) == pytest.approx(1 / math.log(5), rel=1e-9)


def test_scores_without_a_temperature_have_a_bound_and_say_so():
    assert fit_temperature(pairs((1.0, "first"), (-2.0, "second"))) == COLDEST
    assert fit_temperature(pairs((1.0, "second"), (2.0, "second"))) == HOTTEST
    whole = calibrate(pairs(*[(1.0, "first")] * 40), "told apart")
    assert whole.record["at_bound"] is True


def test_too_sure_a_judge_is_less_so_afterwards_on_other_conversations():
    found = calibrate(overconfident(3000, 3.0), "drawn")
    record = found.record
    assert found.temperature == pytest.approx(3.0, rel=0.15)
    assert record["before"]["error"]["value"] > 0.1
    assert record["after"]["error"]["value"] < 0.04
    for loss in ("log_loss", "brier"):
        before, after = record["before"][loss], record["after"][loss]
        assert after["low"] < after["value"] < after["high"] < before["value"]
    assert record["after"]["error"]["low"] == 0.0 < record["before"]["error"]["low"]
    assert "debiased: " in found.lines()[0]
    assert record["after"]["accuracy"] == record["before"]["accuracy"]
    assert record["fitted"]["conversations"] == record["measured"]["conversations"] == 1500


def test_the_measures_by_hand():
    even = math.log(3)  # a probability of 3/4
    told = reliability_of(pairs((even, "first"), (even, "second"), (0.0, "tie")), 1.0)
    assert told["accuracy"] == 0.5
    assert told["error_plain"]["value"] == pytest.approx(0.25)
    assert told["brier"]["value"] == pytest.approx((1 / 16 + 9 / 16) / 2)
    assert told["log_loss"]["value"] == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4)) / 2)
    (bin_,) = told["reliability"]
    assert (bin_["verdicts"], bin_["confidence"]) == (2, pytest.approx(0.75))
    even_scores = reliability_of(pairs((0.0, "first")), 1.0)
    assert (even_scores["accuracy"], even_scores["brier"]["value"]) == (0.5, 0.25)


def test_a_calibration_of_a_former_version_is_shown():
    record = dict(calibrate(overconfident(60, 2.0), "drawn").record)
    for side in ("before", "after"):
        measured = {k: v for k, v in record[side].items() if k not in ("error_plain", "brier")}
        record[side] = measured | {"log_loss": measured["log_loss"]["value"]}
    section = calibration_section(record)
    assert section is not None and "debiased" not in section.lead
    (table,) = [block for block in section.blocks if isinstance(block, ReportTable)]
    assert [row[0] for row in table.rows] == [
        *("expected calibration error", "log loss a pair", "ranked as preferred"),
    ]


def test_no_conversation_is_on_both_sides_and_the_order_of_pairs_says_nothing():
    some = [ScoredPair(float(n), 0.0, "first", f"c{n % 7}") for n in range(40)]
    fits, measures = halves(some)
    assert not {p.conversation for p in fits} & {p.conversation for p in measures}
    assert len(fits) + len(measures) == 40 and fits and measures
    again, _ = halves(some[::-1])
    assert {p.conversation for p in again} == {p.conversation for p in fits}


def test_an_answer_is_compared_with_an_average_one():
    some = [ScoredPair(3.0, 1.0, "first", f"c{n}") for n in range(30)]
    some += [ScoredPair(3.0, 1.0, "second", f"d{n}") for n in range(12)]
    found = calibrate(some, "two scores")
    assert found.centre == 2.0
    assert found.of_answer(2.0) == 0.5
    assert found.of_answer(3.0) == pytest.approx(found.preferred(1.0))


def test_what_is_kept_is_read_again_and_nothing_else_is(tmp_path: Path):
    assert not read_calibration(tmp_path).is_fitted
    assert "not calibrated" in str(read_calibration(tmp_path))
    found = calibrate(overconfident(60, 2.0), "drawn")
    write_calibration(tmp_path, found)
    again = read_calibration(tmp_path)
    assert (again.temperature, again.centre) == (found.temperature, found.centre)
    fitted = found.record["fitted"]["pairs"]
    assert str(again) == f"temperature {found.temperature:.3g}, fitted on {fitted} pairs"
    for spoilt in ("[]", "{", json.dumps({**found.record, "temperature": 0})):
        (tmp_path / FILE).write_text(spoilt)
        with pytest.raises(DataError, match=r"calibration\.json: not a calibration"):
            read_calibration(tmp_path)


def test_few_pairs_are_refused():
    with pytest.raises(DataError, match=r"few: a half .* needs 10"):
        calibrate(pairs(*[(1.0, "first")] * 12, *[(0.0, "tie")] * 40), "few")
