"""The keys of `simulated`: the embedded server."""

from collections.abc import Mapping
from typing import Literal

from pydantic import (
    Field,
)

from flowright.config.section import Fraction, NonNegativeFloat, Section

SIMULATED = "simulated"
"""The name of the model that the embedded server stands in for."""


class FaultSection(Section):
    """Faults that the embedded server injects: shares of requests."""

    empty: Fraction = 0.0
    """200 with empty content."""
    error_500: Fraction = 0.0
    """HTTP 500."""
    error_429: Fraction = 0.0
    """HTTP 429: too many requests."""
    hang: Fraction = 0.0
    """No answer until the client gives up."""
    truncate: Fraction = 0.0
    """Half the text and `finish_reason` "length"."""
    malformed: Fraction = 0.0
    """A body that is not the JSON it claims to be."""
    roles: Literal["all", "executor", "judge"] = "all"
    """Who meets the faults."""


class SimulatedSection(Section):
    """The embedded server; read only where a model is named `simulated`."""

    seed: int = 0
    """Of the tasks' difficulties and every draw."""
    latency_ms: NonNegativeFloat = 0.0
    """Mean waiting time added to a reply."""
    judge_true_positive: Fraction = 0.97
    """Right answers called right."""
    judge_false_positive: Fraction = 0.03
    """Wrong answers called right."""
    judge_biases: Mapping[str, float] = Field(default_factory=dict)
    """Planted biases, by name: verbosity, authority, tone, formatting, distraction, injection,
    self_preference, sycophancy, self_certification, lexical, master_key, position."""
    faults: FaultSection = FaultSection()
