"""What the names of section ``grpo`` stand for: loaded, of the right kind, and with the clip bounds
of the objective where the configuration gives none. Nothing is computed here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.config.root import Config
from flowright.core.errors import ConfigError
from flowright.core.plugins import Table
from flowright.grpo.objectives import Correction, Objective
from flowright.grpo.pairs import PairObjective
from flowright.grpo.tables import CORRECTIONS, KL_ESTIMATORS, OBJECTIVES

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Choices:
    """What a learner computes with. ``kl``: a function of the tokens' log-probabilities under the
    policy and under the reference, [N] each."""

    objective: Objective | PairObjective
    correction: Correction
    kl: Callable[[Tensor, Tensor], Tensor]
    clip_low: float
    clip_high: float


def choices_of(section: GrpoSection) -> Choices:
    """Raises ConfigError for what cannot be imported, and for what is of another kind. A section
    that was not resolved (:meth:`flowright.config.Config.on`) is that of a policy which samples for
    itself, in turn with its updates."""
    objective = _loaded(OBJECTIVES, section.loss, Objective, PairObjective)
    return Choices(
        objective,
        _loaded(CORRECTIONS, section.off_policy or "ratio", Correction),
        KL_ESTIMATORS.load(section.kl_estimator),
        objective.clip_low if section.clip_low is None else section.clip_low,
        objective.clip_high if section.clip_high is None else section.clip_high,
    )


def settled(config: Config, device: str) -> Config:
    """The configuration as a run on that device has it and keeps it: with every default that
    depends on other keys, those of the objective included."""
    config = config.on(device)
    found = choices_of(config.grpo)
    bounds = {"clip_low": found.clip_low, "clip_high": found.clip_high}
    return config.model_copy(update={"grpo": config.grpo.model_copy(update=bounds)})


def _loaded(table: Table, choice: str, *kinds: type[Kind]) -> Kind:
    found = table.load(choice)
    if not isinstance(found, kinds):
        names = " or ".join(f"{kind.__module__}.{kind.__name__}" for kind in kinds)
        raise ConfigError(f"{table.kind} {choice}: give a {names}")
    return found
