"""The keys of `presentation`: the small world in which a judge's bias can be exploited."""

from typing import Literal

from pydantic import Field

from flowright.config.section import Fraction, Section


class PresentationSection(Section):
    """With `environment: presentation` the policy chooses how a small question is solved and how
    the answer is presented, and the embedded judge decides what that earns. All of it is planted
    and simulated; see docs/study.md."""

    train: int = Field(default=2000, ge=1, le=12_000)
    """Questions to train on; the same for every seed of the run."""
    held_out: int = Field(default=200, ge=1, le=2_000)
    """Held-out questions."""
    reward: Literal["judge", "gold", "random", "panel"] = "judge"
    """`judge`: the verdict of the embedded judge; `panel`: the majority of three with draws of
    their own, of which one has the biases; `gold`: whether the answer is right; `random`: the
    judge's rewards of a group, dealt out anew among its attempts."""
    correction: Literal["none", "backward"] = "none"
    """`backward`: (R - r0) / (1 - r0 - r1) with the configured error rates, r0 being
    `simulated.judge_false_positive` and r1 what `judge_true_positive` lacks of 1 (arXiv
    2510.00915)."""
    failures: Literal["left_out", "zero"] = "left_out"
    """What becomes of an attempt that the judge gave no verdict on. `zero` scores it 0, which
    Flowright does nowhere else: it is there to show what others' trainers do."""
    length_failures: Fraction = 0.0
    """Share of the longest texts that the judge fails on, as one with a time limit does; in
    proportion less of shorter ones. Beside `simulated.faults`, which don't look at the text."""
    gold_audit: Fraction = 0.0
    """Share of the attempts whose reward is gold instead, drawn by a hash."""
