"""How screens show an environment's runs: words, families of metrics, and the parts of a record.

Read by whoever shows a run (:mod:`flowright.monitoring`) from its files alone, so everything here
works on plain JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowright.rendering.blocks import Block, Text


@dataclass(frozen=True, slots=True)
class Mix:
    """A family of metrics ``<prefix>/<kind>/<name>``: for each kind of task the mean of several
    names, such as the operators that a workflow calls. ``lead`` says what a mean is of."""

    title: str
    prefix: str
    lead: str


@dataclass(frozen=True)
class Display:
    """What screens say of an environment; every field has a default that fits any.

    ``completion`` is what a completion is called. ``curves`` are further metrics, as pairs of
    title and name, beside time and tokens; ``seconds`` names the metrics ``time/<name>`` that are
    means over rollouts.
    """

    completion: str = "completion"
    mixes: Sequence[Mix] = ()
    curves: Sequence[tuple[str, str]] = ()
    seconds: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of what ``state.json`` says of the run: shown at its head, by key."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        """The parts of a rollout's record that are the environment's own, in order."""
        return [Text("Completion", str(record.get("completion") or ""))]
