"""The keys of `workflow`, `executor`, `reward`, `sandbox`: how workflows run, what they earn."""

from typing import Literal

from pydantic import Field, model_validator

from flowright.config.section import NonNegative, NonNegativeFloat, Positive, Seconds, Section


class RewardSection(Section):
    """What each outcome of an attempt is worth."""

    invalid: float = -0.2
    """A program that cannot be parsed or validated."""
    crashed: float = -0.1
    """A program that fails while running."""
    wrong: float = 0.0
    """An answer that the judge calls wrong."""
    right: float = 1.0
    """An answer that the judge calls right."""
    cost_weight: float = Field(default=0.0, ge=0, le=0.5)
    """Ranks right answers of a group by tokens; 0 turns it off."""

    @model_validator(mode="after")
    def _ordered(self) -> "RewardSection":
        if not self.invalid <= self.crashed <= self.wrong < self.right:
            raise ValueError("must be ordered invalid <= crashed <= wrong < right")
        return self


class WorkflowSection(Section):
    """Budgets of one workflow. Exceeding one is the policy's fault."""

    max_llm_calls: Positive = 16
    """Calls of the large model."""
    max_tokens: Positive = 64_000
    """Prompt and completion tokens together."""
    max_concurrency: Positive = 8
    """Operator calls of one workflow in flight."""
    max_checks: Positive = 16
    """Runs of code by `test`, `programmer` and operators of your own; one at a time."""
    check_seconds: Seconds = 10.0
    """Wall time of one such run; at most ten times `sandbox.cpu_seconds`."""
    own_seconds: Seconds = 2.0
    """CPU time of the program's own computing."""
    total_seconds: Seconds = 600.0
    """Waiting for the model included."""
    memory_mb: Positive = 64
    """Of the program, in MiB."""
    max_prompt_chars: Positive = 60_000
    """Of one operator call's arguments. A character counts as its bytes in UTF-8, so that no text
    has more tokens than this."""
    max_answer_chars: Positive = 20_000
    """Of the final answer, counted alike."""
    workers: NonNegative = 0
    """Interpreter processes; 0 means one per core."""
    in_flight: Positive = 256
    """Workflows running at once."""
    operators: tuple[str, ...] = ()
    """Modules with operators of your own, such as `[my_package.tools]`, beside the built-in
    ones."""


class ExecutorSection(Section):
    """How operators ask the large model."""

    temperature: NonNegativeFloat = 0.7
    """Of the operators' requests."""
    max_tokens: Positive = 4096
    """Completion budget of one call."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """Sent with requests to reasoning models; default: not sent."""
    programmer_tries: Positive = 3
    """Programs written before giving up."""


class SandboxSection(Section):
    """Limits of the code that the policy or the large model wrote."""

    cpu_seconds: Seconds = 5.0
    """CPU time of one execution; ten times as long on the wall clock."""
    patience_seconds: Seconds = 600.0
    """How much longer an execution may go on that gets no CPU on a busy machine; after that it is
    lost, and what it was to grade is unscored."""
    memory_mb: Positive = 512
    """Of one execution, in MiB."""
    workers: NonNegative = 0
    """Executions at once; 0 means one per core."""
    allow_weaker: bool = False
    """Start with less isolation than required; shown on every screen."""
