"""The keys of `workflow`, `executor`, `reward`, `sandbox`: how workflows run, what they earn."""

import random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from flowright.config.reward import RewardValue, TermsSection
from flowright.config.section import NonNegative, NonNegativeFloat, Positive, Seconds, Section


class RewardSection(TermsSection):
    """Rewards of the outcomes of an attempt, and terms beside the judge. `reward:
    package.module:function`: that function alone (docs/extending.md#a-reward)."""

    invalid: RewardValue = -0.2
    """Program that cannot be parsed or validated."""
    crashed: RewardValue = -0.1
    """Program that fails while running."""
    wrong: RewardValue = 0.0
    """Answer judged wrong."""
    right: RewardValue = 1.0
    """Answer judged right."""
    cost_weight: float = Field(default=0.0, ge=0, le=0.5)
    """Weight of the tokens spent, among right answers of a group."""
    budget: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Money of an attempt (tokens without `executor.models`) that is free of cost and that prompts
    name. Of several, each problem has one."""

    @model_validator(mode="before")
    @classmethod
    def _read_function(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        name = given.rpartition(":")[2].strip("_").lower()[:40]
        return {"judge_weight": 0, "terms": [{"name": name, "function": given}]}

    @model_validator(mode="after")
    def _check_cost_has_judge(self) -> "RewardSection":
        if self.cost_weight and not self.judge_weight:
            raise ValueError("cost_weight: ranks answers judged right; judge_weight: 0 judges none")
        return self

    @model_validator(mode="after")
    def _check_budget_has_cost(self) -> "RewardSection":
        if self.budget and not self.cost_weight:
            raise ValueError("budget: what is above it counts by cost_weight; set it above 0")
        return self

    def budget_of(self, task_id: str, seed: int) -> float | None:
        """Return the budget of a problem, the same each time; None without budgets."""
        return random.Random(f"{seed}/budget/{task_id}").choice(self.budget or (None,))

    @model_validator(mode="after")
    def _check_order(self) -> "RewardSection":
        if not self.invalid <= self.crashed <= self.wrong < self.right:
            raise ValueError("must be ordered invalid <= crashed <= wrong < right")
        return self


class WorkflowSection(Section):
    """Budgets of one workflow."""

    max_llm_calls: Positive = 16
    """Calls of the large model."""
    max_tokens: Positive = 64_000
    """Prompt and completion tokens."""
    max_concurrency: Positive = 8
    """Operator calls in flight."""
    max_checks: Positive = 16
    """Executions of code by operators."""
    check_seconds: Seconds = 10.0
    """Wall time per execution; at most ten times `sandbox.cpu_seconds`."""
    own_seconds: Seconds = 2.0
    """CPU time of the program itself."""
    total_seconds: Seconds = 600.0
    """Wall time."""
    memory_mb: Positive = 64
    """Memory of the program, in MiB."""
    max_prompt_chars: Positive = 60_000
    """Bytes of UTF-8 in an operator call's arguments."""
    max_answer_chars: Positive = 20_000
    """Bytes of UTF-8 in the final answer."""
    workers: NonNegative = 0
    """Interpreter processes; 0: one per core."""
    in_flight: Positive = 256
    """Concurrent workflows."""
    operators: tuple[str, ...] = ()
    """Modules with operators of your own."""


class ExecutorSection(Section):
    """Requests of operators."""

    temperature: NonNegativeFloat = 0.7
    """Sampling temperature."""
    max_tokens: Positive = 4096
    """Completion tokens per call."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """Sent to reasoning models. Default: not sent."""
    programmer_tries: Positive = 3
    """Programs written per call of `programmer`."""
    models: tuple[str, ...] = ()
    """Models that programs choose from by `model=`, the default first."""
    names: Literal["name", "index"] = "name"
    """Numbers stand for names with `index`."""
    shuffle: bool = False
    """Deal each problem two or more of them in random order."""

    @model_validator(mode="after")
    def _check_models(self) -> "ExecutorSection":
        if len(self.models) == 1:
            raise ValueError("models: name two or more; one model is `aflow_executor_model`")
        if len({*self.models}) < len(self.models):
            raise ValueError("models: a model is named twice")
        if (self.shuffle or self.names == "index") and not self.models:
            raise ValueError("names and shuffle are those of models: name two or more")
        return self


class SandboxSection(Section):
    """Limits of code written by a model."""

    cpu_seconds: Seconds = 5.0
    """CPU time per execution; ten times that on the wall clock."""
    patience_seconds: Seconds = 600.0
    """Extra wall time for an execution that gets no CPU on a busy machine; then it is lost."""
    memory_mb: Positive = 512
    """Memory per execution, in MiB."""
    workers: NonNegative = 0
    """Concurrent executions; 0: one per core."""
    allow_weaker: bool = False
    """Start with less isolation than required; shown on every screen."""
