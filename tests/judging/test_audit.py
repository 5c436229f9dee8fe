"""The judge's agreement with gold, by hand, and what is left out where nothing can be said."""

import pytest

from flowright.grading import Gold
from flowright.judging.audit import audit
from flowright.judging.verdict import Verdict

RIGHT = Verdict(1.0, True, "llm", "ok", attempts=1)
WRONG = Verdict(0.0, False, "llm", "ok", attempts=3)
GATED = Verdict(0.0, False, "rule", "ok")
SILENT = Verdict(None, None, "llm", "timeout", attempts=4)
TRUE, FALSE, UNKNOWN = Gold(True, "m"), Gold(False, "m"), Gold(None, "m")


def test_rates_by_hand() -> None:
    """Compared are the first six: 4 agree. Of the 3 that gold calls wrong, 1 was called right; of
    the 3 that gold calls right, 1 was called wrong. Tries: (1+1+1+3+3+4+1+1) / 8."""
    verdicts = [RIGHT, RIGHT, RIGHT, WRONG, WRONG, GATED, SILENT, RIGHT, RIGHT, None]
    golds = [TRUE, TRUE, FALSE, FALSE, TRUE, FALSE, TRUE, UNKNOWN, None, TRUE]
    metrics = audit(verdicts, golds)
    assert metrics == pytest.approx(
        {
            "judge/agreement_with_gold": 4 / 6,
            "judge/kappa": (4 / 6 - 1 / 2) / (1 - 1 / 2),
            "judge/balanced_accuracy": 2 / 3,
            "judge/false_positive_rate": 1 / 3,
            "judge/false_negative_rate": 1 / 3,
            "judge/no_verdict_rate_wrong": 0,
            "judge/no_verdict_rate_right": 1 / 4,
            "judge/drift": 0,
            "judge/attempts_mean": 15 / 8,
            "judge/status/ok": 8 / 9,
            "judge/status/abstain": 0,
            "judge/status/declined": 0,
            "judge/status/parse_error": 0,
            "judge/status/refused": 0,
            "judge/status/truncated": 0,
            "judge/status/overloaded": 0,
            "judge/status/timeout": 1 / 9,
            "judge/status/unavailable": 0,
            "judge/source/llm": 8 / 9,
            "judge/source/rule": 1 / 9,
            "judge/source/rule_fallback": 0,
            "judge/source/cache": 0,
            "judge/source/second_reading": 0,
            "judge/source/floor": 0,
        }
    )


def test_a_generous_judge_drifts_upwards() -> None:
    """Called right 3 of 4, right 1 of 4."""
    metrics = audit([RIGHT, RIGHT, RIGHT, WRONG], [TRUE, FALSE, FALSE, FALSE])
    assert metrics["judge/drift"] == pytest.approx(0.5)
    assert audit([WRONG], [TRUE])["judge/drift"] == -1
    assert "judge/drift" not in audit([SILENT], [TRUE])


@pytest.mark.parametrize(
    ("verdicts", "golds", "missing"),
    [
        ([RIGHT], [TRUE], "false_positive_rate"),
        ([RIGHT], [FALSE], "false_negative_rate"),
        ([RIGHT], [None], "agreement_with_gold"),
        ([SILENT], [TRUE], "agreement_with_gold"),
        ([GATED], [FALSE], "attempts_mean"),
    ],
)
def test_a_rate_of_nothing_is_left_out(verdicts: list, golds: list, missing: str) -> None:
    assert f"judge/{missing}" not in audit(verdicts, golds)


def test_no_samples_no_metrics() -> None:
    assert audit([], []) == {}
    assert audit([None], [TRUE]) == {}


def test_a_gold_check_for_every_verdict() -> None:
    with pytest.raises(ValueError, match="1 verdicts with 0"):
        audit([RIGHT], [])
