"""The keys of `policy.warm_start`: supervised training of a policy that cannot do its task yet, and
those of any supervised training.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from flowright.config.grpo import SCHEDULES
from flowright.config.section import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
)


class SftSection(Section):
    """Supervised training on completions; the prompts are no part of the loss."""

    steps: Positive = 48
    """Optimizer steps."""
    prompts_per_step: Positive = 8
    """Prompts of a step."""
    learning_rate: PositiveFloat = 1e-3
    """Of AdamW on the adapter, after the warm-up."""
    warmup_steps: NonNegative = 4
    """Steps of linear warm-up."""
    schedule: Annotated[str, AfterValidator(SCHEDULES.check)] = "linear"
    """Course of the learning rate after the warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's, decoupled."""
    max_grad_norm: PositiveFloat = 1.0
    """Larger gradients are scaled down to this norm."""


class WarmStartSection(SftSection):
    """`python scripts/warm_start.py`: supervised training on completions that the environment draws
    and that passed on train problems."""

    folder: Path | None = None
    """Where the warm-started model is put, and what the policy of a run then starts from. Default:
    none, the policy starts as `strategy_model`."""
    problems: Positive = 120
    """Train problems that completions are drawn for."""
    completions: Positive = 24
    """Drawn for each of them; equal ones count once."""
    attempts: Positive = 1
    """So often each is run."""
    least_passed: float = Field(default=0.5, gt=0, le=1)
    """Kept are those of whose attempts at least this share passed."""
    completions_per_prompt: Positive = 4
    """Of those kept for a problem, drawn anew whenever a step trains on it."""
    enough_valid: Fraction = 0.8
    """No warm start is needed where so many of the policy's own completions are valid."""
    probes: Positive = 24
    """Other train problems, on which that is measured before and after."""
    probe_samples: Positive = 2
    """Completions sampled for each of those."""
    seed: int = 0
    """Of every draw, and of the adapter's first weights."""
