"""RuscaRL's scaffolding (arXiv 2508.16949): attempts of a group are shown criteria of their rubric,
the first more than the last, and all fewer as training goes on. Pure functions.

Attempts that were shown criteria are learned on the prompt without them, which their sampler did
not see: that is the trainer's to correct. Validation shows none.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from flowright.core.errors import ConfigError
from flowright.criteria.rubrics.rows import Item, RubricRow, VerifRow
from flowright.criteria.rubrics.wording import ScaffoldWords
from flowright.data.preferences import Conversation, Turn
from flowright.llm.fences import sanitise

Decay = Literal["linear", "step_linear", "step_power", "step_sigmoid"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How much of a rubric is shown when; defaults are those that RuscaRL advises.

    Of attempt i of G in a group ``(G - 1 - i) / (G - 1)`` of the criteria, times, at step s of T
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
    """The conversation behind :func:`scaffold`'s message, which follows what its own system message
    says; as it is where there are no items."""
    message = scaffold(items, words)
    if message is None:
        return conversation
    first = conversation[0]
    if first.role != "system":
        return (Turn("system", message), *conversation)
    return (Turn("system", f"{first.content}\n\n{message}".strip()), *conversation[1:])


def _listed(items: Sequence[Item]) -> str:
    return "\n".join(_line(number, item) for number, item in enumerate(items, start=1))


def _line(number: int, item: Item) -> str:
    text = " ".join(sanitise(item.criterion).split())
    return f"{number}. {text} ({abs(item.points):g} point{'s' * (abs(item.points) != 1)})"


def require_criteria(rows: Iterable[RubricRow | VerifRow], key: str) -> None:
    """Refuses scaffolding for data that has nothing to show: without criteria it would be off and
    nobody would notice. ``key`` is the configuration's. Raises ConfigError."""
    first = next(iter(rows), None)
    if not isinstance(first, RubricRow):
        has = "no rows" if first is None else f"rows such as {first.id}, which have no rubric"
        raise ConfigError(f"{key}: scaffolding shows criteria, and the data has {has}; turn it off")
