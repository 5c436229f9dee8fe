"""Which request meets which injected fault: a hash of the request, and of how often it came."""

from typing import Literal

from flowright.config.llm import FaultSection, SimulatedSection
from flowright.simulation.draws import unit

Fault = Literal["hang", "error_500", "error_429", "malformed", "empty", "truncate"]
FAULTS: tuple[Fault, ...] = ("hang", "error_500", "error_429", "malformed", "empty", "truncate")


def has_faults(section: FaultSection) -> bool:
    """Whether any fault is injected."""
    return any(getattr(section, fault) for fault in FAULTS)


def drawn_fault(
    section: SimulatedSection, role: Literal["executor", "judge"], name: str, occurrence: int
) -> Fault | None:
    """The fault that a request of this name meets when it comes for the ``occurrence``-th time,
    from 0; None for none."""
    faults = section.faults
    if faults.roles not in ("all", role):
        return None
    left = unit(section.seed, "fault", name, occurrence)
    for fault in FAULTS:
        left -= getattr(faults, fault)
        if left < 0:
            return fault
    return None
