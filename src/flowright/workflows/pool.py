"""Models that programs choose from (``executor.models``): what a problem's program sees of them,
and which one a name means.

A name that is not dealt to the problem is the program's mistake, and fails its call.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowright.config.llm import PriceSection
from flowright.config.workflow import ExecutorSection
from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.workflows.registry import Operators, Parameter, ValueType

PARAMETER = Parameter("model", ValueType(str), "")
"""Added to the operators that may ask a model; ``""`` is the first that is dealt."""


@dataclass(frozen=True, slots=True)
class PoolModel:
    """A model as a program sees it: ``label`` is what the program writes, ``name`` that of
    ``llm.file``."""

    label: str
    name: str
    note: str = ""
    price: PriceSection | None = None

    @property
    def described(self) -> str:
        """The note on one line, behind a colon; empty without one."""
        return f": {' '.join(self.note.split())}" if self.note else ""


@dataclass(frozen=True, slots=True)
class ModelPool:
    """The models of ``section.models``, with ``notes`` and ``prices`` by name."""

    section: ExecutorSection
    notes: Mapping[str, str]
    seed: int = 0
    prices: Mapping[str, PriceSection | None] = field(default_factory=dict)

    def deal(self, task_id: str) -> tuple[PoolModel, ...]:
        """Return the models of a problem, in the order in which its prompt has them: the same each
        time it is asked for."""
        names = [*self.section.models]
        if self.section.shuffle:
            rng = random.Random(f"{self.seed}/pool/{task_id}")
            names = rng.sample(names, rng.randint(2, len(names)))
        numbered = self.section.names == "index"
        return tuple(
            PoolModel(str(n) if numbered else name, name, self.notes[name], self.prices.get(name))
            for n, name in enumerate(names, start=1)
        )

    @property
    def fixed_labels(self) -> tuple[str, ...]:
        """The labels that mean the same model for every problem; none where models are shuffled."""
        return () if self.section.shuffle else tuple(one.label for one in self.deal(""))

    @property
    def by_price(self) -> tuple[str, ...]:
        """The fixed labels, the cheapest first; none without prices."""
        prices = {one.label: one.price for one in self.deal("")}
        known = {label: price.of(1, 1) for label, price in prices.items() if price is not None}
        return tuple(sorted((x for x in self.fixed_labels if x in known), key=known.__getitem__))

    def chosen(self, task_id: str, label: str, operator: str) -> str:
        """Return the name of the model that a call means. Raises BAD_ARGUMENT for one that is not
        dealt."""
        dealt = self.deal(task_id)
        found = {one.label: one.name for one in dealt} | {"": dealt[0].name}
        if label not in found:
            known = ", ".join(one.label for one in dealt)
            message = f"{operator}(model): no model {label[:40]!r}; there are {known}"
            raise FailureError(Reason.BAD_ARGUMENT, message)
        return found[label]


def add_model_parameter(operators: Operators) -> Operators:
    """Return the operators with a parameter for the model, those that never ask one as they are.
    Raises ConfigError where one has a parameter of that name."""
    for one in operators.values():
        if any(parameter.name == PARAMETER.name for parameter in one.parameters):
            raise ConfigError(f"operator {one.name}: rename its parameter `model` for a pool")
    return Operators(
        one if one.llm_calls == "0" else replace(one, parameters=(*one.parameters, PARAMETER))
        for one in operators.values()
    )


def models_text(dealt: Sequence[PoolModel]) -> str:
    """Return the full prompt's section about the models."""
    lines = [f"- {one.label}{_per_million(one.price)}{one.described}" for one in dealt]
    return (
        "\n## Models\n\nAn operator that calls a model takes its name as `model=`, a string; "
        "the first is the default. They differ in what they can do and in price"
        f"{' (per million tokens)' * any(one.price for one in dealt)}.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _per_million(price: PriceSection | None) -> str:
    return "" if price is None else f" ({price.input:g} in, {price.output:g} out)"


def short_models(dealt: Sequence[PoolModel]) -> str:
    """Return the compact prompt's part about the models: their prices as multiples of the lowest,
    for a token in and one out, to two digits."""
    priced = {one.label: one.price.of(1, 1) for one in dealt if one.price is not None}
    least = min(filter(None, priced.values()), default=1.0)
    times = {label: f" x{float(f'{each / least:.2g}'):g}" for label, each in priced.items()}
    each = [f"{one.label}{times.get(one.label, '')}{one.described}" for one in dealt]
    return f" model={'|'.join(each)}"
