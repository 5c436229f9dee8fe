"""The benchmark of hostile texts names every function that reads a model's text, and long texts
leave the event loop. How long they take is the benchmark's to say."""

import importlib
import sys
import threading
from pathlib import Path

import pytest

from flowright.errors import FailureError
from flowright.grading.compare import groups
from flowright.llm.wire import MalformedReply, decode_reply
from flowright.off_loop import MOST_CHARS, off_loop
from flowright.workflows.language import parse
from flowright.workflows.operators import MAX_SOLUTIONS
from flowright.workflows.source import MAX_COMPLETION_CHARS, read_workflow

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
hostile_functions = importlib.import_module("hostile_functions")
hostile_text = importlib.import_module("hostile_text")


def test_no_function_over_a_models_text_is_forgotten() -> None:
    timed = {name.partition(" ")[0] for name in hostile_functions.FUNCTIONS}
    modules = hostile_functions.public_functions()
    for module, names in modules.items():
        if module not in hostile_functions.NO_TEXT:
            assert set(names) - timed - hostile_functions.ELSEWHERE.keys() == set()
        else:
            assert not timed & set(names), f"{module} is timed"
    known = {name for names in modules.values() for name in names}
    assert hostile_functions.ELSEWHERE.keys() <= known, "it is gone; take it out"
    assert hostile_functions.NO_TEXT.keys() <= modules.keys(), "it is gone; take it out"
    assert hostile_functions.BOUNDED.keys() <= timed


@pytest.mark.parametrize("name", hostile_functions.FUNCTIONS)
def test_every_text_can_be_read(name: str) -> None:
    for unit in hostile_text.UNITS:
        hostile_text.seconds(hostile_functions.FUNCTIONS[name], hostile_text.filled(str, unit, 300))


async def test_long_texts_are_read_in_a_thread_and_short_ones_at_once() -> None:
    assert await off_loop(threading.get_ident, "a" * MOST_CHARS) == threading.get_ident()
    assert await off_loop(threading.get_ident, "a" * MOST_CHARS, "b") != threading.get_ident()


def test_a_completion_is_measured_before_it_is_read() -> None:
    with pytest.raises(FailureError, match="size_budget"):
        read_workflow("```<think>" * MAX_COMPLETION_CHARS)


def test_only_what_may_be_a_program_is_parsed() -> None:
    """Python's own compiler is not linear in how deep a program nests."""
    parse.cache_clear()
    with pytest.raises(FailureError, match="size_budget"):
        read_workflow("async def workflow(problem):\n return " + "lambda: " * 20_000)
    assert parse.cache_info().misses == 0


def test_a_reply_that_nests_without_end_is_malformed() -> None:
    with pytest.raises(MalformedReply):
        decode_reply(b"[" * 100_000)


def test_a_vote_over_long_answers_compares_them_as_they_are() -> None:
    votes = [f"{'x ' * 9_000}{n % 2}" for n in range(MAX_SOLUTIONS)]
    assert [len(same) for same in groups(votes, "qa")] == [MAX_SOLUTIONS // 2] * 2
