"""What is generated from the operator registry: prompt documentation, typing stubs, the docs page.

No operator is described anywhere else; tests hold docs/operators.md equal to :func:`docs_page`.
"""

from flowright.data.task import Kind
from flowright.workflows.operators import OPERATORS, Operator

# A name that only the stubs define: a program that starts by calling it is checked, never run.
STOP = "stop_before_running"

# The values that a program finds beside the operators.
_VALUES = "problem: str\nentry_point: str | None"


def stubs() -> str:
    """Declarations of all that the host hands to a program, for the type checker."""
    lines = [
        "from typing import TypedDict",
        "class TestOutcome(TypedDict):\n    passed: bool\n    feedback: str",
        *(_stub(operator) for operator in OPERATORS.values()),
        f"def {STOP}() -> None: ...",
        _VALUES,
    ]
    return "\n".join(lines) + "\n"


def _stub(operator: Operator) -> str:
    parameters = ", ".join(
        str(p).replace("list[str]", "list[str] | tuple[str, ...]") for p in operator.parameters
    )
    returns = "str" if operator.returns is str else "TestOutcome"
    return f"async def {operator.name}({parameters}) -> {returns}: ..."


def short_docs() -> str:
    """The calls alone, in one line: the embedded policy learns what they do by using them, and
    every token of its prompt is paid for in the cold start and in each step."""
    return ", ".join(_call(operator) for operator in OPERATORS.values())


def long_docs() -> str:
    """Signature, documentation and cost of every operator, as the full prompt has them."""
    return "\n".join(
        f"- `await {operator.signature}`: {' '.join(operator.doc.split())} "
        f"[{_kinds(operator.kinds)}; {_cost(operator)}]"
        for operator in OPERATORS.values()
    )


def docs_page() -> str:
    """docs/operators.md."""
    parts = [
        "# Operators",
        "Generated from `src/flowright/workflows/operators.py` by "
        "`python -m flowright.workflows.reference`; a test keeps it so.",
        "A workflow calls operators as awaitable functions: `await answer(problem)`. Arguments are "
        "plain strings, or a list of strings where the signature says so; anything else fails the "
        "workflow with `bad_argument`. Operators never raise inside a workflow: a server that "
        "fails ends the execution and leaves it unscored, an overrun of the budget ends it with "
        "its own reason.",
        "| operator | what for | problems | calls of the model |\n|---|---|---|---|\n"
        + "\n".join(
            f"| `{o.name}` | {o.summary} | {_kinds(o.kinds)} | {o.llm_calls} |"
            for o in OPERATORS.values()
        ),
        *(_section(operator) for operator in OPERATORS.values()),
    ]
    return "\n\n".join(parts) + "\n"


def _section(operator: Operator) -> str:
    return (
        f"## {operator.name}\n\n```python\nasync def {operator.signature}\n```\n\n"
        f"{operator.doc}\n\n```python\n{operator.example}\n```"
    )


def _call(operator: Operator) -> str:
    return f"{operator.name}({', '.join(p.name for p in operator.parameters)})"


def _kinds(kinds: tuple[Kind, ...]) -> str:
    return "any problem" if len(kinds) > 2 else " and ".join(kinds)


def _cost(operator: Operator) -> str:
    return "no call" if operator.llm_calls == "0" else f"calls: {operator.llm_calls}"


if __name__ == "__main__":
    print(docs_page(), end="")
