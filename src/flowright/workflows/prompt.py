"""What the policy is told: its task, the workflow language, the operators, the problem.

Operator documentation comes from the registry. No tokenizer is imported; any with a chat template
serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flowright.config import WorkflowSection
from flowright.data.task import Problem
from flowright.errors import UserError
from flowright.llm.chat import Message
from flowright.workflows.operators import OPERATORS
from flowright.workflows.reference import long_docs, short_docs
from flowright.workflows.templates import fenced, fill

CUT_MARKER = "\n[... the middle of the problem is cut ...]\n"
_LEAST_PROBLEM_TOKENS = 32


def build_messages(
    task: Problem, form: Literal["full", "compact"] = "full", limits: WorkflowSection | None = None
) -> list[Message]:
    """The prompt for a task, before the chat template: what a workflow under ``limits`` can call
    and spend. The problem is in the last message, alone with a line or two, so that :func:`render`
    can cut it. Raises ConfigError where ``workflow.operators`` cannot be had."""
    limits = limits or WorkflowSection()
    operators = OPERATORS.with_modules(limits.operators)
    if form == "compact":
        start = fill(_COMPACT, operators=short_docs(operators))
        return [Message("user", f"{start}\n\n{task.problem}")]
    system = fill(
        _FULL,
        operators=long_docs(operators),
        calls=str(limits.max_llm_calls),
        tokens=str(limits.max_tokens),
        examples="\n\n".join(fenced(program, "python") for program in _EXAMPLES),
    )
    return [Message("system", system), Message("user", f"Problem:\n\n{task.problem}\n\n{_ASK}")]


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: Any, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt, ready for a sampler; ``truncated`` when the problem had to be cut."""

    token_ids: tuple[int, ...]
    truncated: bool


def render(messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int) -> Prompt:
    """Apply the tokenizer's chat template; cut the last message in its middle, with a marker, where
    the prompt is longer than ``max_tokens``. Raises UserError when the rest leaves no room."""
    ids = _encode(messages, tokenizer)
    if len(ids) <= max_tokens:
        return Prompt(tuple(ids), truncated=False)
    content = tokenizer.encode(messages[-1].content, add_special_tokens=False)
    keep = len(content) - (len(ids) - max_tokens)
    while keep >= _LEAST_PROBLEM_TOKENS:
        head, tail = content[: keep // 2], content[len(content) - keep // 2 :]
        shorter = tokenizer.decode(head) + CUT_MARKER + tokenizer.decode(tail)
        ids = _encode([*messages[:-1], Message(messages[-1].role, shorter)], tokenizer)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), truncated=True)
        keep -= max(1, len(ids) - max_tokens)  # the marker, and words that were cut apart
    raise UserError(
        f"policy.max_prompt_tokens: {max_tokens} leaves no room for the problem; the instructions "
        f"alone need about {len(_encode(messages, tokenizer)) - len(content)} tokens"
    )


def _encode(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    chat = [{"role": m.role, "content": m.content} for m in messages]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


_COMPACT = "Write async def workflow(problem) with {operators}."

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

## Operators

Operators are functions that are there without import. Each is awaited; all arguments are strings, \
except where the signature says otherwise. They never raise.

{operators}

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
- At most {calls} calls of the model and {tokens} tokens in all; what exceeds them fails. Few \
calls that suit the problem are better than many.
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
