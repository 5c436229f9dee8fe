"""The presentation of an environment's runs on screens: words, families of metrics, and the parts
of a record. The viewer has a run's files alone, so everything here works on plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from flowright.core.errors import UserError, boundary
from flowright.core.report import Block, Fact, Text
from flowright.environments.registry import ENVIRONMENTS, built_in


@dataclass(frozen=True, slots=True)
class Mix:
    """A family of metrics ``<prefix>/<kind>/<name>``: per kind of task the mean of several names,
    such as the operators that a workflow calls. ``lead`` describes the mean."""

    title: str
    prefix: str
    lead: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric and its title; with ``label``, of at most ten characters, the terminal shows it,
    too."""

    title: str
    metric: str
    label: str = ""


@dataclass(frozen=True)
class Display:
    """Words and metrics of an environment; every field has a default that fits any.

    ``completion`` is the word for a completion, ``language`` that of its code block, ``compared``
    for a row of the evaluation. ``kinds`` are the kinds of tasks in their usual order; others
    follow. ``curves`` stand beside time and tokens, ``shares`` (name, metric) beside the valid
    share of the rollouts; ``seconds`` names the metrics ``time/<name>`` that are means over
    rollouts. ``models`` and ``labels`` are keys of ``state.json`` that are shown at the head of a
    run, the labels in the report alone. ``meanings`` explains reasons of failure. ``note`` is shown
    with the run.
    """

    completion: str = "completion"
    language: str = ""
    compared: str = "Policy"
    kinds: Sequence[str] = ()
    mixes: Sequence[Mix] = ()
    curves: Sequence[Curve] = (
        Curve("Tokens of the large model per problem", "tokens/llm_mean", "LLM tokens"),
        Curve("LLM calls per problem", "llm/calls_mean"),
    )
    shares: Sequence[tuple[str, str]] = ()
    seconds: Sequence[str] = ("execute", "judge")
    models: Sequence[str] = ("policy", "judge")
    labels: Sequence[str] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        """The parts of a rollout's record that are the environment's own, in order."""
        return [Text(self.completion.capitalize(), str(record.get("completion") or ""))]


_NAMED = set[str]()


def name_environment(choice: str) -> None:
    """Have runs of this environment shown by its own display. A run's files may be someone else's,
    so only an environment that the user names, here or by training in it, is ever imported."""
    _NAMED.add(choice)


def display_of(config: Mapping[str, Any]) -> Display:
    """Return the display of the environment in a run's configuration: a built-in one, or one of
    :func:`name_environment`. Others get the default display, with a note on the reason."""
    choice = str(config.get("environment") or "workflow")
    if choice in ENVIRONMENTS:
        return built_in(choice, "display:DISPLAY")
    if choice not in _NAMED:
        note = f"its code is not run; to show it as it does: --environment {choice}"
        return replace(Display(), note=f"Shown without its environment {choice}: {note}")
    return _display(choice)


@cache
def _display(choice: str) -> Display:
    problem = ""
    try:
        with boundary("its import") as caught:
            found = getattr(ENVIRONMENTS.load(choice), "display", Display())
            if isinstance(found, Display):
                return found
            problem = f"its display is a {type(found).__name__}, not a Display"
        problem = caught.failure.message if caught.failure else problem
    except UserError as error:
        problem = "; ".join(error.problems)
    return replace(Display(), note=f"Shown without its environment {choice}: {problem}")


def blocks_of(display: Display, record: Mapping[str, Any]) -> Sequence[Block]:
    """The blocks of a record; where a user's display fails on it, what any display shows."""
    with boundary("its display") as caught:
        return display.blocks(record)
    assert caught.failure is not None
    return [Fact("Not shown", caught.failure.message), *Display().blocks(record)]
