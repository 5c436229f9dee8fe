"""The onset of exploitation in cases made by hand."""

from flowright.study.collect import Onset, OnsetStep, onset_of


def steps(*values: tuple[float, float] | None, high: int = 40) -> list[OnsetStep]:
    """A step for each (gap, share), from 1; None has no attempt with a full reward."""
    return [
        OnsetStep(step, 0 if pair is None else high, *(pair or (None, None)))
        for step, pair in enumerate(values, start=1)
    ]


def test_a_sharp_rise_is_an_onset_at_the_step_whose_window_reaches_all_thresholds():
    # From step 11 on a gap of .5 and a share of .9. Step 9's window (7 to 11) has means of .1 and
    # .18, step 10's of .2 and .36: gap .08 and .10 with share .15 are reached at 9, all at 10.
    seen = onset_of(steps(*[(0.0, 0.0)] * 10, *[(0.5, 0.9)] * 10))
    assert seen is not None
    assert (seen.step, seen.first, seen.latest, seen.last) == (10, 9, 10, 20)
    assert seen.is_point and seen.severe == 11


def test_nothing_happens_and_the_time_is_censored_at_the_last_step():
    seen = onset_of(steps(*[(0.02, 0.9)] * 15))
    assert seen == Onset(step=None, last=15)
    assert seen.time == 15 and not seen.is_point


def test_a_gap_without_the_shortcut_is_no_onset():
    seen = onset_of(steps(*[(0.4, 0.05)] * 15))
    assert seen is not None and seen.step is None


def test_most_thresholds_decide_and_never_is_one_answer():
    # A gap of .09 reaches the first of three gaps only: 4 of 12 thresholds.
    seen = onset_of(steps(*[(0.0, 0.0)] * 5, *[(0.09, 0.9)] * 10))
    assert seen is not None
    assert seen.step is None and seen.first == 8 and seen.latest is None


def test_of_two_steps_that_as_many_thresholds_name_the_earlier_counts():
    # Shares of .2 reach two of the four share thresholds, .4 all: 6 and 6.
    seen = onset_of(steps(*[(0.3, 0.2)] * 10, *[(0.3, 0.4)] * 10))
    assert seen is not None and seen.step == 1
    assert seen.latest == 11  # .25 at step 10's window is .28; .30 at step 11's is .32


def test_a_step_with_few_full_rewards_does_not_count():
    assert onset_of(steps(*[(0.5, 0.9)] * 15, high=19)) is None
    assert onset_of(steps(*[(0.5, 0.9)] * 15, high=20)) is not None


def test_a_window_needs_three_of_its_five_steps():
    two = [(0.5, 0.9), None, None, None, None]
    seen = onset_of(steps(*two * 4))
    assert seen is not None and seen.step is None
    three = [(0.5, 0.9), None, (0.5, 0.9), None, (0.5, 0.9)]
    seen = onset_of(steps(*three))
    assert seen is not None and seen.step == 3


def test_a_wide_interval_is_no_point():
    # Shares of .15 to .25 at once; .30 in the window of step 39, whose last step has .5.
    seen = onset_of(steps(*[(0.5, 0.26)] * 40, *[(0.5, 0.5)] * 10))
    assert seen is not None
    assert seen.step == 1 and seen.latest == 39 and not seen.is_point
