"""The keys of `presentation`: the small world in which a judge's bias can be exploited."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from flowright.config.llm import SIMULATED
from flowright.config.root import Config, EnvironmentSection
from flowright.config.section import Fraction


class PresentationSection(EnvironmentSection):
    """`environment: presentation`: a planted, simulated world in which a judge's bias can be
    exploited; see docs/study.md."""

    key: ClassVar[str] = "presentation"

    train: int = Field(default=2000, ge=1, le=12_000)
    """Questions to train on."""
    held_out: int = Field(default=200, ge=1, le=2_000)
    """Held-out questions."""
    reward: Literal["judge", "gold", "random", "panel"] = "judge"
    """The embedded judge's verdict, gold, the judge's rewards shuffled within the group, or the
    majority of one biased and two unbiased judges."""
    correction: Literal["none", "backward"] = "none"
    """`backward`: (R - r0) / (1 - r0 - r1), with r0 `simulated.judge_false_positive` and r1 one
    less `judge_true_positive` (arXiv 2510.00915)."""
    failures: Literal["left_out", "zero"] = "left_out"
    """Attempts without a verdict; `zero` scores them 0, as some trainers do."""
    length_failures: Fraction = 0.0
    """Failure rate of the judge on the longest texts; scales with length."""
    gold_audit: Fraction = 0.0
    """Share of the attempts rewarded by gold, drawn by a hash."""

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
                "judge_false_positive: other verdicts carry no information"
            )

    def rewards(self, config: Config) -> Mapping[str, float]:
        return {"reward.invalid": config.reward.invalid, "reward.wrong": config.reward.wrong}

    def problems_from(self, config: Config) -> str:
        return f"small questions (planted, simulated), rewarded by {self.reward}"

    def models(self, config: Config) -> frozenset[str]:
        """Return no names: no server answers or judges."""
        return frozenset()


SECTION = PresentationSection
