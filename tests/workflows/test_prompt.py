"""Prompts, their truncation, and the grammar of workflows."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st
from workflow_doubles import FAILED, PASSED, ScriptedModel, ScriptedSandbox, printed, task

from flowright.config.workflow import WorkflowSection
from flowright.core.errors import UserError
from flowright.data.task import KINDS, Kind
from flowright.llm.chat import Message
from flowright.llm.replies import code_blocks
from flowright.policy.sampling import CUT_MARKER, render
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import (
    SHAPES,
    draw_program,
    fixed_workflows,
    programs_for,
    self_consistency,
    shapes_for,
)
from flowright.workflows.operators import OPERATORS
from flowright.workflows.prompt import build_messages
from flowright.workflows.source import read_workflow


class Characters:
    """A tokenizer whose tokens are characters, with a chat template in angle brackets."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        turns = [f"<{turn['role']}>{turn['content']}</>" for turn in conversation]
        return "".join(turns) + "<assistant>"

    def encode(self, text: Any, **options: Any) -> list[int]:
        assert options == {"add_special_tokens": False}
        return [ord(character) for character in text]

    def decode(self, token_ids: Any, **options: Any) -> str:
        return "".join(map(chr, token_ids))


def text_of(ids: tuple[int, ...]) -> str:
    return Characters().decode(ids)


# Prompts.


def test_the_full_prompt_teaches_the_language_and_ends_with_the_problem() -> None:
    system, user = build_messages(task(), "full", WorkflowSection(max_llm_calls=7, max_tokens=99))
    assert (system.role, user.role) == ("system", "user")
    for operator in OPERATORS.values():
        assert f"`await {operator.signature}`" in system.content
    for phrase in ("At most 7 calls", "99 tokens", "inheritance", "before a branch", "gather"):
        assert phrase in system.content
    assert task().problem in user.content
    assert task().problem not in system.content
    assert "{" not in system.content.replace('["passed"]', "").replace("{self", "")


def test_the_full_prompt_has_the_length_that_was_planned() -> None:
    system, _ = build_messages(task(), "full")
    assert 4500 < len(system.content) < 6500  # about 1,300 to 1,600 tokens of Qwen2.5


async def test_the_examples_of_the_full_prompt_are_valid_and_run() -> None:
    system, _ = build_messages(task(), "full")
    programs = [body for language, body in code_blocks(system.content) if language == "python"]
    assert len(programs) == 3
    model = ScriptedModel("Answer: 42")
    sandbox = ScriptedSandbox([printed("")], [FAILED, PASSED])
    async with Executor(model, sandbox, WorkflowSection(workers=1)) as executor:
        for program in programs:
            workflow = await executor.validate(program)
            assert workflow.repairs == ()
            assert (await executor.execute(workflow, task("code"), "key")).failure is None


def test_the_compact_prompt_is_short() -> None:
    (message,) = build_messages(task(question="?"), "compact")
    assert message.role == "user"
    assert message.content.endswith("\n\n?")
    for operator in OPERATORS.values():
        names = ", ".join(parameter.name for parameter in operator.parameters)
        assert f" {operator.name}({names})" in message.content
    assert len(message.content.split()) <= 90


def test_the_prompt_does_not_say_what_only_the_grader_knows() -> None:
    of = task("code", reference="SECRET1", hidden_tests=("SECRET2",), alternatives=("SECRET3",))
    for form in ("full", "compact"):
        for message in build_messages(of, form):
            assert "SECRET" not in message.content


# Truncation.


def test_a_prompt_that_fits_is_the_template_s() -> None:
    prompt = render([Message("system", "s"), Message("user", "p")], Characters(), 100)
    assert text_of(prompt.token_ids) == "<system>s</><user>p</><assistant>"
    assert not prompt.truncated


def test_a_prompt_that_just_fits_is_not_cut() -> None:
    message = Message("user", "x" * 200)
    size = len(render([message], Characters(), 1000).token_ids)
    assert not render([message], Characters(), size).truncated
    assert render([message], Characters(), size - 1).truncated


def test_a_long_problem_loses_its_middle_and_says_so() -> None:
    problem = "BEGIN" + "x" * 5000 + "END"
    prompt = render([Message("system", "s"), Message("user", problem)], Characters(), 500)
    text = text_of(prompt.token_ids)
    assert prompt.truncated
    assert 495 <= len(prompt.token_ids) <= 500
    assert "<system>s</><user>BEGIN" in text
    assert "END</><assistant>" in text
    assert CUT_MARKER in text
    assert prompt.shown in text and prompt.shown.startswith("BEGINx") and CUT_MARKER in prompt.shown


def test_no_room_for_the_problem_is_the_user_s_to_mend() -> None:
    with pytest.raises(UserError, match=r"policy\.max_prompt_tokens: 200 leaves no room"):
        render([Message("system", "s" * 300), Message("user", "x" * 400)], Characters(), 200)


@given(st.text(min_size=1, max_size=400), st.integers(120, 400))
def test_never_longer_than_allowed(problem: str, limit: int) -> None:
    prompt = render([Message("user", problem)], Characters(), limit)
    assert len(prompt.token_ids) <= limit
    if not prompt.truncated:
        assert problem in text_of(prompt.token_ids)


# The grammar.


def test_every_kind_has_several_shapes_of_documented_operators() -> None:
    for kind in KINDS:
        assert len(shapes_for(kind)) >= 5
        for name in shapes_for(kind):
            for operator in SHAPES[name].operators:
                assert kind in OPERATORS[operator].kinds


def test_the_shapes_use_every_operator() -> None:
    assert {o for shape in SHAPES.values() for o in shape.operators} == set(OPERATORS)


def test_fixed_workflows_are_the_canonical_programs() -> None:
    assert fixed_workflows().keys() == SHAPES.keys()
    assert fixed_workflows("code").keys() == set(shapes_for("code"))
    assert fixed_workflows()["step_by_step"] == (
        "async def workflow(problem):\n    return await answer(problem)"
    )
    assert "range(5)" in fixed_workflows()["self_consistency"]
    assert self_consistency(9) == fixed_workflows()["self_consistency"].replace(
        "range(5)", "range(9)"
    )


def test_programs_are_drawn_uniformly() -> None:
    rng = random.Random(0)
    for kind in KINDS:
        programs = programs_for(kind)
        assert len(set(programs)) == len(programs) > 20
        assert set(fixed_workflows(kind).values()) <= set(programs)
        drawn = Counter(draw_program(kind, rng) for _ in range(5000))
        assert drawn.keys() == set(programs)
        for count in drawn.values():
            assert abs(count / 5000 - 1 / len(programs)) < 0.015


@given(st.sampled_from(KINDS), st.integers())
def test_what_is_drawn_is_valid_short_and_for_its_kind(kind: Kind, seed: int) -> None:
    program = draw_program(kind, random.Random(seed))
    workflow = read_workflow(program)
    assert workflow.repairs == ()
    assert workflow.entry == "function"
    assert workflow.calls
    assert all(kind in OPERATORS[name].kinds for name in workflow.calls)
    assert program.count("\n") < 12
    assert len(program) < 300
    assert draw_program(kind, random.Random(seed)) == program


async def test_what_is_drawn_runs() -> None:
    rng = random.Random(1)
    model = ScriptedModel("```python\nx = 1\n```\nAnswer: 42")
    async with Executor(
        model, ScriptedSandbox([printed("42")], [FAILED]), WorkflowSection(workers=1)
    ) as executor:
        for kind in KINDS:
            for number in range(60):
                workflow = await executor.validate(draw_program(kind, rng))
                execution = await executor.execute(workflow, task(kind), f"{number}")
                assert execution.failure is None
