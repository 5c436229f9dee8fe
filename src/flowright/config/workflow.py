"""The keys of `workflow`, `executor`, `reward`, `sandbox`: how workflows run, what they earn."""

from typing import Literal

from pydantic import Field, model_validator

from flowright.config.section import Positive, Seconds, Section


class RewardSection(Section):
    """What each outcome of an attempt is worth."""

    invalid: float = Field(
        default=-0.2, description="A program that cannot be parsed or validated."
    )
    crashed: float = Field(default=-0.1, description="A program that fails while running.")
    wrong: float = Field(default=0.0, description="An answer that the judge calls wrong.")
    right: float = Field(default=1.0, description="An answer that the judge calls right.")
    cost_weight: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="Ranks right answers of a group by tokens; 0 turns it off.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "RewardSection":
        if not self.invalid <= self.crashed <= self.wrong < self.right:
            raise ValueError("must be ordered invalid <= crashed <= wrong < right")
        return self


class WorkflowSection(Section):
    """Budgets of one workflow. Exceeding one is the policy's fault."""

    max_llm_calls: Positive = Field(default=16, description="Calls of the large model.")
    max_tokens: Positive = Field(
        default=64_000, description="Prompt and completion tokens together."
    )
    max_concurrency: Positive = Field(
        default=8, description="Operator calls of one workflow in flight."
    )
    own_seconds: Seconds = Field(default=2.0, description="The program's own computing.")
    total_seconds: Seconds = Field(default=600.0, description="Waiting for the model included.")
    memory_mb: Positive = Field(default=64, description="Of the program, in MiB.")
    max_prompt_chars: Positive = Field(
        default=60_000, description="Of one operator call's arguments."
    )
    max_answer_chars: Positive = Field(default=20_000, description="Of the final answer.")
    workers: int = Field(
        default=0, ge=0, description="Interpreter processes; 0 means one per core."
    )
    in_flight: Positive = Field(default=256, description="Workflows running at once.")
    operators: tuple[str, ...] = Field(
        default=(),
        description="Modules with operators of your own, such as `[my_package.tools]`, beside the "
        "built-in ones.",
    )


class ExecutorSection(Section):
    """How operators ask the large model."""

    temperature: float = Field(default=0.7, ge=0, description="Of the operators' requests.")
    max_tokens: Positive = Field(default=4096, description="Completion budget of one call.")
    reasoning_effort: Literal["low", "medium", "high"] | None = Field(
        default=None, description="Sent with requests to reasoning models; default: not sent."
    )
    programmer_tries: Positive = Field(default=3, description="Programs written before giving up.")


class SandboxSection(Section):
    """Limits of the code that the policy or the large model wrote."""

    cpu_seconds: Seconds = Field(
        default=5.0, description="CPU time of one execution; ten times as long on the wall clock."
    )
    memory_mb: Positive = Field(default=512, description="Of one execution, in MiB.")
    workers: int = Field(default=0, ge=0, description="Executions at once; 0 means one per core.")
    allow_weaker: bool = Field(
        default=False, description="Start with less isolation than required; shown on every screen."
    )
