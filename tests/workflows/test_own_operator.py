"""Operators of a user's own: the page in the docs as it is written, and what may be declared."""

import sys
from pathlib import Path

import pytest
from documented import write_programs
from workflow_doubles import ScriptedModel, ScriptedSandbox, task

from flowright.config.workflow import WorkflowSection
from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.environments.registry import load_config
from flowright.workflows.context import CallContext
from flowright.workflows.executor import Execution, Executor
from flowright.workflows.operators import OPERATORS
from flowright.workflows.prompt import build_messages
from flowright.workflows.reference import docs_page, stubs
from flowright.workflows.registry import Operator, Operators, bind, operator

LIMITS = WorkflowSection(operators=("my_operators",), workers=1)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's files in the working directory, with a corpus; its example program."""
    written = write_programs("extending.md", tmp_path)
    assert {"retrieval.yaml", "my_operators.py", "workflow.py"} <= {*written}
    (tmp_path / "corpus").mkdir()
    text = "The Nile is a river in Africa.\n\nThe Danube flows through Vienna and Budapest.\n"
    (tmp_path / "corpus/rivers.txt").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield (tmp_path / "workflow.py").read_text(encoding="utf-8")
    sys.modules.pop("my_operators", None)


async def execution(text: str, limits: WorkflowSection, model: ScriptedModel) -> Execution:
    async with Executor(model, ScriptedSandbox(), limits) as executor:
        workflow = await executor.validate(text)
        return await executor.execute(workflow, task("qa", question="Through Vienna?"), "key")


async def test_the_page_s_operator_serves_a_workflow(own: str) -> None:
    assert load_config("retrieval.yaml").workflow.operators == LIMITS.operators
    model = ScriptedModel("Danube")
    done = await execution(own, LIMITS, model)
    assert done.answer == "Danube"
    assert "flows through Vienna" in model.prompts[0]
    assert "Nile" not in model.prompts[0]
    assert [call.operator for call in done.trace] == ["search", "generate"]
    assert done.trace[0].arguments == {"query": "Through Vienna?", "k": "1"}


async def test_a_set_of_operators_is_one_run_s_own(own: str) -> None:
    full, compact = (build_messages(task("qa"), form, LIMITS)[0].content for form in FORMS)
    assert "`await search(query: str, k: int = 3) -> list[str]`" in full
    assert "search(query, k)" in compact
    assert "## search" in docs_page(OPERATORS.with_modules(["my_operators"]))
    assert all("search" not in build_messages(task("qa"), form)[0].content for form in FORMS)
    with pytest.raises(FailureError) as caught:
        await execution(own, WorkflowSection(workers=1), ScriptedModel())
    assert caught.value.failure.reason is Reason.TYPE


FORMS = ("full", "compact")


@pytest.mark.parametrize(
    ("call", "reason"),
    [("search(problem, '1')", Reason.TYPE), ("search(problem, len([])/2)", Reason.TYPE)],
)
async def test_a_call_that_does_not_fit_is_found_before_it_is_made(own, call, reason) -> None:
    with pytest.raises(FailureError) as caught:
        await execution(f"async def workflow(problem):\n    return await {call}", LIMITS, MODEL)
    assert caught.value.failure.reason is reason


MODEL = ScriptedModel()


def test_a_module_that_cannot_be_used_says_why(own: str) -> None:
    with pytest.raises(ConfigError, match=r"workflow.operators: no_such: no module no_such"):
        OPERATORS.with_modules(["no_such"])
    with pytest.raises(ConfigError, match="json has no operator"):
        OPERATORS.with_modules(["json"])


# Signatures.


def made(run) -> Operator:
    return operator(summary="s", example="e")(run)


async def everything(
    call: CallContext,
    text: str,
    count: int,
    share: float = 0.5,
    flag: bool = False,
    names: list[str] | None = None,
    more: dict | None = None,
) -> dict[str, int]:
    """Does all."""
    return {"count": count}


def test_every_type_goes_into_signature_stub_and_check() -> None:
    one = made(everything)
    signature = (
        "everything(text: str, count: int, share: float = 0.5, flag: bool = False, "
        "names: list[str] | None = None, more: dict | None = None) -> dict"
    )
    assert one.signature == signature
    assert "names: list[str] | tuple[str, ...] | None = None" in stubs(Operators([one]))
    more = {"a": [1, {"b": None}]}
    bound = bind(one, ("t", True), {"share": 1, "names": ("x",), "more": more}, 100)
    assert bound == {
        "text": "t", "count": 1, "share": 1.0, "flag": False, "names": ["x"], "more": more
    }  # fmt: skip
    assert type(bound["count"]) is int
    assert type(bound["share"]) is float
    assert bound["more"] is not more


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"count": 1.0}, Reason.BAD_ARGUMENT),
        ({"count": "1"}, Reason.BAD_ARGUMENT),
        ({"count": None}, Reason.BAD_ARGUMENT),
        ({"count": 10**5000}, Reason.BAD_ARGUMENT),
        ({"share": float("nan")}, Reason.BAD_ARGUMENT),
        ({"flag": 1}, Reason.BAD_ARGUMENT),
        ({"names": "ab"}, Reason.BAD_ARGUMENT),
        ({"names": {"a": "b"}}, Reason.BAD_ARGUMENT),
        ({"more": ["a"]}, Reason.BAD_ARGUMENT),
        ({"more": {1: "a"}}, Reason.BAD_ARGUMENT),
        ({"more": {"a": b"x"}}, Reason.BAD_ARGUMENT),
        ({"more": {"a": [[[[[[[[[1]]]]]]]]]}}, Reason.BAD_ARGUMENT),
        ({"more": {"a": [0] * 5000}}, Reason.SIZE_BUDGET),
        ({"more": {"a": "x" * 200}}, Reason.SIZE_BUDGET),
    ],
)
def test_values_that_do_not_fit_are_the_workflow_s_fault(kwargs, reason) -> None:
    with pytest.raises(FailureError) as caught:
        bind(made(everything), ("t",), {"count": 1, **kwargs}, 100)
    assert caught.value.failure.reason is reason


async def test_a_dict_with_known_keys_is_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = '''
from __future__ import annotations
from typing import TypedDict
from flowright.workflows.context import CallContext
from flowright.workflows.registry import operator

class Seen(TypedDict):
    label: str
    score: float | None

@operator(summary="s", example="e", llm_calls="0")
async def look_up(call: CallContext, name: str | None = None) -> Seen:
    """Looks."""
    return {"label": name or "none", "score": None}

@operator(summary="s", example="e", llm_calls="0")
async def say(call: CallContext, seen: dict) -> str:
    """Says."""
    return 3 if seen["label"] == "three" else seen["label"]
'''
    (tmp_path / "keyed_operators.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    limits = WorkflowSection(operators=("keyed_operators",), workers=1)
    program = "async def workflow(problem):\n    return await say(await look_up({}))"
    assert (await execution(program.format("'two'"), limits, MODEL)).answer == "two"
    assert (await execution(program.format("None"), limits, MODEL)).answer == "none"
    failure = (await execution(program.format("'three'"), limits, MODEL)).failure
    assert failure is not None
    assert failure.reason is Reason.INTERNAL
    assert "operator say returned a int, not str" in failure.message
    with pytest.raises(FailureError, match="labell"):
        await execution(
            "async def workflow(problem):\n    return (await look_up())['labell']", limits, MODEL
        )
    with pytest.raises(FailureError, match="Mapping"):
        await execution(program.replace("await look_up({})", "'x'"), limits, MODEL)
    del sys.modules["keyed_operators"]


async def odd(call: CallContext, a: set[str], *rest: str, b: list[int] | None = None, c=1):
    return a


async def print_(call: CallContext, text: int = "x") -> str:  # pyright: ignore
    """Prints."""
    return ""


def plain(call: CallContext) -> str:
    """Not a coroutine."""
    return ""


def test_what_the_language_cannot_have_is_refused_with_a_line_each() -> None:
    with pytest.raises(ConfigError) as caught:
        made(odd)
    problems = "\n".join(caught.value.problems)
    for part in (
        "no docstring",
        "a: set",
        "*rest",
        "b: ",
        "c=1: only plain",
        "what it returns has no",
    ):
        assert part in problems
    assert "list[str]" in problems
    with pytest.raises(ConfigError, match="cannot use this name") as caught:
        made(print_)
    assert "default 'x' is not of type int" in str(caught.value)
    with pytest.raises(ConfigError, match="async def"):
        made(plain)


def test_two_operators_of_one_name_are_a_mistake() -> None:
    async def answer(call: CallContext, problem: str) -> str:
        """Mine."""
        return problem

    with pytest.raises(ConfigError, match=r"operator answer: .* rename one"):
        Operators([*OPERATORS.values(), made(answer)])
    assert len(Operators([*OPERATORS.values(), OPERATORS["answer"]])) == len(OPERATORS)
