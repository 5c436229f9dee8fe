"""Replies of models as text: every form of thinking, code, final answers; and text for prompts."""

import re

import pytest
from hypothesis import given, strategies as st

from flowright.llm.control_tokens import fenced, fill, sanitise
from flowright.llm.replies import (
    boxed,
    code_blocks,
    extract_code,
    final_answer,
    spoken_answer,
    strip_thinking,
)

PAIRS = [
    ("<think>", "</think>"),
    ("<THINKING>", "</THINKING>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<reasoning_content>", "</reasoning_content>"),
    ("<seed:think>", "</seed:think>"),
    ('<think effort="high">', "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<ant:thinking>", "</ant:thinking>"),
    ("<thought_process>", "</thought_process>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysisWe see: ", "assistantfinal"),
    ("commentaryWe see: ", "assistantfinal"),
]
each_pair = pytest.mark.parametrize(("opening", "closing"), PAIRS, ids=[pair[0] for pair in PAIRS])


@each_pair
def test_a_thought_is_no_part_of_the_reply(opening: str, closing: str) -> None:
    reply = f"{opening}maybe 41\n```python\nno\n{closing}It is 42."
    assert strip_thinking(reply) == spoken_answer(reply) == "It is 42."
    assert strip_thinking(reply.removesuffix(f"{closing}It is 42.")) is None
    assert spoken_answer(f"\n {opening}maybe 41") == ""


@each_pair
def test_a_prompt_may_have_opened_the_thought(opening: str, closing: str) -> None:
    if "<|channel|>" not in opening and "We see" not in opening:
        assert strip_thinking(f"maybe 41{closing}It is 42.") == "It is 42."
        assert strip_thinking(f"```\nmaybe 41\n{closing}\nIt is 42.") == "\nIt is 42."


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("a <think>b</think> c", "a  c"),
        ("b</think> c", " c"),
        ("a <THINK>b", None),
        ("plain", "plain"),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("<think>a<think>b</think>c", "c"),
        ("The `<think>` tag opens a thought.", "The `<think>` tag opens a thought."),
        ("```\nx = '<think>'\n```", "```\nx = '<think>'\n```"),
        ("```\nx = '</think>'\n```", "```\nx = '</think>'\n```"),
        ("```\nx\n```\n<think>y", None),
        ("<|channel|>final<|message|>42<|return|>", "42"),
        ("<|channel|>analysis", None),
        ("analysiswe see assistantfinal42", "42"),
        ("analysis of variance", "analysis of variance"),
        ("Analysis: 42", "Analysis: 42"),
    ],
)
def test_strip_thinking(reply: str, said: str | None) -> None:
    assert strip_thinking(reply) == said


def test_an_answer_may_be_about_tags() -> None:
    assert spoken_answer("It is <think>.") == "It is <think>."


MARKS = [mark for pair in PAIRS for mark in pair] + ["```", "~~~", "\n", "`", "x", "answer:", "{"]


@given(st.lists(st.sampled_from(MARKS), max_size=12).map("".join))
def test_any_text_can_be_read(text: str) -> None:
    said = strip_thinking(text)
    assert said is None or len(said) <= len(text)
    assert len(final_answer(text)) <= len(text)
    assert len(extract_code(text)) <= len(text)
    assert code_blocks(fenced(text, "py")) == [("py", f"{text}\n")]
    assert strip_thinking(re.sub("analysis|commentary", "", sanitise(text))) is not None


# Code.


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("```\nx = 1\n```\nor\n```py\nx = 2\n```", "x = 2"),
        ("```python\nx = 1\n```\nOutput:\n```text\n1\n```", "x = 1"),
        ("x = 1\n", "x = 1"),
        ("```python\n    x = 1", "x = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("<think>```python\nno\n```</think>\n```python\nx = 1\n```", "x = 1"),
        ("~~~python\nx = 1\n~~~", "x = 1"),
        ("```python\r\nx = 1\r\n```\r\nDone.", "x = 1"),
    ],
)
def test_extract_code(reply: str, code: str) -> None:
    assert extract_code(reply) == code


def test_the_block_that_defines_the_function_is_the_program() -> None:
    reply = "```python\ndef f(): pass\n```\nUse it:\n```python\nprint(f())\n```"
    assert extract_code(reply, "f") == "def f(): pass"
    assert extract_code(reply) == "def f(): pass\n\nprint(f())"
    assert extract_code(reply, "g") == "def f(): pass\n\n\nprint(f())"


# Answers.


def test_final_answer_may_have_several_lines() -> None:
    assert final_answer("Answer:\n1. a\n2. b") == "1. a\n2. b"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1} \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{1} \\boxed{2", "1"),
        ("}\\boxed{a}}", "a"),
        ("\\boxed{a{b}", None),
        ("{}", None),
    ],
)
def test_boxed(text: str, inside: str | None) -> None:
    assert boxed(text) == inside


# Text for prompts.


def test_fences_are_longer_than_any_in_the_text() -> None:
    assert fenced("a") == "```\na\n```"
    assert fenced("``") == "```\n``\n```"
    assert fenced("x ````` y", "python") == "``````python\nx ````` y\n``````"


def test_fill_is_one_pass_and_strict() -> None:
    assert fill("{a}{b} {C} {}", a="{b}", b="{a}") == "{b}{a} {C} {}"
    with pytest.raises(KeyError):
        fill("{a}")
