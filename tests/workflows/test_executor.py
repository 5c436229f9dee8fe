"""Running workflows: answers, budgets, blame, order, traces. The model is scripted."""

import asyncio
import os
import signal
import textwrap
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from busy_machine import busy
from workflow_doubles import FAILED, PASSED, ScriptedModel, ScriptedSandbox, printed, said, task

from flowright.config.workflow import ExecutorSection, WorkflowSection
from flowright.core.errors import Blame, FailureError, Reason, UserError
from flowright.data.task import Problem
from flowright.llm.chat import (
    ChatReply,
    ChatRequest,
    NoCompletion,
    RequestRefused,
    ServerMisconfigured,
    Usage,
)
from flowright.llm.context import REFUSED_TRIES
from flowright.sandbox import Limits, Sandbox
from flowright.workflows.executor import Execution, Executor
from flowright.workflows.grammar import fixed_workflows
from flowright.workflows.runtime import PRINT_CHAR_SECONDS
from flowright.workflows.source import read_workflow
from flowright.workflows.trace import TEXT_CHARS

VOTE = """\
class Workflow:
    def __init__(self):
        self.n = 5

    async def __call__(self, problem):
        answers = await asyncio.gather(*[answer(problem) for _ in range(self.n)])
        return await ensemble(problem, answers)
"""


def program(body: str, before: str = "") -> str:
    return (
        before + "async def workflow(problem):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )


@asynccontextmanager
async def executor(
    model: ScriptedModel | None = None, sandbox: ScriptedSandbox | None = None, **limits: object
) -> AsyncIterator[Executor]:
    section = WorkflowSection(**{"workers": 1, **limits})  # pyright: ignore[reportArgumentType]
    async with Executor(model or ScriptedModel(), sandbox or ScriptedSandbox(), section) as made:
        yield made


async def play(
    text: str,
    model: ScriptedModel | None = None,
    sandbox: ScriptedSandbox | None = None,
    of: Problem | None = None,
    **limits: object,
) -> Execution:
    async with executor(model, sandbox, **limits) as made:
        return await made.execute(read_workflow(text), of or task(), "key")


def reason(execution: Execution) -> Reason:
    assert execution.answer is None
    assert execution.failure is not None
    return execution.failure.reason


# Answers.


async def test_a_class_with_a_gather() -> None:
    model = ScriptedModel()
    execution = await play(VOTE, model)
    assert execution.answer == "42"
    assert execution.failure is None
    assert execution.usage == Usage(5, 500, 50)
    assert [c.operator for c in execution.trace] == ["answer"] * 5 + ["ensemble"]
    assert execution.seconds >= execution.own_seconds > 0


@pytest.mark.parametrize(
    ("value", "answer"),
    [("'a'", "a"), ("3", "3"), ("1.5", "1.5"), ("True", "True"), ("' x\\n'", " x\n")],
)
async def test_plain_values_are_answers(value: str, answer: str) -> None:
    assert (await play(program(f"return {value}"))).answer == answer


@pytest.mark.parametrize(
    "value",
    [
        "None",
        "''",
        "' '",
        "['a']",
        "('a', 0.5)",
        "{'answer': 'a'}",
        "{1}",
        "b'a'",
        "answer(problem)",
        "(lambda: 1)",
        "10 ** 5000",
    ],
)
async def test_other_values_are_not(value: str) -> None:
    assert reason(await play(program(f"return {value}"))) is Reason.NO_ANSWER


async def test_a_code_answer_is_the_code_alone() -> None:
    model = ScriptedModel("Here:\n```python\nx = 1\n```")
    execution = await play(
        program('return await generate("Code.", problem)'), model, of=task("code")
    )
    assert execution.answer == "x = 1"
    execution = await play(program('return await generate("Code.", problem)'), model)
    assert execution.answer == "Here:\n```python\nx = 1\n```"


async def test_what_the_program_is_given() -> None:
    text = "async def workflow(problem, entry_point):\n    return f'{entry_point}|{problem}'"
    of = task("code", context="Some text.")
    execution = await play(text, of=of)
    assert execution.answer == f"add|{of.problem}"


async def test_every_fixed_workflow_runs() -> None:
    model = ScriptedModel("```python\nx = 1\n```\nAnswer: 42")
    sandbox = ScriptedSandbox([printed("42")], [FAILED, PASSED])
    async with executor(model, sandbox) as made:
        for name, text in fixed_workflows().items():
            workflow = await made.validate(text)
            kind = "code" if "write_code" in workflow.calls else "math"
            execution = await made.execute(workflow, task(kind), name)
            assert execution.failure is None, name
            called = {call.operator for call in execution.trace}
            assert called <= set(workflow.calls), name


async def test_operators_with_the_real_sandbox() -> None:
    def script(prompt: str) -> str:
        if "prints the answer" in prompt:
            wrong = "was tried" not in prompt
            return f"```python\nprint({'1 / 0' if wrong else '6 * 7'})\n```"
        sign = "+" if "failed 1 of 1 tests" in prompt else "-"
        return f"```python\ndef add(a, b):\n    return a {sign} b\n```"

    model = ScriptedModel(script)
    async with Sandbox(workers=1) as sandbox, Executor(model, sandbox) as made:
        math = read_workflow(fixed_workflows()["programmer"])
        assert (await made.execute(math, task(), "key")).answer == "42"
        assert "ZeroDivisionError" in model.prompts[1]
        code = read_workflow(fixed_workflows()["write_test_revise"])
        execution = await made.execute(code, task("code"), "key")
        assert execution.answer == "def add(a, b):\n    return a + b"
        assert [c.operator for c in execution.trace] == ["write_code", "test", "revise", "test"]
        assert "AssertionError" in model.prompts[-1]


# Validation.

INVALID = {
    "an operator that does not exist": (
        program("x = problem\nreturn await answr(x)"), Reason.TYPE, 3),
    "a missing argument": (program("return await review(problem)"), Reason.TYPE, 2),
    "an unknown argument": (
        program("return await answer(problem, model='x')"), Reason.TYPE, 2),
    "too many arguments": (program("return await answer(problem, 1, 2)"), Reason.TYPE, 2),
    "a number for a string": (program("return await answer(1)"), Reason.TYPE, 2),
    "a string for a list": (program("return await ensemble(problem, 'x')"), Reason.TYPE, 2),
    "an await that is missing": (
        program("x = answer(problem)\nreturn x.upper()"), Reason.TYPE, 3),
    "a key that is not there": (
        program("x = await test(problem)\nreturn x['ok']"), Reason.TYPE, 3),
    "a list in a gather": (
        program("return await asyncio.gather([answer(problem)])"), Reason.TYPE, 2),
    "an attribute of a string": (
        program("x = await answer(problem)\nreturn x.content"), Reason.TYPE, 3),
    "a missing library": (
        "import numpy as np\n" + program("return np.pi"), Reason.UNSUPPORTED, 1),
    "a missing module": ("import heapq\n" + program("return heapq.x"), Reason.UNSUPPORTED, 1),
    "a missing part of a module": (program("return math.frob(1)"), Reason.UNSUPPORTED, 2),
    "a missing builtin": (program("return open('x')"), Reason.UNSUPPORTED, 2),
    "a name of nothing": (program("return frobnicate"), Reason.TYPE, 2),
    "super": (
        "class Workflow:\n    def __init__(self):\n        super().__init__()\n"
        "    async def __call__(self, problem):\n        return ''", Reason.UNSUPPORTED, 3),
    "behind an inserted line": (
        program("if problem:\n    x = 1\nreturn await answr(x)"), Reason.TYPE, 4),
}  # fmt: skip


async def test_what_the_type_checker_finds_before_any_call() -> None:
    async with executor() as made:
        for name, (text, why, line) in INVALID.items():
            for _ in range(2):  # the second time from the cache
                with pytest.raises(FailureError) as caught:
                    await made.validate(text)
                failure = caught.value.failure
                assert (failure.reason, failure.line) == (why, line), name
                assert failure.message


VALID = {
    "an annotation that is wrong": program("x: int = await answer(problem)\nreturn x"),
    "a value that may be None": program("x = None\nif problem:\n    x = problem\n"
                                        "return await answer(x)"),
    "a match that may be None": program("return re.search('a', problem).group(0)"),
    "data of unknown type": program("return json.loads(problem)['a'] + 1"),
    "a tuple for a list": program("return await ensemble(problem, (problem, problem))"),
    "a gather of different things": program(
        "a, b = await asyncio.gather(answer(problem), test(problem))\nreturn a, b['passed']"),
    "a default dict": "from collections import defaultdict\n" + program(
        "d = defaultdict(int)\nd['a'] += 1\nreturn d['a']"),
}  # fmt: skip


async def test_what_it_lets_pass() -> None:
    async with executor() as made:
        for text in VALID.values():
            await made.validate(text)


async def test_the_checker_survives_its_own_death() -> None:
    async with executor() as made:
        await made.validate(VOTE)
        for pid in interpreters():
            os.kill(pid, signal.SIGKILL)
        await made.validate(VOTE + "# again")
        await made.validate(VOTE + "# and again")


async def test_a_program_that_nests_too_deeply_is_the_policys_fault() -> None:
    """Whatever it nests: conditions and sums in a row, attributes, brackets, values at run time."""
    shapes: dict[str, Callable[[int], str]] = {
        "elif": lambda n: "x = 0\nif x: 0\n" + "elif x: 0\n" * n + "return '41'",
        "else": lambda n: "x = 0\nif x: 0\n" + "elif x: y = 0\n" * n + "else: y = 1\nreturn y",
        "sum": lambda n: "return '4'" + " + '1'" * n,
        "attribute": lambda n: "return problem" + ".strip()" * n,
        "sign": lambda n: f"return {'-' * n}41",
        "choice": lambda n: f"return {'41 if 1 else ' * n}0",
        "lambda": lambda n: f"x = {'lambda: ' * n}0\nreturn '41'",
        "power": lambda n: "x = 1\nreturn x" + " ** x" * n,
        "calls": lambda n: f"return {'str(' * n}41{')' * n}",
        "lists": lambda n: f"x = {'[' * n}{']' * n}\nreturn '41'",
        "comprehensions": lambda n: f"x = {'[i for i in ' * n}[]{']' * n}\nreturn '41'",
        "pattern": lambda n: f"match 1:\n    case {'[' * n}{']' * n}: pass\nreturn '41'",
        "format": lambda n: f"x = f'{{1:{'{1:' * n}{'}' * n}}}'\nreturn '41'",
        "value": lambda n: f"x = []\nfor _ in range({n}): x = [x]\nreturn await generate(str(x))",
        "returned": lambda n: f"x = []\nfor _ in range({n}): x = [x]\nreturn x",
        "recursion": lambda n: f"f = lambda n: n and f(n - 1)\nreturn str(f({n}))",
    }
    async with executor() as made:
        assert await made.validate(program(shapes["elif"](190)))
        for name, shape in shapes.items():
            for deep in (300, 497, 800, 990, 1200, 3000):
                text = program(shape(deep))
                try:
                    execution = await made.execute(await made.validate(text), task(), name)
                    failure = execution.failure
                except FailureError as error:
                    failure = error.failure
                assert failure is None or failure.blame is Blame.POLICY, (name, deep, failure)
                assert failure is not None or name in ("value", "recursion"), (name, deep)
        whole = f"Here it is:\n```python\n{program(shapes['elif'](497))}\n```"
        with pytest.raises(FailureError, match="nests more than 200 levels") as caught:
            await made.validate(whole)
        assert caught.value.failure.reason is Reason.SYNTAX


async def test_what_the_checker_would_take_seconds_for_never_reaches_it() -> None:
    ands = " and ".join(["problem"] * 101)
    for text, reason in (("[" * 90 + "]" * 90, "lists within lists"), (ands, "operands of `and`")):
        async with executor() as made:
            with pytest.raises(FailureError, match=reason) as caught:
                await made.validate(program(f"return {text}"))
            assert caught.value.failure.reason is Reason.SYNTAX


async def test_a_program_that_takes_the_checker_too_long_is_refused_and_ends_nothing() -> None:
    nested = program("x = 1\n" + "if problem: x = [x]\n" * 200 + "return 'x'")
    async with executor() as made:
        with pytest.raises(FailureError, match="takes too long") as caught:
            await made.validate(nested)
        assert caught.value.failure.reason is Reason.TIME_BUDGET
        await made.validate(VOTE)


@pytest.mark.slow
async def test_on_a_busy_machine_the_checker_has_its_time() -> None:
    branches = "\n".join(f"if problem: x = {n}" for n in range(600))
    async with executor() as made:
        with busy(hogs_per_core=9):
            await made.validate(program(f"x = 1\n{branches}\nreturn str(x)"))


async def test_what_the_interpreter_refuses_in_its_own_words_is_no_lack_of_the_language() -> None:
    async with executor() as made:
        with pytest.raises(
            FailureError, match=r"^syntax \(line 2\): (?!the workflow language has)"
        ):
            await made.validate(program(f"return '{'(' * 14_000}'"))


async def test_the_code_of_a_long_answer_is_looked_for_off_the_loop() -> None:
    threads = []

    class Noted(str):
        def translate(self, table: object) -> str:  # by re.escape
            threads.append(threading.get_ident())
            return str(self)

    text = program("return '```python\\ndef add(a, b): ...\\n```' + 3000 * ' '")
    execution = await play(text, of=task("code", entry_point=Noted("add")))
    assert execution.answer == "def add(a, b): ..."
    assert threads and threading.get_ident() not in threads


# Budgets: each ends the execution, and none can be caught.

SWALLOW = """\
async def workflow(problem):
    for _ in range(1000):
        try:
            await answer(problem)
        except BaseException:
            pass
    return "done"
"""


async def test_calls_over_the_budget() -> None:
    model = ScriptedModel()
    execution = await play(SWALLOW, model, max_llm_calls=4)
    assert reason(execution) is Reason.CALL_BUDGET
    assert execution.failure is not None
    assert execution.failure.line == 4
    assert len(model.requests) == 4


async def test_a_flood_of_calls_is_refused_before_it_is_sent() -> None:
    model = ScriptedModel(delay=1.0)
    text = program("return await asyncio.gather(*[answer(str(i)) for i in range(100_000)])")
    assert reason(await play(text, model)) is Reason.CALL_BUDGET
    assert len(model.requests) <= 16


async def test_calls_without_the_model_are_counted_too() -> None:
    execution = await play(program("while True:\n    await ensemble(problem, ['1'])"))
    assert reason(execution) is Reason.CALL_BUDGET
    assert len(execution.trace) == 64


async def test_runs_of_code_are_counted_short_and_one_at_a_time() -> None:
    sandbox = ScriptedSandbox([printed("1")], [PASSED], delay=0.001)
    text = program("while True:\n    await asyncio.gather(test('a'), test('b'), programmer('c'))")
    execution = await play(
        text, sandbox=sandbox, of=task("code"), max_checks=8, max_llm_calls=99, check_seconds=3.0
    )
    assert reason(execution) is Reason.CALL_BUDGET
    assert execution.failure is not None and "run code 8 times" in execution.failure.message
    assert len(sandbox.checked) + len(sandbox.programs) <= 8
    assert sandbox.most_in_flight == 1
    assert set(sandbox.walls) == {3.0}


async def test_sleepers_leave_a_worker_to_others() -> None:
    """One workflow asks for 16 solutions that sleep: it has one worker at a time, and each for the
    time that a run of code may take."""
    sleepers = "import time\ndef add(a, b):\n    time.sleep(600)\n"
    asking = program(
        f"code = {sleepers!r}\n"
        "return await asyncio.gather(*[test(code + f'# {i}') for i in range(16)])"
    )
    quick = program("return str((await test('def add(a, b): return a + b'))['passed'])")
    async with (
        Sandbox(Limits(cpu_seconds=5.0, wall_seconds=600.0), workers=2) as sandbox,
        Executor(ScriptedModel(), sandbox, WorkflowSection(workers=2, check_seconds=60.0)) as made,
    ):
        slow = asyncio.create_task(made.execute(read_workflow(asking), task("code"), "slow"))
        while sandbox.busy < 1:
            await asyncio.sleep(0.01)
        execution = await made.execute(read_workflow(quick), task("code"), "quick")
        assert execution.answer == "True"
        assert sandbox.busy == 1
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_retries_inside_an_operator_are_counted() -> None:
    sandbox = ScriptedSandbox([printed("")])
    model = ScriptedModel("```python\npass\n```")
    execution = await play(program("return await programmer(problem)"), model, sandbox,
                           max_llm_calls=2)  # fmt: skip
    assert reason(execution) is Reason.CALL_BUDGET
    assert execution.failure is not None
    assert execution.failure.line == 2
    assert len(model.requests) == 2


async def test_tokens_over_the_budget() -> None:
    model = ScriptedModel()
    execution = await play(SWALLOW, model, max_tokens=300)
    assert reason(execution) is Reason.TOKEN_BUDGET
    assert execution.usage == Usage(3, 300, 30)


@pytest.mark.parametrize(("allowed", "left"), [(5210, True), (5209, False), (200, False)])
async def test_replies_that_were_asked_for_again_are_the_workflow_s_tokens(
    allowed: int, left: bool
) -> None:
    """A prompt that makes the model think without end pays for it."""
    replies = iter([said("", tokens=5000), said("Answer: 42")])
    model = ScriptedModel(lambda prompt: next(replies))
    execution = await play(program("return await answer(problem)"), model, max_tokens=allowed)
    assert (execution.answer == "42") is left
    if not left:
        assert reason(execution) is Reason.TOKEN_BUDGET


async def test_an_answer_made_of_empty_replies_is_the_workflow_s() -> None:
    execution = await play(program("return await generate('Say nothing.')"), ScriptedModel(""))
    assert reason(execution) is Reason.NO_ANSWER
    loop = program("x = ''\nwhile not x:\n    x = await generate('Say nothing.')\nreturn x")
    assert reason(await play(loop, ScriptedModel(""))) is Reason.CALL_BUDGET


# A refused prompt.


TOO_LONG = "the model's context length is only 1000 tokens"


def refuses(longest: int, refusal: str = TOO_LONG) -> ScriptedModel:
    """A server that takes prompts of so many characters."""
    return ScriptedModel(lambda p: RequestRefused(refusal) if len(p) > longest else "Answer: 42")


async def test_a_prompt_that_the_server_refuses_is_too_large() -> None:
    model = refuses(1000)
    loop = "for n in range(3):\n    x = await generate('a' * (50 + 975 * (n > 0)))\nreturn x"
    execution = await play(program(loop), model)
    assert reason(execution) is Reason.SIZE_BUDGET
    assert execution.failure is not None and TOO_LONG in execution.failure.message
    assert len(model.requests) == 3, "the prompt that was served, the refused one, the control"
    control, refused = model.requests[-1], model.requests[-2]
    assert replace(control, messages=(), seed=None) == replace(refused, messages=(), seed=None)


REFUSED = [
    RequestRefused("Expected 2 output messages (reasoning and final), but got 7."),
    RequestRefused("unexpected tokens remaining in message header"),
    ServerMisconfigured("403: Your chosen model requires moderation and your input was flagged"),
    NoCompletion("no choices in it: {'error': ...}"),
]


@pytest.mark.parametrize("refusal", REFUSED)
async def test_a_refusal_that_hangs_on_the_reply_is_not_the_workflows(refusal: Exception) -> None:
    """Every second reply is one that the server cannot read; another seed gets another reply."""
    model = ScriptedModel(lambda p: refusal if (model.requests[-1].seed or 0) % 2 else "Answer: 42")
    for n in range(24):
        execution = await play(program(f"return await answer(problem + '{n}')"), model)
        assert execution.answer == "42", execution.failure
    seeds = [request.seed for request in model.requests if request.seed is not None]
    assert len(set(seeds)) == len(seeds) > 24


@pytest.mark.parametrize("refusal", REFUSED)
async def test_a_prompt_refused_while_the_control_is_served_is_the_workflows(
    refusal: FailureError,
) -> None:
    model = ScriptedModel(lambda p: refusal if "forbidden" in p else "Answer: 42")
    execution = await play(program("return await generate('forbidden')"), model)
    assert reason(execution) is Reason.SIZE_BUDGET
    assert execution.failure is not None
    assert refusal.failure.message in execution.failure.message
    assert sum("forbidden" in p for p in model.prompts) == REFUSED_TRIES
    model = ScriptedModel(lambda p: refusal)
    execution = await play(program("return await generate('forbidden')"), model)
    assert reason(execution) is Reason.LLM_UNAVAILABLE
    assert len(model.requests) == 2, "refused with its control"


async def test_a_refusal_of_every_prompt_is_our_misconfiguration() -> None:
    execution = await play(program("return await generate('a')"), refuses(0, "no such effort"))
    assert execution.failure is not None and execution.failure.blame is Blame.INFRASTRUCTURE
    assert "no such effort" in execution.failure.message
    assert "max_tokens, temperature, reasoning_effort" in execution.failure.message


async def test_a_server_that_goes_down_before_the_control_says_nothing_about_the_prompt() -> None:
    down = FailureError(Reason.LLM_UNAVAILABLE, "no reply")
    model = ScriptedModel(lambda p: RequestRefused("too long") if "aa" in p else down)
    execution = await play(program("return await generate('aa')"), model)
    assert reason(execution) is Reason.LLM_UNAVAILABLE


async def test_the_control_is_asked_once_for_many_refusals() -> None:
    model = refuses(1000)
    async with executor(model) as made:
        texts = [program(f"return await generate('a' * {1000 + n})") for n in range(8)]
        plays = (made.execute(read_workflow(text), task(), text) for text in texts)
        for execution in await asyncio.gather(*plays):
            assert reason(execution) is Reason.SIZE_BUDGET
    assert len(model.requests) == 9


@pytest.mark.parametrize(("text", "tokens"), [("𓀀", 4), ("ﷺ", 3), ("é", 2), ("a", 1)])
async def test_prompts_and_answers_are_limited_in_tokens_before_anybody_is_asked(
    text: str, tokens: int
) -> None:
    model = ScriptedModel()
    for body in (
        f"return await generate({text!r} * {60_000 // tokens}, 'a')",
        f"return await ensemble('', [{text!r} * {30_000 // tokens + 1}] * 2)",
        f"return {text!r} * {20_000 // tokens + 1}",
        f"return '```' + {text!r} * {20_000 // tokens}",
    ):
        assert reason(await play(program(body), model)) is Reason.SIZE_BUDGET, body
    assert model.requests == []
    whole = await play(program(f"return {text!r} * {20_000 // tokens}"))
    assert whole.answer is not None


async def test_a_text_of_the_limit_can_be_handed_on() -> None:
    model = ScriptedModel(lambda p: "𓀀" * 40_000 if len(p) < 1000 else "Answer: 42")
    text = program("x = await generate('a')\nreturn await generate('', x)")
    execution = await play(text, model)
    assert execution.answer == "Answer: 42"
    assert "𓀀" * 15_000 in model.prompts[-1] and "𓀀" * 15_001 not in model.prompts[-1]


async def test_more_calls_at_once_than_allowed_wait_their_turn() -> None:
    model = ScriptedModel(delay=0.01)
    text = program("return (await asyncio.gather(*[answer(problem) for _ in range(9)]))[0]")
    execution = await play(text, model, max_concurrency=3)
    assert execution.answer == "42"
    assert model.most_in_flight == 3


async def test_own_time() -> None:
    text = program(
        "await answer(problem)\nwhile True:\n    try:\n        while True: pass\n"
        "    except BaseException:\n        pass"
    )
    execution = await play(text, own_seconds=0.3)
    assert reason(execution) is Reason.TIME_BUDGET
    assert execution.own_seconds >= 0.9 * 0.3


@pytest.mark.slow
async def test_a_busy_machine_does_not_use_up_own_time() -> None:
    spin = program("s = 0\nfor i in range(900_000):\n    s += i\nawait answer(problem)\nreturn s")
    model = ScriptedModel()
    async with executor(model, own_seconds=0.5, workers=2) as made:
        with busy(3):
            runs = [made.execute(read_workflow(spin), task(), str(n)) for n in range(2)]
            loop = made.execute(read_workflow(program("while True: pass")), task(), "loop")
            *honest, endless = await asyncio.gather(*runs, loop)
    assert [execution.failure for execution in honest] == [None] * 2
    assert reason(endless) is Reason.TIME_BUDGET
    assert len(model.requests) == 2, "a program that is run again finds the replies that it had"


async def test_printing_is_charged_to_the_program_that_waits_for_it() -> None:
    execution = await play(program("for _ in range(1000): print('x' * 1000)\nreturn 1"))
    assert execution.answer == "1"
    assert execution.own_seconds >= 1_000_000 * PRINT_CHAR_SECONDS


async def test_own_time_adds_up_over_parked_turns() -> None:
    spin = "s = 0\nfor i in range(300_000):\n    s += i\nawait answer(problem)\n"
    text = program(f"while True:\n{textwrap.indent(spin, '    ')}")
    execution = await play(
        text, ScriptedModel(delay=0.02), own_seconds=0.3, max_llm_calls=1000, max_tokens=10**9
    )
    assert reason(execution) is Reason.TIME_BUDGET


async def test_waiting_for_the_model_is_not_own_time() -> None:
    execution = await play(
        program("return await answer(problem)"), ScriptedModel(delay=0.4), own_seconds=0.2
    )
    assert execution.answer == "42"
    assert execution.own_seconds < 0.2 < 0.4 < execution.seconds


async def test_total_time_is_the_time_that_calls_took_to_be_served() -> None:
    model = ScriptedModel(delay=0.05, served=0.2)
    execution = await play(SWALLOW, model, total_seconds=0.15)
    assert reason(execution) is Reason.TIME_BUDGET
    assert execution.failure is not None
    assert execution.failure.line == 4
    assert len(model.requests) <= 4, "three, and one more where a wait was short of its time"


async def test_a_wait_in_our_queues_is_not_charged() -> None:
    model = ScriptedModel(delay=0.2, served=0.001)
    text = program("await answer(problem)\nreturn await answer(problem)")
    execution = await play(text, model, total_seconds=0.1)
    assert execution.answer == "42"


async def test_a_wait_without_end_is_ours() -> None:
    model = ScriptedModel(delay=30.0)
    execution = await play(SWALLOW, model, total_seconds=0.02)
    assert reason(execution) is Reason.LLM_UNAVAILABLE
    assert model.cancelled == 1


async def test_memory() -> None:
    text = program(
        "x = []\nwhile True:\n    try:\n        while True: x.append('a' * 100_000)\n"
        "    except BaseException:\n        pass"
    )
    assert reason(await play(text, memory_mb=16)) is Reason.MEMORY_BUDGET


async def test_a_worker_that_outgrows_its_memory_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    execution = await play(program("return len(('a,' * 2_000_000).split(','))"), memory_mb=16)
    assert reason(execution) is Reason.MEMORY_BUDGET
    assert capfd.readouterr() == ("", "")


async def test_sizes() -> None:
    big = program("return await answer('x' * 50_000_000)")
    model = ScriptedModel()
    execution = await play(big, model, memory_mb=256)
    assert reason(execution) is Reason.SIZE_BUDGET
    assert model.requests == []
    assert reason(await play(program("return 'x' * 1001"), max_answer_chars=1000)) is (
        Reason.SIZE_BUDGET
    )


async def test_sleep_costs_nothing_and_takes_no_time() -> None:
    text = "import time\n" + program("time.sleep(3600)\nawait asyncio.sleep(3600)\nreturn 'a'")
    assert (await play(text)).answer == "a"


# Failures of the program.

CRASHES = {
    "an exception": ("x = problem\nraise ValueError('boo')", Reason.CRASHED, 3),
    "a name": ("return await answer(problem) + nowhere", Reason.CRASHED, 2),
    "recursion": ("def f():\n    return f()\nreturn f()", Reason.CRASHED, 3),
    "an assertion": ("assert problem == ''", Reason.CRASHED, 2),
    "a timeout of its own": ("raise TimeoutError('x')", Reason.CRASHED, 2),
    "a host function of no name": ("return exit()", Reason.CRASHED, 2),
    "an object": ("class P:\n    pass\nreturn await answer(P())", Reason.BAD_ARGUMENT, 4),
    "a call that was not awaited": (
        "x = answer(problem)\nreturn await review(problem, f'{x}'[:-1] + '>')",
        Reason.BAD_ARGUMENT, 3),
    "an argument of no name": ("return await answer(**{'a b': 1})", Reason.TYPE, 2),
    "a module": ("import os\nreturn os.listdir('/')", Reason.CRASHED, 3),
}  # fmt: skip


@pytest.mark.parametrize(("body", "why", "line"), CRASHES.values(), ids=CRASHES.keys())
async def test_failures_of_the_program_have_their_line(body: str, why: Reason, line: int) -> None:
    execution = await play(program(body))
    assert reason(execution) is why
    assert execution.failure is not None
    assert execution.failure.line == line
    assert execution.failure.blame is Blame.POLICY


async def test_an_operator_that_the_program_caught_is_over_all_the_same() -> None:
    text = program("try:\n    return await answer(1)\nexcept BaseException:\n    return 'caught'")
    assert reason(await play(text)) is Reason.BAD_ARGUMENT


# Failures of ours.


def unavailable(prompt: str) -> FailureError:
    return FailureError(Reason.LLM_UNAVAILABLE, "503")


async def test_a_failing_server_ends_the_execution_even_where_the_program_would_catch_it() -> None:
    model = ScriptedModel(unavailable)
    execution = await play(SWALLOW, model)
    assert reason(execution) is Reason.LLM_UNAVAILABLE
    assert execution.failure is not None
    assert execution.failure.blame is Blame.INFRASTRUCTURE
    assert len(model.requests) == 1
    assert execution.trace[0].error is not None
    assert "503" in execution.trace[0].error


async def test_one_failing_call_of_a_gather_cancels_the_others() -> None:
    def script(prompt: str) -> FailureError | str:
        return unavailable(prompt) if "bad" in prompt else "Answer: 1"

    model = ScriptedModel(script, delay=lambda n: 0.0 if n == 2 else 30.0)
    text = program("return await asyncio.gather(answer('a'), answer('bad'), answer('c'))")
    execution = await play(text, model)
    assert reason(execution) is Reason.LLM_UNAVAILABLE
    assert model.cancelled == 2
    assert [call.error for call in execution.trace][::2] == ["cancelled", "cancelled"]


async def test_a_lost_sandbox_is_ours() -> None:
    class Lost(ScriptedSandbox):
        async def run(self, source: str, *, wall_seconds: float | None = None):
            raise FailureError(Reason.SANDBOX_LOST, "gone")

    execution = await play(program("return await programmer(problem)"), sandbox=Lost())
    assert reason(execution) is Reason.SANDBOX_LOST


async def test_a_bug_of_ours_is_internal() -> None:
    model = ScriptedModel(lambda prompt: ZeroDivisionError("bug"))
    execution = await play(program("return await answer(problem)"), model)
    assert reason(execution) is Reason.INTERNAL
    assert execution.failure is not None
    assert execution.failure.blame is Blame.INFRASTRUCTURE
    assert "bug" in execution.failure.message


async def test_what_the_user_must_mend_goes_through() -> None:
    with pytest.raises(UserError):
        await play(program("return await answer(problem)"), ScriptedModel(lambda p: UserError("x")))


SPIN = """\
async def workflow(problem):
    first = await answer(problem)
    total = 0
    for i in range(5_000_000):
        total += i
    second = await review(problem, first)
    return f"{first} {second}"
"""


def interpreters(busy_seconds: float = 0.0) -> list[int]:
    """The interpreter processes that this process has started and that have computed so long."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, parent, *_, user, system = rest.split()[:13]
        busy = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        if name == "monty" and int(parent) == os.getpid() and state != "Z" and busy >= busy_seconds:
            found.append(int(stat.parent.name))
    return found


async def killed_while_spinning(times: int) -> tuple[Execution, ScriptedModel]:
    model = ScriptedModel()
    async with executor(model, own_seconds=30.0) as made:
        running = asyncio.create_task(made.execute(read_workflow(SPIN), task(), "key"))
        for _ in range(times):
            while not (spinning := interpreters(busy_seconds=0.1)):
                await asyncio.sleep(0.01)
            for pid in spinning:
                os.kill(pid, signal.SIGKILL)
            while interpreters(busy_seconds=0.1):
                await asyncio.sleep(0.01)
        return await running, model


async def test_a_killed_worker_costs_nothing() -> None:
    execution, model = await killed_while_spinning(1)
    assert execution.answer == "42 Answer: 42"
    assert len(model.requests) == 2
    assert [call.operator for call in execution.trace] == ["answer", "review"]


async def test_a_program_under_which_two_workers_die_at_one_point_is_to_blame() -> None:
    execution, model = await killed_while_spinning(2)
    assert reason(execution) is Reason.CRASHED
    assert len(model.requests) == 1


@pytest.mark.parametrize("said", ["time limit exceeded", "feed time limit exceeded: 2s"])
async def test_a_program_that_says_its_time_is_up_has_crashed(said: str) -> None:
    """In the interpreter's own words, which a busy machine would bring it to."""
    execution = await play(program(f"raise TimeoutError({said!r})"), ScriptedModel())
    assert reason(execution) is Reason.CRASHED


# Leftovers.


async def test_a_call_that_fails_unnoticed_fails_the_execution() -> None:
    def script(prompt: str) -> FailureError | str:
        return unavailable(prompt) if "bad" in prompt else "Answer: 1"

    text = program("call = answer('bad')\nreturn await answer('good')")
    assert reason(await play(text, ScriptedModel(script))) is Reason.LLM_UNAVAILABLE


async def test_calls_that_were_never_awaited_are_charged_and_end_with_the_program() -> None:
    model = ScriptedModel(delay=30.0)
    text = program("calls = [answer(str(i)) for i in range(3)]\nreturn 'done'")
    execution = await play(text, model)
    assert execution.answer == "done"
    assert [call.error for call in execution.trace] == ["cancelled"] * 3
    assert model.in_flight == 0
    assert reason(await play(text, model, max_llm_calls=2)) is Reason.CALL_BUDGET


@pytest.mark.parametrize("body", ["return await answer(problem)", "while True: pass"])
async def test_a_cancelled_execution_leaves_nothing_running(body: str) -> None:
    model = ScriptedModel(delay=30.0)
    async with executor(model, own_seconds=20.0) as made:
        running = asyncio.create_task(made.execute(read_workflow(program(body)), task(), "key"))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert model.in_flight == 0
        model.delay = 0.0
        again = await made.execute(read_workflow(VOTE), task(), "key")
        assert again.answer == "42"
    assert interpreters() == []


async def test_workflows_do_not_see_each_other() -> None:
    leave = "SECRET = 'x'\n" + program("json.secret = 'x'\nreturn 'a'")
    look = program("try:\n    return SECRET\nexcept NameError:\n    return 'nothing'")
    async with executor() as made:
        await made.execute(read_workflow(leave), task(), "a")
        execution = await made.execute(read_workflow(look), task(), "b")
        assert execution.answer == "nothing"


# Order.

CHAINS = """\
class Workflow:
    def __init__(self):
        self.log = []

    async def chain(self, problem, i):
        x = await answer(problem)
        self.log.append(x)
        y = await review(problem, x)
        self.log.append(y)
        return await revise(problem, x, y)

    async def __call__(self, problem):
        last = await asyncio.gather(*[self.chain(problem, i) for i in range(4)])
        return f"{self.log} {last} {random.random()}"
"""


async def test_the_order_of_arrival_changes_nothing() -> None:
    delays: list[Callable[[int], float]] = [
        lambda n: 0.0,
        lambda n: 0.03 / n,
        lambda n: 0.002 * (n % 4),
        lambda n: 0.02 * ((7 * n) % 3),
    ]
    seen = set()
    for delay in delays:
        model = SeedModel(delay=delay)
        execution = await play(CHAINS, model, workers=2)
        assert execution.failure is None
        asked = sorted((r.seed, r.messages[0].content) for r in model.requests)
        trace = [(c.operator, tuple(c.arguments.items()), c.result) for c in execution.trace]
        seen.add((execution.answer, tuple(asked), tuple(trace)))
    assert len(seen) == 1


class SeedModel(ScriptedModel):
    """Replies with the seed of the request."""

    async def chat(self, request, deadline=None):
        await super().chat(request, deadline)
        return said(f"Answer: {request.seed}")


async def test_seeds_differ_by_call_and_by_key() -> None:
    model = ScriptedModel()
    async with executor(model) as made:
        for key in ("a", "b", "a"):
            await made.execute(read_workflow(VOTE), task(), key)
    a, b, again = (
        {r.seed for r in model.requests[start : start + 5]} for start in (0, 5, 10)
    )  # fmt: skip
    assert a == again
    assert len(a | b) == 10


async def test_time_and_chance_are_the_same_every_time() -> None:
    text = "import time, datetime\n" + program(
        "return f'{random.random()} {time.time()} {datetime.datetime.now()} {time.perf_counter()}'"
    )
    assert (await play(text)).answer == (await play(text)).answer


# Trace.


async def test_the_trace_tells_what_happened() -> None:
    sandbox = ScriptedSandbox([printed("6"), printed("42")])
    model = ScriptedModel("```python\nprint(1)\n```\nAnswer: 7")
    text = program(
        """\
        print("hello")
        a, b = await asyncio.gather(programmer(problem), answer("x" * 9000))
        return await ensemble(problem, [a, a, b])"""
    )
    execution = await play(text, model, sandbox)
    assert execution.answer == "6"
    assert execution.printed == "hello\n"
    programmer, answer, ensemble = execution.trace
    assert programmer.arguments == {"problem": task().problem}
    assert programmer.result == "6"
    assert programmer.usage == Usage(1, 100, 10)
    (exchange,) = programmer.exchanges
    assert "prints the answer" in exchange.prompt
    assert exchange.reply == model.script
    (run,) = programmer.children
    assert (run.operator, run.arguments) == ("run", {"program": "print(1)"})
    assert run.result == "ok\n6"
    assert len(answer.arguments["problem"]) < TEXT_CHARS + 100
    assert "characters cut" in answer.exchanges[0].prompt
    assert ensemble.arguments["solutions"] == '["6", "6", "7"]'
    assert ensemble.usage == Usage()
    assert 0 <= programmer.started <= ensemble.started <= execution.seconds


async def test_printing_without_end_is_cut_and_ends_with_the_program() -> None:
    execution = await play(program("while True: print('x' * 1000)"), own_seconds=0.3)
    assert reason(execution) is Reason.TIME_BUDGET
    assert 0 < len(execution.printed) <= 2000


def test_an_execution_is_an_answer_or_a_failure() -> None:
    with pytest.raises(ValueError, match="either"):
        Execution(None, None)


# Many.


class Meeting(ScriptedModel):
    """Answers nobody before so many requests are there at the same time."""

    awaited: int = 200

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.in_flight += 1
        while self.in_flight < self.awaited:
            await asyncio.sleep(0.01)
        return await super().chat(request, deadline)


async def test_waiting_workflows_do_not_hold_a_worker() -> None:
    """Forty of five calls each on one worker: were it held, they would never all be asking."""
    model = Meeting()
    async with executor(model, workers=1) as made, asyncio.timeout(120):
        workflow = read_workflow(VOTE)
        executions = await asyncio.gather(
            *(made.execute(workflow, task(), f"{i}") for i in range(40))
        )
    assert {execution.answer for execution in executions} == {"42"}
    assert len(model.requests) == 200


async def test_no_more_workflows_run_than_in_flight_allows() -> None:
    model = ScriptedModel(delay=0.05)
    async with executor(model, in_flight=2) as made:
        workflow = read_workflow(program("return await answer(problem)"))
        await asyncio.gather(*(made.execute(workflow, task(), f"{i}") for i in range(6)))
    assert model.most_in_flight == 2


async def test_settings_reach_the_model() -> None:
    model = ScriptedModel()
    settings = ExecutorSection(temperature=0.1, max_tokens=7)
    async with Executor(model, ScriptedSandbox(), WorkflowSection(workers=1), settings) as made:
        await made.execute(read_workflow(VOTE), task(), "key")
    assert {(r.temperature, r.max_tokens) for r in model.requests} == {(0.1, 7)}
