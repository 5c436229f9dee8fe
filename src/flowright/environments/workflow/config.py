"""The keys of ``workflow`` as the section of an environment, and those of others that run
programs."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from flowright.config.root import Config, EnvironmentSection
from flowright.config.section import Positive
from flowright.config.workflow import WorkflowSection

Feedback = Literal["error", "result", "full"]


class ProgramSection(WorkflowSection, EnvironmentSection):
    """Section of an environment whose attempts are run as workflows."""

    reads_datasets: ClassVar[bool] = True
    has_terms: ClassVar[bool] = True

    def check(self, config: Config) -> None:
        if config.judge.ask in ("pairwise", "rubric"):
            raise ValueError(
                f"judge.ask: {config.judge.ask} does not fit: answers of workflows are judged one "
                "by one against a reference; use true_false, score, pointwise or multi_aspect"
            )

    def compares_answers(self, config: Config) -> bool:
        return True

    def rewards(self, config: Config) -> Mapping[str, float]:
        reward = config.reward
        outcomes = ("invalid", "crashed", "wrong", "right")
        return {f"reward.{name}": getattr(reward, name) for name in outcomes}

    def budget(self) -> WorkflowSection:
        return self


class WorkflowConfig(ProgramSection):
    __doc__ = WorkflowSection.__doc__

    key: ClassVar[str] = "workflow"

    turns: Positive = 1
    """Programs of an attempt: after each but the last it is run, and the policy sees the outcome
    and edits, rewrites or submits it (docs/workflows.md#several-turns)."""
    feedback: Feedback = "full"
    """Between turns: that and where it failed (`error`); answer and public tests, too (`result`);
    and operators, votes, calls and tokens (`full`)."""


SECTION = WorkflowConfig
