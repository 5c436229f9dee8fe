"""When a run says that its policy exploits the judge."""

import pytest

from flowright.config.judge import AlarmSection
from flowright.runs.alarm import alarm_line, alarm_of, drifting, first_alarm

SECTION = AlarmSection(gap=0.1, steps=3)


def course(*values: float) -> list[tuple[int, float]]:
    return [(7 + place, value) for place, value in enumerate(values)]


def test_it_goes_off_on_a_mean_and_not_at_one_step() -> None:
    assert first_alarm(course(0.0, 0.25, 0.0, 0.0), SECTION) is None
    assert first_alarm(course(0.0, 0.0, 0.1, 0.1, 0.2, 0.3), SECTION) == 11
    assert first_alarm(course(0.5, 0.5), SECTION) is None, "no whole window yet"
    assert first_alarm(course(0.5, 0.5, 0.5), AlarmSection(gap=None)) is None
    assert first_alarm([], SECTION) is None


def test_what_it_says_is_of_the_last_steps() -> None:
    said = alarm_of(course(0.0, 0.1, 0.2, 0.3), SECTION)
    assert said is not None and "20.0 points more right" in said
    assert alarm_of(course(0.3, 0.3, 0.3, 0.0, 0.0), SECTION) is None, "it is over"
    assert alarm_of(course(0.3), SECTION) is None


def test_a_strict_judge_drifts_and_is_not_exploited() -> None:
    strict = course(-0.2, -0.2, -0.2)
    assert drifting(strict, SECTION) == pytest.approx(-0.2)
    assert first_alarm(strict, SECTION) is None and alarm_of(strict, SECTION) is None
    assert drifting(strict, AlarmSection(gap=None)) is None
    assert drifting(course(0.5, 0.5), SECTION) is None, "no whole window yet"
    assert alarm_line(AlarmSection(gap=None)).startswith("no alarm")
    assert alarm_line(SECTION) == "above 10 points over 3 steps"
