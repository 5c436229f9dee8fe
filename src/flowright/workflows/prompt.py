"""The policy's prompt: its task, the workflow language, the operators, the problem.

Operator documentation comes from the registry.
"""

from collections.abc import Sequence
from typing import Literal

from flowright.config.workflow import WorkflowSection
from flowright.data.task import Problem
from flowright.llm.chat import Message
from flowright.llm.control_tokens import fenced, fill
from flowright.workflows.operators import OPERATORS
from flowright.workflows.pool import PoolModel, add_model_parameter, models_text, short_models
from flowright.workflows.reference import long_docs, short_docs

Form = Literal["full", "compact"]


def build_messages(
    task: Problem,
    form: Form = "full",
    limits: WorkflowSection | None = None,
    turns: str = "",
    dealt: Sequence[PoolModel] = (),
    budget: float | None = None,
) -> list[Message]:
    """The prompt for a task, before the chat template: what a workflow under ``limits`` can call
    and spend. ``turns``: a section about later turns; ``dealt``: the models to choose from;
    ``budget``: what an attempt may cost, in money where there are such, else in tokens. The problem
    is in the last message, alone with a line or two, so that
    :func:`~flowright.policy.sampling.render` can cut it. Raises ConfigError where
    ``workflow.operators`` cannot be had."""
    limits = limits or WorkflowSection()
    operators = OPERATORS.with_modules(limits.operators)
    if form == "compact":  # what a token costs here is paid in every step
        start = fill(_COMPACT, operators=short_docs(operators))
        start += short_models(dealt) if dealt else ""
        start += f" budget={budget:g}" if budget else ""
        return [Message("user", f"{start}{turns}\n\n{task.problem}")]
    operators = add_model_parameter(operators) if dealt else operators
    unit = "in the money of the prices above" if dealt else "tokens"
    system = fill(
        _FULL,
        turns=turns,
        models=models_text(dealt) if dealt else "",
        operators=long_docs(operators),
        calls=str(limits.max_llm_calls),
        tokens=str(limits.max_tokens),
        checks=str(limits.max_checks),
        budget=fill(_BUDGET, budget=f"{budget:g}", unit=unit) if budget else "",
        examples="\n\n".join(fenced(program, "python") for program in _EXAMPLES),
    )
    return [Message("system", system), Message("user", f"Problem:\n\n{task.problem}\n\n{_ASK}")]


_COMPACT = "Write async def workflow(problem) with {operators}."

_BUDGET = """
- Spend at most {budget} {unit}: the further a right answer is above it, the less it earns."""

_ASK = "Write the workflow for this problem."

_FULL = """\
You write workflows. A workflow is a short Python program that decides how a large language model \
works on one problem: which operators are called, in which order, with what. Its return value is \
the final answer to the problem. You do not solve the problem yourself, and you do not put an \
answer of your own into the program. Think about the kind of problem (mathematics, code, or a \
question about knowledge or a text), how hard it is, and what is worth its cost.

## Form

Reply with one Python program in a ```python block and nothing else: either

- `class Workflow:` with `async def __call__(self, problem)` (and, if you need it, an `__init__` \
without parameters), or
- `async def workflow(problem)`.

`problem` is the text of the problem. Return a string or a number: for code problems the source of \
the function, else the final answer alone.
{turns}
## Operators

Operators are functions that are there without import. Each is awaited; all arguments are strings, \
except where the signature says otherwise. They never raise.

{operators}
{models}
## Language

The program runs in a small sandboxed Python. There are classes, functions, closures, loops, \
conditions, comprehensions, f-strings, try/except, match, and `asyncio.gather(...)` for calls at \
the same time; `asyncio`, `re`, `json`, `math` and `Counter` need no import, and `random`, \
`itertools`, `collections`, `functools`, `datetime`, `decimal` and `typing` can be imported.

There are no files, no network and no other modules. Not supported: inheritance, `super`, \
decorated methods, generators (`yield`), `del`, `async with`, `async for`, \
`asyncio.create_task`, `asyncio.wait_for`, `asyncio.Semaphore`, \
`gather(return_exceptions=...)`, `re.sub` with a function, `open`, `input`.

Rules:

- Give every variable a value before a branch or a loop that may not set it: write \
`result = ""` first, then `if ...: result = ...`.
- Do not name a variable like an operator: `answer = await answer(problem)` fails.
- Write `await` before every call of an operator, or gather the calls.
- At most {calls} calls of the model and {tokens} tokens in all, and {checks} runs of code; what \
exceeds them fails. Few calls that suit the problem are better than many.{budget}
- A program that cannot be read or that crashes earns less than a wrong answer.

## Examples

Each is a form, not a recipe; choose what fits the problem.

{examples}"""

_EXAMPLES = (
    """\
class Workflow:
    async def __call__(self, problem):
        answers = await asyncio.gather(*[answer(problem) for _ in range(3)])
        result = await ensemble(problem, answers)
        return await format(problem, result)""",
    """\
class Workflow:
    def __init__(self):
        self.rounds = 2

    async def __call__(self, problem):
        code = await write_code(problem)
        for _ in range(self.rounds):
            outcome = await test(code)
            if outcome["passed"]:
                break
            code = await revise(problem, code, outcome["feedback"])
        return code""",
    """\
async def workflow(problem):
    result = await programmer(problem)
    if result == "":
        draft = await answer(problem)
        feedback = await review(problem, draft)
        result = await revise(problem, draft, feedback)
    return result""",
)
