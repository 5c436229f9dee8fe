"""The operators: the one place from which prompts, stubs, host functions and docs are made.

An operator is an ``async def`` under :func:`~flowright.workflows.registry.operator`. Its first
parameter is the host's :class:`~flowright.workflows.context.CallContext`; the rest, with their
annotations and defaults, are its signature in the workflow language. Its prompt stands at the end
of this file. Adding one here is all that adding one takes; docs/extending.md shows one
that stands elsewhere.
"""

import re
import time
from typing import TypedDict

from flowright.core.errors import FailureError, Reason
from flowright.core.off_loop import in_thread, off_loop
from flowright.grading.votes import groups
from flowright.llm.control_tokens import fenced, fill
from flowright.llm.replies import extract_code, final_answer
from flowright.workflows.context import CallContext
from flowright.workflows.registry import Operators, defined_in, operator

FEEDBACK_CHARS = 2000
VOTE = "vote"
"""The step of `ensemble` in a trace: how many solutions agree."""
MAX_SOLUTIONS = 32


@operator(
    summary="follow an instruction of your own",
    example='text = await generate("Name the city. One word.", problem)',
)
async def generate(call: CallContext, instruction: str, context: str = "") -> str:
    """Ask the model anything. `context` is what the instruction is about, usually the problem.
    The reply comes back as it is, without being asked to reason first."""
    prompt = fill(_GENERATE, instruction=instruction, context=await _block(context, "\n\n{text}"))
    return (await call.ask(prompt)).strip()


@operator(
    summary="solve step by step, return the final answer",
    example="result = await answer(problem)",
    kinds=("math", "qa"),
)
async def answer(call: CallContext, problem: str) -> str:
    """Solve the problem by reasoning step by step; only the final answer comes back (for code
    problems, the code). Calls on the same problem are independent samples."""
    return await _conclusion(call, await _ask(call, _ANSWER, problem=problem))


@operator(
    summary="write and run a Python program that prints the answer",
    example="result = await programmer(problem)",
    kinds=("math", "qa"),
    llm_calls="1-3",
)
async def programmer(call: CallContext, problem: str) -> str:
    """The model writes a Python program that prints the answer, the program is run, and an error
    goes back for another try. Returns what was printed, or `""` when every try failed. Good where
    the answer can be computed, such as sums and puzzles of letters."""
    prompt = fill(_PROGRAMMER, problem=await _fenced(problem), trouble="")
    for _ in range(call.settings.programmer_tries):
        program = await _code(await call.ask(prompt))
        if not program:
            continue
        result = await call.run(program)
        printed = result.stdout.strip()
        if result.status == "ok" and printed:
            return printed
        error = result.stderr.strip() or "it printed nothing"
        trouble = fill(
            _PROGRAMMER_TROUBLE,
            program=await _fenced(program, "python"),
            error=await _fenced(f"{result.status}: {error}"[-FEEDBACK_CHARS:]),
        )
        prompt = fill(_PROGRAMMER, problem=await _fenced(problem), trouble=trouble)
    return ""


@operator(
    summary="write the function that the problem asks for",
    example="code = await write_code(problem)",
    kinds=("code",),
)
async def write_code(call: CallContext, problem: str, feedback: str = "") -> str:
    """Write the Python function that the problem asks for; returns its source. The name of the
    function and the public tests are added to the prompt. `feedback` is what was wrong with an
    earlier version."""
    task = call.task
    tests = "\n".join(task.public_tests)
    asked = "a program that reads standard input" if task.is_program else "the function"
    prompt = fill(
        _WRITE_CODE,
        function=f"the function `{task.entry_point}`" if task.entry_point else asked,
        problem=await _fenced(problem),
        tests=await _block(tests, _WRITE_CODE_TESTS, "json" if task.is_program else "python"),
        feedback=await _block(feedback, _WRITE_CODE_FEEDBACK),
    )
    return await _code(await call.ask(prompt), task.entry_point)


class _Tested(TypedDict):
    passed: bool
    feedback: str


@operator(
    summary='run the public tests; returns {"passed": bool, "feedback": str}',
    example='outcome = await test(code)\nif not outcome["passed"]:\n'
    '    code = await revise(problem, code, outcome["feedback"])',
    kinds=("code",),
    llm_calls="0-1",
)
async def test(call: CallContext, solution: str) -> _Tested:
    """Run the solution against the problem's public tests. Returns a dict: `passed` (bool) and
    `feedback` (str: the failed tests with their errors, `""` when all passed). Where the problem
    shows no tests, only that the solution loads is checked; a problem that is not about code never
    passes, and its `feedback` is a `review` of the solution, at the cost of a call."""
    if call.task.kind != "code":  # an answer for nothing would give the kind away for nothing
        reviewed = await _ask(call, _REVIEW, problem=call.task.problem, solution=solution)
        return {"passed": False, "feedback": reviewed.strip()[:FEEDBACK_CHARS]}
    report = await call.check(await _code(solution, call.task.entry_point))
    if report.passed:
        return {"passed": True, "feedback": ""}
    failed = [r for r in report.results if not r.passed]
    lines = [f"The solution failed {len(failed)} of {len(report.results)} tests."]
    lines += [f"{result.source.strip()}\n# {result.message.strip()}" for result in failed]
    return {"passed": False, "feedback": "\n".join(lines)[:FEEDBACK_CHARS]}


@operator(
    summary="check a solution, return what is wrong with it",
    example="feedback = await review(problem, solution)",
)
async def review(call: CallContext, problem: str, solution: str) -> str:
    """The model checks a solution and says whether it is right, and if not, what is wrong."""
    return (await _ask(call, _REVIEW, problem=problem, solution=solution)).strip()


@operator(
    summary="improve a solution by feedback",
    example="solution = await revise(problem, solution, feedback)",
)
async def revise(call: CallContext, problem: str, solution: str, feedback: str) -> str:
    """Improve a solution by feedback from `review` or `test`. Returns the new solution alone."""
    texts = {"problem": problem, "solution": solution, "feedback": feedback}
    return await _conclusion(call, await _ask(call, _REVISE, **texts))


@operator(
    summary="pick the best of several solutions",
    example="results = await asyncio.gather(*[answer(problem) for _ in range(3)])\n"
    "result = await ensemble(problem, results)",
    llm_calls="0-1",
)
async def ensemble(call: CallContext, problem: str, solutions: list[str]) -> str:
    """Vote: the answer that most solutions share, compared without regard to form. When no answer
    has more votes than every other, the model chooses among the candidates. Returns one of
    `solutions`."""
    if not 1 <= len(solutions) <= MAX_SOLUTIONS:
        message = f"ensemble takes 1 to {MAX_SOLUTIONS} solutions, not {len(solutions)}"
        raise FailureError(Reason.BAD_ARGUMENT, message)
    task = call.task
    votes = await in_thread(lambda: groups(solutions, task.kind, task.choices))  # each with each
    most = max(map(len, votes))
    call.add_step(VOTE, {}, f"{most} of {len(solutions)} agree", time.perf_counter())
    tied = [same[0] for same in votes if len(same) == most]
    if len(tied) == 1:
        return tied[0]
    shown = [f"Candidate {n}:\n{await _fenced(text)}" for n, text in enumerate(tied, start=1)]
    asked = fill(_ENSEMBLE, problem=await _fenced(problem), candidates="\n\n".join(shown))
    reply = await call.ask(asked)
    return tied[_choice(reply, len(tied)) - 1]


@operator(
    summary="bring an answer into the form that the problem asks for",
    example="result = await format(problem, result)",
    kinds=("qa",),
)
async def format_(call: CallContext, problem: str, solution: str) -> str:
    """Bring a solution into the form that the problem asks for: the bare number, word, label or
    phrase, its value unchanged."""
    reply = await _ask(call, _FORMAT, problem=problem, solution=solution)
    return await off_loop(lambda: final_answer(reply), reply)


OPERATORS = Operators(defined_in(globals()))
"""The built-in ones: what a workflow can call unless the configuration adds to them."""


async def _conclusion(call: CallContext, reply: str) -> str:
    if call.task.kind == "code" and "```" in reply:
        return await _code(reply, call.task.entry_point)
    return await off_loop(lambda: final_answer(reply), reply)


async def _code(text: str, entry_point: str | None = None) -> str:
    return await off_loop(lambda: extract_code(text, entry_point), text)


def _choice(reply: str, count: int) -> int:
    """The number chosen: the last one of the reply that is a candidate's; without any, the first
    candidate, which is as good as another where the votes are equal."""
    numbers = [int(n) for n in re.findall(r"\d{1,3}", reply)]
    return next((n for n in reversed(numbers) if 1 <= n <= count), 1)


async def _ask(call: CallContext, template: str, **texts: str) -> str:
    """The reply to a template whose fields are texts between fences."""
    fields = {name: await _fenced(text) for name, text in texts.items()}
    return await call.ask(fill(template, **fields))


async def _block(text: str, template: str, info: str = "") -> str:
    """The part of a prompt that shows ``text``, empty where there is none."""
    return fill(template, text=await _fenced(text, info)) if text.strip() else ""


async def _fenced(text: str, info: str = "") -> str:
    return await off_loop(lambda: fenced(text, info), text)


_GENERATE = """\
{instruction}{context}

Reply with the result only, without explanation."""

_ANSWER = """\
Solve the problem. Think step by step, then give the final answer on a last line of its own that \
begins with "Answer:". If the problem asks for code, put the complete code in one Python block \
after "Answer:".

{problem}"""

_PROGRAMMER = """\
Write a Python program that prints the answer to the problem, and nothing else. It reads no input, \
no files and no network; the standard library, numpy and sympy are there. Reply with the program \
in one Python block.

{problem}{trouble}"""

_PROGRAMMER_TROUBLE = """


This program was tried:

{program}

It failed:

{error}

Write a corrected program."""

_WRITE_CODE = """\
Implement {function} in Python, as the problem describes it. Reply with the complete code, imports \
included, in one Python block, without tests or examples.

{problem}{tests}{feedback}"""

_WRITE_CODE_TESTS = """


It will be called like this:
{text}"""

_WRITE_CODE_FEEDBACK = """


An earlier version was wrong. Mend what the feedback says:

{text}"""

_REVIEW = """\
Review the solution to the problem. Check it carefully. Say first whether it is correct or \
incorrect; if it is incorrect, say what is wrong and how to mend it, in a few sentences.

Problem:

{problem}

Solution:

{solution}"""

_REVISE = """\
Revise the solution to the problem according to the feedback; keep what is right. Give the revised \
solution after a line that begins with "Answer:", complete and without explanation. Code goes \
into one Python block.

Problem:

{problem}

Solution:

{solution}

Feedback:

{feedback}"""

_ENSEMBLE = """\
Choose the best of the numbered candidates for the problem: the one most likely to be correct. End \
with a line that begins with "Choice:" and holds only its number.

Problem:

{problem}

{candidates}"""

_FORMAT = """\
Reformat the solution as the final answer to the problem: only the number, word, label or phrase \
that the problem asks for, with its value unchanged. Reply with a line that begins with "Answer:".

Problem:

{problem}

Solution:

{solution}"""
