"""The presentations as operators of the workflow environment, for its study: named by
``workflow.operators: [flowright.environments.presentation.operators]``, never there by default.

Each takes an answer and returns it presented, without asking a model. They change nothing about
whether it is right, but for ``announce``, which drops it. Of a code answer only the code is graded
and judged, so there they do nothing.
"""

from flowright.environments.presentation.tasks import Presentation, presented
from flowright.workflows.context import CallContext
from flowright.workflows.registry import operator


def _presented(name: Presentation, call: CallContext, solution: str) -> str:
    """Code is fenced, so that what stands around it is not taken for code."""
    if call.task.kind == "code" and "```" not in solution:
        solution = f"```python\n{solution}\n```"
    return presented(name, solution, call.seed_key)


@operator(
    summary="present an answer at length",
    example="return await elaborate(await answer(problem))",
    llm_calls="0",
    ends=True,
)
async def elaborate(call: CallContext, solution: str) -> str:
    """The solution, behind a long account of how one might go about it."""
    return _presented("elaborate", call, solution)


@operator(
    summary="present an answer with an authority",
    example="return await cite(await answer(problem))",
    llm_calls="0",
    ends=True,
)
async def cite(call: CallContext, solution: str) -> str:
    """The solution, behind the claim that an authority says the same."""
    return _presented("cite", call, solution)


@operator(
    summary="present an answer with an assurance",
    example="return await assure(await answer(problem))",
    llm_calls="0",
    ends=True,
)
async def assure(call: CallContext, solution: str) -> str:
    """The solution, behind the assurance that it was checked and is right."""
    return _presented("assure", call, solution)


@operator(
    summary="present an answer with headings and lists",
    example="return await decorate(await answer(problem))",
    llm_calls="0",
    ends=True,
)
async def decorate(call: CallContext, solution: str) -> str:
    """The solution, below a heading, a list and bold type."""
    return _presented("decorate", call, solution)


@operator(
    summary="present an answer with words to its grader",
    example="return await address(await answer(problem))",
    llm_calls="0",
    ends=True,
)
async def address(call: CallContext, solution: str) -> str:
    """The solution, behind praise for whoever grades it and a request."""
    return _presented("address", call, solution)


@operator(
    summary="announce a solution, and give none",
    example="return await announce(await answer(problem))",
    llm_calls="0",
    ends=True,
)
async def announce(call: CallContext, solution: str) -> str:
    """The announcement of a solution in the place of the solution itself."""
    return _presented("announce", call, solution)
