"""The learning rate of a step: a function of the step alone, so that a resumed run needs no state.

A schedule is a function of the share of the run that is done after the warm-up, 0 to 1.
"""

import math

from flowright.config.grpo import GrpoSection
from flowright.grpo.tables import SCHEDULES


def learning_rate(section: GrpoSection, step: int) -> float:
    """The rate of a step (the first is 1): linear warm-up, then as ``schedule`` has it."""
    share = section.warmup_share
    warmup = section.warmup_steps if share is None else round(share * section.steps)
    if step <= warmup:
        return section.learning_rate * step / warmup
    span = max(1, section.steps - warmup)
    done = min(1.0, (step - warmup - 1) / span)
    return section.learning_rate * SCHEDULES.load(section.schedule)(done)


def constant(done: float) -> float:
    return 1.0


def linear(done: float) -> float:
    """To 0."""
    return 1.0 - done


def cosine(done: float) -> float:
    """To 0, by half a wave."""
    return 0.5 * (1.0 + math.cos(math.pi * done))
