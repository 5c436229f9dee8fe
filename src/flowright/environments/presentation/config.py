"""The keys of `presentation`: the small world in which a judge's bias can be exploited."""

from typing import ClassVar, Literal

from pydantic import Field

from flowright.config.llm import SIMULATED
from flowright.config.root import Config, EnvironmentSection
from flowright.config.section import Fraction


class PresentationSection(EnvironmentSection):
    """With `environment: presentation` the policy chooses how a small question is solved and how
    the answer is presented, and the embedded judge decides what that earns. All of it is planted
    and simulated; see docs/study.md."""

    key: ClassVar[str] = "presentation"

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

    def check(self, config: Config) -> None:
        judge, rates = config.judge, config.simulated
        other = judge.service is not None or judge.mode != "judge" or bool(judge.panel)
        if other or config.judge_model != SIMULATED:
            raise ValueError(
                "judge: environment: presentation has the embedded judge, in this process; leave "
                "model, service, mode and panel out (presentation.reward: panel is one)"
            )
        corrects = self.correction == "backward"
        if corrects and rates.judge_true_positive <= rates.judge_false_positive:
            raise ValueError(
                "presentation.correction: backward needs simulated.judge_true_positive above "
                "judge_false_positive: a judge without either says nothing that could be corrected"
            )

    def problems_from(self, config: Config) -> str:
        return f"small questions (planted, simulated), rewarded by {self.reward}"

    def held_out_from(self, config: Config) -> str:
        return f"held out of {self.problems_from(config)}"

    def models(self, config: Config) -> frozenset[str]:
        """Return no names: no server answers or judges."""
        return frozenset()


SECTION = PresentationSection
