"""The keys of ``canvas``."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from flowright.config.root import Config
from flowright.environments.workflow.config import ProgramSection


class CanvasSection(ProgramSection):
    """`environment: canvas`: FlowSteer's canvas; see docs/workflows.md."""

    key: ClassVar[str] = "canvas"

    max_rounds: int = Field(default=20, ge=1, le=200)
    """Turns of an attempt, those that write a prompt included; then the canvas runs as it is."""
    feedback: Literal["state", "hint"] = "state"
    """`hint`: with the next action of a scripted expert, for ablations."""
    run_each_edit: bool = False
    """Run the canvas after each edit and show the result. Its calls count as costs."""
    finish_rule: Literal["none", "flowsteer"] = "none"
    """`flowsteer`: at least five operators, a structure, a solver and a check."""
    reward: Literal["judge", "flowsteer"] = "judge"
    """`flowsteer`: -1 + min(1, structure), and the judge's verdict only if structure is 1."""

    def check(self, config: Config) -> None:
        super().check(config)
        if config.executor.models:
            raise ValueError("executor.models: a canvas chooses no models; leave them out")
        if config.reward.budget:
            raise ValueError("reward.budget: a canvas's prompt names none; leave it out")
        if self.reward == "flowsteer" and (config.reward.cost_weight or config.reward.has_terms):
            raise ValueError(
                "canvas.reward: flowsteer is a whole formula; leave reward.cost_weight, terms and "
                "judge_weight out"
            )

    def rewards(self, config: Config) -> Mapping[str, float]:
        return {"canvas.reward": -1.0} if self.reward == "flowsteer" else super().rewards(config)


SECTION = CanvasSection
