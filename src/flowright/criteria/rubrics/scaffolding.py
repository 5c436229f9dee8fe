"""RuscaRL's scaffolding (arXiv 2508.16949): attempts of a group see criteria of their rubric, the
first more than the last, and all fewer as training goes on. Pure functions.

Attempts that saw criteria are learned on the prompt without them; the trainer corrects for the
difference. Validation shows none.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flowright.config.loading import load_section
from flowright.config.section import Section
from flowright.core.errors import ConfigError
from flowright.criteria.rubrics.rows import Item, RubricRow, VerifRow
from flowright.data.task import Conversation
from flowright.llm.chat import Message
from flowright.llm.control_tokens import sanitise

Text = Annotated[str, Field(pattern=r"\S")]


class ScaffoldWords(Section):
    """The parts of the system message that shows criteria, in their order. ``include`` and
    ``avoid`` hold ``{include}`` and ``{avoid}``, in the place of which the criteria stand."""

    opening: Text
    include: Annotated[str, Field(pattern=r"\{include\}")]
    avoid: Annotated[str, Field(pattern=r"\{avoid\}")]
    closing: Text


class RubricWording(Section):
    """``rubric`` and ``verif`` are the instructions of the judge, ``scaffold`` is the policy's."""

    rubric: Text
    verif: Text
    scaffold: ScaffoldWords


@cache
def standard_wording() -> RubricWording:
    """Return the wording of ``wording.yaml``."""
    return wording_from(Path(__file__).with_name("wording.yaml"))


def wording_from(path: Path) -> RubricWording:
    """A user's own. Raises ConfigError, one line a mistake."""
    return load_section(RubricWording, path, ())


Decay = Literal["linear", "step_linear", "step_power", "step_sigmoid"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of the share of a rubric that is shown; defaults are those that RuscaRL advises.

    Attempt i of G in a group sees ``(G - 1 - i) / (G - 1)`` of the criteria, times, at step s of T
    with ``x = (s - 1) / (T - 1)``: 1 (``linear``), ``1 - x`` (``step_linear``), ``(1 - x)^power``
    (``step_power``) or ``1 / (1 + exp(steepness (x - start)))`` (``step_sigmoid``).
    """

    decay: Decay = "step_sigmoid"
    power: float = 1.0
    start: float = 0.2
    steepness: float = 125.0

    def step_share(self, step: int, steps: int) -> float:
        """The share at a step, from 1 to ``steps``, in [0, 1]; 1 for a run of one step. Raises
        ValueError for a step that the run does not have."""
        if not 1 <= step <= steps:
            raise ValueError(f"step {step} of {steps}")
        if self.decay == "linear" or steps == 1:
            return 1.0
        x = (step - 1) / (steps - 1)
        if self.decay == "step_linear":
            return 1.0 - x
        if self.decay == "step_power":
            return (1.0 - x) ** self.power
        return _falling(self.steepness * (x - self.start))

    def share(self, step: int, steps: int, attempt: int, attempts: int) -> float:
        """The share of the criteria that an attempt, counted from 0, is shown at a step."""
        return self.step_share(step, steps) * group_share(attempt, attempts)


def _falling(z: float) -> float:
    """1 / (1 + exp(z)), whatever the size of z."""
    return 0.5 * (1.0 - math.tanh(z / 2))


def group_share(attempt: int, attempts: int) -> float:
    """``(G - 1 - i) / (G - 1)``: all for the first of a group, nothing for the last; 1 for an
    attempt alone. Raises ValueError for an attempt that the group does not have."""
    if not 0 <= attempt < attempts:
        raise ValueError(f"attempt {attempt} of {attempts}, counted from 0")
    return (attempts - 1 - attempt) / (attempts - 1) if attempts > 1 else 1.0


def shown_items(items: Sequence[Item], share: float, key: str) -> tuple[Item, ...]:
    """``round(n share)`` of the items (half to even), in the rubric's order. Which ones is drawn
    from ``key``, so that a run repeated draws the same."""
    count = round(len(items) * share)
    if count >= len(items):
        return tuple(items)
    draws = random.Random(int.from_bytes(sha256(key.encode("utf-8", "replace")).digest()))
    return tuple(items[place] for place in sorted(draws.sample(range(len(items)), count)))


def scaffold(items: Sequence[Item], words: ScaffoldWords) -> str | None:
    """The system message that shows the items, those to avoid apart from the others, each with its
    points; None where there are none."""
    include = [item for item in items if item.points > 0]
    avoid = [item for item in items if item.points < 0]
    parts = [words.opening]
    parts += [words.include.replace("{include}", _listed(include))] * bool(include)
    parts += [words.avoid.replace("{avoid}", _listed(avoid))] * bool(avoid)
    return "\n\n".join([*parts, words.closing]) if items else None


def scaffolded(
    conversation: Conversation, items: Sequence[Item], words: ScaffoldWords
) -> Conversation:
    """Return the conversation with :func:`scaffold`'s message in front, after its own system
    message; unchanged without items."""
    message = scaffold(items, words)
    if message is None:
        return conversation
    first = conversation[0]
    if first.role != "system":
        return (Message("system", message), *conversation)
    return (Message("system", f"{first.content}\n\n{message}".strip()), *conversation[1:])


def _listed(items: Sequence[Item]) -> str:
    return "\n".join(_line(number, item) for number, item in enumerate(items, start=1))


def _line(number: int, item: Item) -> str:
    text = " ".join(sanitise(item.criterion).split())
    return f"{number}. {text} ({abs(item.points):g} point{'s' * (abs(item.points) != 1)})"


def require_criteria(rows: Iterable[RubricRow | VerifRow], key: str) -> None:
    """Refuse scaffolding for data without criteria, where it would silently be off. ``key`` is the
    configuration's. Raises ConfigError."""
    first = next(iter(rows), None)
    if not isinstance(first, RubricRow):
        has = "no rows" if first is None else f"rows such as {first.id}, which have no rubric"
        raise ConfigError(f"{key}: scaffolding shows criteria, and the data has {has}; turn it off")
