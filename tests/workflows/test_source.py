"""From completion to program: extraction, every repair, every failure with its line."""

import textwrap

import pytest
from examples import up_to
from hypothesis import given, strategies as st

from flowright.core.errors import FailureError, Reason
from flowright.workflows.grammar import fixed_workflows
from flowright.workflows.operators import OPERATORS
from flowright.workflows.source import MAX_SOURCE_CHARS, Workflow, extract, read_workflow

PLAIN = "async def workflow(problem):\n    return await answer(problem)"
IN_CLASS = """\
class Workflow:
    async def __call__(self, problem):
        return await answer(problem)"""


def failure(text: str, finish_reason: str = "stop") -> tuple[Reason, int | None, str]:
    with pytest.raises(FailureError) as caught:
        read_workflow(text, finish_reason)
    return caught.value.failure.reason, caught.value.failure.line, caught.value.failure.message


def method(body: str) -> str:
    return "class Workflow:\n    async def __call__(self, problem):\n" + textwrap.indent(
        textwrap.dedent(body), "        "
    )


def body_of(workflow: Workflow) -> str:
    return "\n".join(workflow.program.rstrip().split("\n")[:-1])


def test_a_program_that_needs_nothing_stays_as_it_is() -> None:
    for text, entry, start in (
        (PLAIN, "function", "await workflow(problem)"),
        (IN_CLASS, "class", "await Workflow()(problem)"),
    ):
        workflow = read_workflow(text)
        assert workflow.source == text
        assert workflow.program == f"{text}\n{start}\n"
        assert (workflow.entry, workflow.repairs) == (entry, ())
        assert workflow.calls == ("answer",)


EXTRACTIONS = {
    "fence": (f"```python\n{PLAIN}\n```", ("fences_removed",)),
    "fence without language": (f"```\n{PLAIN}\n```", ("fences_removed",)),
    "open fence": (f"Sure!\n```python\n{PLAIN}", ("fences_removed",)),
    "longer fence": (f"````python\n{PLAIN}\n````", ("fences_removed",)),
    "tildes": (f"~~~\n{PLAIN}\n~~~", ("fences_removed",)),
    "chatter round a fence": (
        f"Here is the workflow:\n\n```python\n{PLAIN}\n```\nIt answers the problem.",
        ("fences_removed",),
    ),
    "the last program wins": (
        f"```python\n{PLAIN.replace('answer', 'review')}\n```\nor better\n```python\n{PLAIN}\n```",
        ("fences_removed",),
    ),
    "a later block that is no program": (
        f"```python\n{PLAIN}\n```\nRun it:\n```bash\npython x.py\n```",
        ("fences_removed",),
    ),
    "chatter before and behind": (
        f"Let me think about it.\n{PLAIN}\n\nThis calls the model once.",
        ("chatter_removed",),
    ),
    "thinking": (
        f"<think>maybe\nasync def workflow(problem): pass\n</think>\n{PLAIN}",
        (),
    ),
    "tags": (f"<graph>\n{PLAIN}\n</graph>", ("chatter_removed",)),
    "windows line ends": (PLAIN.replace("\n", "\r\n"), ()),
    "indented": (textwrap.indent(PLAIN, "    "), ("dedented",)),
    "indented in a fence": (
        f"1. First:\n\n   ```python\n{textwrap.indent(PLAIN, '   ')}\n   ```",
        ("fences_removed", "dedented"),
    ),
}


@pytest.mark.parametrize(("text", "repairs"), EXTRACTIONS.values(), ids=EXTRACTIONS.keys())
def test_extraction(text: str, repairs: tuple[str, ...]) -> None:
    workflow = read_workflow(text)
    assert body_of(workflow) == PLAIN
    assert workflow.repairs == repairs


def test_imports_and_helpers_before_the_entry_belong_to_the_program() -> None:
    program = f"import re\n\nLIMIT = 3\n\n\ndef short(text):\n    return text[:LIMIT]\n\n\n{PLAIN}"
    workflow = read_workflow(f"Well.\n\n{program}\n\nThat is all.")
    assert body_of(workflow) == program


REPAIRS = {
    "a project's import": (
        f"from scripts.llm import create_llm\nimport operator_zoo as zoo\n{PLAIN}",
        f"pass\npass\n{PLAIN}",
        ("imports_removed",),
    ),
    "an import of the operators": (
        f"from operators import answer, review\n{PLAIN}",
        f"pass\n{PLAIN}",
        ("imports_removed",),
    ),
    "an unused library among used modules": (
        f"import numpy, math\nX = math.pi\n{PLAIN}",
        f"import math\nX = math.pi\n{PLAIN}",
        ("imports_removed",),
    ),
    "annotations from the future": (
        f"from __future__ import annotations\n{PLAIN}",
        f"pass\n{PLAIN}",
        ("imports_removed",),
    ),
    "an import over several lines keeps the lines": (
        f"from scripts.x import (\n    a,\n    b,\n)\n{PLAIN}",
        f"pass\n\n\n\n{PLAIN}",
        ("imports_removed",),
    ),
    "the interpreter's own modules stay": (
        f"import re, json\nfrom typing import List\n{PLAIN}",
        f"import re, json\nfrom typing import List\n{PLAIN}",
        (),
    ),
    "a main block": (
        f'{PLAIN}\nif __name__ == "__main__":\n    import asyncio\n    asyncio.run(workflow("x"))',
        f"{PLAIN}\npass",
        ("main_block_removed",),
    ),
    "Literal hints": (
        "from typing import Literal\nasync def workflow(problem, mode: Literal['a', 'b'] = 'a'):\n"
        "    return await answer(problem)",
        "from typing import Literal\nasync def workflow(problem, mode: str = 'a'):\n"
        "    return await answer(problem)",
        ("literal_hints_removed",),
    ),
    "edits that overlap are not made": (
        "from typing import Literal\nasync def workflow(p, q: Literal[Literal['a']] = 'a'): pass",
        "from typing import Literal\nasync def workflow(p, q: Literal[Literal['a']] = 'a'): pass",
        (),
    ),
    "object as base": (
        IN_CLASS.replace("Workflow:", "Workflow(object):"),
        IN_CLASS,
        ("object_base_removed",),
    ),
    "operators of self": (
        IN_CLASS.replace("answer(", "self.answer("),
        IN_CLASS,
        ("self_removed_from_operators",),
    ),
    "a method of that name stays": (
        IN_CLASS.replace("await answer(", "await self.review(")
        + "\n    async def review(self, problem):\n        return problem",
        IN_CLASS.replace("await answer(", "await self.review(")
        + "\n    async def review(self, problem):\n        return problem",
        (),
    ),
    "a variable named like the operator": (
        "async def workflow(problem):\n    answer = await answer(problem)\n    return f'{answer}!'",
        "async def workflow(problem):\n    answer_ = await answer(problem)\n"
        "    return f'{answer_}!'",
        ("operator_shadowed",),
    ),
    "a parameter named like an operator is the program's affair": (
        "async def workflow(problem, answer=None):\n    answer = await answer(problem)\n"
        "    return answer",
        "async def workflow(problem, answer=None):\n    answer = await answer(problem)\n"
        "    return answer",
        (),
    ),
    "a branch that leaves a variable unbound": (
        "async def workflow(problem):\n    if problem:\n        x = 'a'\n    return x",
        "async def workflow(problem):\n    x = None\n    if problem:\n        x = 'a'\n"
        "    return x",
        ("unbound_initialised",),
    ),
    "... behind a docstring, in a method": (
        'class Workflow:\n    async def __call__(self, problem):\n        """Doc."""\n'
        "        for x in problem:\n            y = x\n        return x + y",
        'class Workflow:\n    async def __call__(self, problem):\n        """Doc."""\n'
        "        x = y = None\n        for x in problem:\n            y = x\n        return x + y",
        ("unbound_initialised",),
    ),
    "... in one line": (
        f"def f(p): p and (x := 1); return x\n{PLAIN}",
        f"def f(p): x = None; p and (x := 1); return x\n{PLAIN}",
        ("unbound_initialised",),
    ),
    "a module that needs no import": (
        "async def workflow(problem):\n    return math.pi",
        "import math\nasync def workflow(problem):\n    return math.pi",
        (),
    ),
    "a forgotten import": (
        "async def workflow(problem):\n    return random.choice(List)",
        "from typing import List; import random\nasync def workflow(problem):\n"
        "    return random.choice(List)",
        ("imports_added",),
    ),
    "text that is not ASCII before an edit": (
        "async def workflow(problem):\n    é = '日本'; review = await review(problem, é)\n"
        "    return review",
        "async def workflow(problem):\n    é = '日本'; review_ = await review(problem, é)\n"
        "    return review_",
        ("operator_shadowed",),
    ),
}


@pytest.mark.parametrize(("text", "program", "repairs"), REPAIRS.values(), ids=REPAIRS.keys())
def test_repairs(text: str, program: str, repairs: tuple[str, ...]) -> None:
    workflow = read_workflow(text)
    assert body_of(workflow) == program
    assert workflow.repairs == repairs


def test_lines_are_those_of_the_completion_s_program() -> None:
    workflow = read_workflow(
        "def first(p):\n"
        "    if p:\n"
        "        x = 1\n"
        "    return x\n"
        "async def workflow(problem):\n"
        "    for y in problem:\n"
        "        pass\n"
        "    return y, math.pi"
    )
    assert workflow.inserted == (1, 3, 8)
    program = workflow.program.split("\n")
    for line in workflow.source.split("\n"):
        assert workflow.source_line(program.index(line) + 1) == (
            workflow.source.split("\n").index(line) + 1
        )


FAILURES = {
    "nothing": ("", Reason.NO_PROGRAM, None),
    "prose": ("I would call the model twice.", Reason.NO_PROGRAM, None),
    "another program": ("```python\nprint('x')\n```", Reason.NO_PROGRAM, None),
    "a nested entry": (f"def f():\n{textwrap.indent(PLAIN, '    ')}", Reason.NO_PROGRAM, None),
    "a class without a call": (
        "x = 1\nclass Workflow:\n    def run(self): pass",
        Reason.NO_PROGRAM,
        2,
    ),
    "syntax": ("```\nasync def workflow(problem):\n    return await await\n```", Reason.SYNTAX, 2),
    "await outside async": (
        "async def workflow(problem): pass\ndef f():\n    await answer('x')",
        Reason.SYNTAX,
        3,
    ),
    "break outside a loop": ("async def workflow(problem):\n    break", Reason.SYNTAX, 2),
    "nests too deeply": (
        f"async def workflow(problem):\n    return {'(' * 3000}{')' * 3000}",
        Reason.SYNTAX,
        2,
    ),
    "minus signs": (
        f"async def workflow(problem):\n    return {'-' * 15000}1",
        Reason.SYNTAX,
        None,
    ),
    "too long": (f"{PLAIN}\n#{'x' * MAX_SOURCE_CHARS}", Reason.SIZE_BUDGET, None),
    "a completion too long": ("x" * 10 * MAX_SOURCE_CHARS + PLAIN, Reason.SIZE_BUDGET, None),
    "not async": ("x = 1\nclass Workflow:\n    def __call__(self, problem): return ''",
                  Reason.TYPE, 3),
    "no problem": ("async def workflow(): return ''", Reason.TYPE, 1),
    "no problem in a class": (
        "class Workflow:\n    async def __call__(self):\n        return ''", Reason.TYPE, 2),
    "a parameter that nobody fills": (
        "async def workflow(problem, budget): return ''", Reason.TYPE, 1),
    "an __init__ that wants more": (
        "class Workflow:\n    def __init__(self, name, llm_config): pass\n"
        "    async def __call__(self, problem): return ''", Reason.TYPE, 2),
    "inheritance": (f"class A:\n    pass\nclass B(A):\n    pass\n{PLAIN}", Reason.UNSUPPORTED, 3),
    "metaclass": (f"class A(metaclass=type):\n    pass\n{PLAIN}", Reason.UNSUPPORTED, 1),
    "generator": (f"def f():\n    yield 1\n{PLAIN}", Reason.UNSUPPORTED, 2),
    "yield from": (f"def f():\n    yield from []\n{PLAIN}", Reason.UNSUPPORTED, 2),
    "del": (f"x = 1\ndel x\n{PLAIN}", Reason.UNSUPPORTED, 2),
    "async with": (method("async with problem:\n    return 1"), Reason.UNSUPPORTED, 3),
    "async for": (method("async for x in problem:\n    return 1"), Reason.UNSUPPORTED, 3),
    "async comprehension": (method("return [x async for x in problem]"), Reason.UNSUPPORTED, 3),
    "except star": (method("try:\n    pass\nexcept* ValueError:\n    pass"),
                    Reason.UNSUPPORTED, 3),
    "create_task": (method("asyncio.create_task(answer(problem))"), Reason.UNSUPPORTED, 3),
    "wait_for": (method("return await asyncio.wait_for(answer(problem), 3)"),
                 Reason.UNSUPPORTED, 3),
    "Semaphore": (method("gate = asyncio.Semaphore(3)"), Reason.UNSUPPORTED, 3),
    "return_exceptions": (
        method("return await asyncio.gather(answer(problem), return_exceptions=True)"),
        Reason.UNSUPPORTED, 3),
    "re.sub with a function": (
        method("return re.sub('a', lambda m: 'b', problem)"), Reason.UNSUPPORTED, 3),
    "decorated method": (
        "class Workflow:\n    @staticmethod\n    def f(): pass\n"
        "    async def __call__(self, problem): return ''", Reason.UNSUPPORTED, 3),
    "a line behind an inserted one": (
        "async def workflow(problem):\n    if problem:\n        x = 1\n    del problem\n"
        "    return x",
        Reason.UNSUPPORTED, 4),
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason", "line"), FAILURES.values(), ids=FAILURES.keys())
def test_failures(text: str, reason: Reason, line: int | None) -> None:
    assert failure(text)[:2] == (reason, line)


@pytest.mark.parametrize(
    "text", ["", "I would", "```python\nasync def workflow(problem):\n    ret ("]
)
def test_what_the_token_limit_cut_is_truncated(text: str) -> None:
    reason, _, message = failure(text, "length")
    assert reason is Reason.TRUNCATED
    assert "token limit" in message


def test_a_whole_program_in_a_cut_completion_is_a_program() -> None:
    assert read_workflow(f"```python\n{PLAIN}\n```\nThis wor", "length").calls == ("answer",)


def test_a_cut_completion_is_not_to_blame_for_another_fault() -> None:
    text = "async def workflow(problem):\n    del problem"
    assert failure(text, "length")[0] is Reason.UNSUPPORTED


def test_entry_point_is_filled_for_who_asks_for_it() -> None:
    workflow = read_workflow("async def workflow(problem, entry_point, k=3): return entry_point")
    assert workflow.program.endswith("await workflow(problem, entry_point=entry_point)\n")


def test_calls_come_in_the_order_of_the_text_without_what_is_hidden() -> None:
    workflow = read_workflow(
        "def review(x): return x\n"
        "async def workflow(problem):\n"
        "    a = await generate('x', await answer(problem)); b = review(a)\n"
        "    return await answer(b)"
    )
    assert workflow.calls == ("generate", "answer", "answer")


def test_programs_with_coroutines_of_their_own_are_concurrent() -> None:
    assert not read_workflow(IN_CLASS).concurrent
    chain = "async def chain(p):\n    return await answer(p)\n"
    assert read_workflow(chain + PLAIN).concurrent
    assert read_workflow(IN_CLASS.replace("answer(", "self(")).concurrent


def test_fixed_workflows_need_no_repair() -> None:
    for name, program in fixed_workflows().items():
        assert read_workflow(program).repairs == (), name


FRAGMENTS = st.sampled_from(
    [
        "class Workflow:\n", "async def workflow(problem):\n", "    async def __call__(self, p):\n",
        "```python\n", "```", "~~~\n", "        ", "    ", "\n", "\r", "\t", "\x00", "\ud800",
        "x = ", "if p:\n", "return x\n", "(", "[", "{", "'", '"""', "f'{x}'", "import numpy\n",
        "from x import (a,\n b)\n", "<think>", "</think>", "await ", "answer(problem)", "\\", "é日",
        "Literal['a']", "self.answer", "for i in p: ", "match p:\n", "lambda: ", ";", "@a\n",
        "1e999",
        'if __name__ == "__main__":\n    pass\n', "global x\n", "*", ":=",
    ]
)  # fmt: skip


@up_to(300)
@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=25).map("".join)), st.booleans())
def test_any_text_becomes_a_workflow_or_a_failure(text: str, cut: bool) -> None:
    try:
        workflow = read_workflow(text, "length" if cut else "stop")
    except FailureError as error:
        assert error.failure.line is None or error.failure.line >= 1
    else:
        assert set(workflow.calls) <= OPERATORS.keys()
        assert len(set(workflow.repairs)) == len(workflow.repairs)
        workflow.program.encode()


@given(st.lists(st.text(alphabet="ab \n", max_size=20), max_size=3))
def test_reading_a_program_again_changes_nothing(chatter: list[str]) -> None:
    source, _ = extract("\n".join([*chatter, f"```python\n{PLAIN}\n```", *chatter]))
    assert extract(source) == (source, ())
    assert source == PLAIN
