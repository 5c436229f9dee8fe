"""The keys of `simulated`: the embedded server."""

from collections.abc import Mapping
from typing import Literal

from pydantic import (
    Field,
)

from flowright.config.section import Fraction, Section

SIMULATED = "simulated"
"""The name of the model that the embedded server stands in for."""


class FaultSection(Section):
    """Faults that the embedded server injects: shares of requests."""

    empty: Fraction = Field(default=0.0, description="200 with empty content.")
    error_500: Fraction = Field(default=0.0, description="HTTP 500.")
    error_429: Fraction = Field(default=0.0, description="HTTP 429: too many requests.")
    hang: Fraction = Field(default=0.0, description="No answer until the client gives up.")
    truncate: Fraction = Field(
        default=0.0, description='Half the text and `finish_reason` "length".'
    )
    malformed: Fraction = Field(
        default=0.0, description="A body that is not the JSON it claims to be."
    )
    roles: Literal["all", "executor", "judge"] = Field(
        default="all", description="Who meets the faults."
    )


class SimulatedSection(Section):
    """The embedded server; read only where a model is named `simulated`."""

    seed: int = Field(default=0, description="Of the tasks' difficulties and every draw.")
    latency_ms: float = Field(default=0.0, ge=0, description="Mean waiting time added to a reply.")
    judge_true_positive: Fraction = Field(default=0.97, description="Right answers called right.")
    judge_false_positive: Fraction = Field(default=0.03, description="Wrong answers called right.")
    judge_biases: Mapping[str, float] = Field(
        default_factory=dict,
        description="Planted biases, by name: verbosity, authority, tone, formatting, distraction, "
        "injection, self_preference, master_key, position.",
    )
    faults: FaultSection = FaultSection()
