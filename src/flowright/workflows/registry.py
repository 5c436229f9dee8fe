"""The registry of operators: what one is, and how a function becomes one. No operator here."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowright.data.task import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as the workflow language has it; ``default`` is None where one must be given."""

    name: str
    type: type[str] | type[list]
    default: str | None

    def __str__(self) -> str:
        hint = "str" if self.type is str else "list[str]"
        return f"{self.name}: {hint}" + ("" if self.default is None else f" = {self.default!r}")


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. ``kinds`` are the kinds of problem that it is documented for; it can be called
    for any. ``llm_calls`` says how many questions one call puts to the model, as text; one that
    ``asks_model`` puts at least one. ``run`` gets values by name, checked against ``parameters``.
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: type[str] | type[dict]
    summary: str
    doc: str
    example: str
    kinds: tuple[Kind, ...]
    llm_calls: str
    asks_model: bool
    run: Callable[..., Awaitable[Any]]

    @property
    def signature(self) -> str:
        """As in ``answer(problem: str) -> str``."""
        inside = ", ".join(map(str, self.parameters))
        return f"{self.name}({inside}) -> {self.returns.__name__}"


_REGISTRY: dict[str, Operator] = {}
OPERATORS: Mapping[str, Operator] = _REGISTRY


def operator(
    *,
    summary: str,
    example: str,
    kinds: tuple[Kind, ...] = KINDS,
    llm_calls: str = "1",
) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """Register a function as an operator; its docstring becomes the operator's documentation."""

    def register(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        signature = inspect.signature(run)
        parameters = tuple(
            Parameter(
                name=p.name,
                type=str if p.annotation is str else list,
                default=None if p.default is inspect.Parameter.empty else p.default,
            )
            for p in list(signature.parameters.values())[1:]
        )
        name = run.__name__.rstrip("_")
        _REGISTRY[name] = Operator(
            name=name,
            parameters=parameters,
            returns=str if signature.return_annotation is str else dict,
            summary=summary,
            doc=inspect.cleandoc(run.__doc__ or ""),
            example=example,
            kinds=kinds,
            llm_calls=llm_calls,
            asks_model=not llm_calls.startswith("0"),
            run=run,
        )
        return run

    return register
