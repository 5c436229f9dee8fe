"""Text generated from a set of operators: prompt documentation, typing stubs, the docs page.

Operators are described in their docstrings alone. Document modules of your own with ``python -m
flowright.workflows.reference MODULE ...``.
"""

import re
import sys

from flowright.data.task import Kind
from flowright.workflows.operators import OPERATORS
from flowright.workflows.registry import STOP, VALUES, Operator, Operators


def stubs(operators: Operators = OPERATORS) -> str:
    """Declarations of all that the host hands to a program, for the type checker."""
    lines = [
        *(_outcome(operator) for operator in operators.values() if operator.returns.keys),
        *(_stub(operator) for operator in operators.values()),
        f"def {STOP}() -> None: ...",
        *(f"{name}: {hint}" for name, hint in VALUES.items()),
    ]
    names = "Mapping, TypedDict" if any("Mapping[" in line for line in lines) else "TypedDict"
    return "\n".join([f"from typing import {names}", *lines]) + "\n"


# What a parameter takes beside the type that its signature shows: a tuple for a list, and for a
# dict one whose keys are known.
_ACCEPTED = {"list[str]": "list[str] | tuple[str, ...]", "dict": "Mapping[str, object]"}


def _outcome(operator: Operator) -> str:
    """The class of a result whose keys are known."""
    keys = (operator.returns.keys or {}).items()
    lines = [f"class {_outcome_name(operator)}(TypedDict):", *(f"{k}: {hint}" for k, hint in keys)]
    return "\n    ".join(lines)


def _outcome_name(operator: Operator) -> str:
    return f"{operator.name.title().replace('_', '')}Outcome"


def _stub(operator: Operator) -> str:
    parameters = []
    for parameter in operator.parameters:
        shown = str(parameter.type)
        accepted = re.sub(r"list\[str\]|dict", lambda name: _ACCEPTED[name[0]], shown)
        parameters.append(str(parameter).replace(shown, accepted, 1))
    returns = str(operator.returns)
    if operator.returns.keys:
        returns = returns.replace("dict", _outcome_name(operator))
    return f"async def {operator.name}({', '.join(parameters)}) -> {returns}: ..."


def short_docs(operators: Operators = OPERATORS) -> str:
    """The calls alone, in one line: the embedded policy learns what they do by using them, and
    every token of its prompt is paid for in the cold start and in each step."""
    return ", ".join(_call(operator) for operator in operators.values())


def long_docs(operators: Operators = OPERATORS) -> str:
    """Signature, documentation and cost of every operator, as the full prompt has them."""
    return "\n".join(
        f"- `await {operator.signature}`: {' '.join(operator.doc.split())} "
        f"[{_kinds(operator.kinds)}; {_cost(operator)}]"
        for operator in operators.values()
    )


def docs_page(operators: Operators = OPERATORS) -> str:
    """Return the reference of the operators that stands in docs/workflows.md."""
    parts = [
        "| operator | purpose | problems | calls of the model |\n|---|---|---|---|\n"
        + "\n".join(
            f"| `{o.name}` | {o.summary} | {_kinds(o.kinds)} | {o.llm_calls} |"
            for o in operators.values()
        ),
        *(_section(operator) for operator in operators.values()),
    ]
    return "\n\n".join(parts) + "\n"


def _section(operator: Operator) -> str:
    return (
        f"### {operator.name}\n\n`async def {operator.signature}`\n\n"
        f"{operator.doc}\n\n```python\n{operator.example}\n```"
    )


def _call(operator: Operator) -> str:
    return f"{operator.name}({', '.join(p.name for p in operator.parameters)})"


def _kinds(kinds: tuple[Kind, ...]) -> str:
    return "any problem" if len(kinds) > 2 else " and ".join(kinds)


def _cost(operator: Operator) -> str:
    return "no call" if operator.llm_calls == "0" else f"calls: {operator.llm_calls}"


if __name__ == "__main__":
    print(docs_page(OPERATORS.with_modules(sys.argv[1:])), end="")
