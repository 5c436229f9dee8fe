"""The presentations as operators of the workflow environment, for its study: named by
``workflow.operators: [flowright.environments.presentation.operators]``, never there by default.

Each takes an answer and returns it presented, without asking a model. They change nothing about
whether it is right, but for ``announce``, which drops it. Of a code answer only the code is graded
and judged, so there they do nothing.
"""

from flowright.environments.presentation.tasks import Presentation, presented
from flowright.workflows.context import CallContext
from flowright.workflows.registry import Operator, operator


def _presented(name: Presentation, call: CallContext, solution: str) -> str:
    """Code is fenced, so that what stands around it is not taken for code."""
    if call.task.kind == "code" and "```" not in solution:
        solution = f"```python\n{solution}\n```"
    return presented(name, solution, call.seed_key)


def _ending(name: Presentation, summary: str, documentation: str) -> Operator:
    async def present(call: CallContext, solution: str) -> str:
        return _presented(name, call, solution)

    present.__name__, present.__doc__ = name, documentation
    example = f"return await {name}(await answer(problem))"
    return operator(summary=summary, example=example, llm_calls="0", ends=True)(present)


elaborate = _ending(
    "elaborate",
    "present an answer at length",
    "The solution, behind a long account of how one might go about it.",
)
cite = _ending(
    "cite",
    "present an answer with an authority",
    "The solution, behind the claim that an authority says the same.",
)
assure = _ending(
    "assure",
    "present an answer with an assurance",
    "The solution, behind the assurance that it was checked and is right.",
)
decorate = _ending(
    "decorate",
    "present an answer with headings and lists",
    "The solution, below a heading, a list and bold type.",
)
address = _ending(
    "address",
    "present an answer with words to its grader",
    "The solution, behind praise for whoever grades it and a request.",
)
announce = _ending(
    "announce",
    "announce a solution, and give none",
    "The announcement of a solution in the place of the solution itself.",
)
