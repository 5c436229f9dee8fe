"""The benchmark of hostile texts times every function that reads a model's text, and long texts
leave the event loop."""

import ast
import asyncio
import importlib
import itertools
import sys
import threading
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from flowright.core.errors import FailureError
from flowright.core.off_loop import MOST_CHARS, off_loop
from flowright.grading import text as answers
from flowright.grading.votes import groups
from flowright.llm.wire import MalformedReply, decode_reply
from flowright.workflows.language import parse
from flowright.workflows.operators import MAX_SOLUTIONS
from flowright.workflows.source import MAX_COMPLETION_CHARS, read_workflow

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
hostile_corpus = importlib.import_module("hostile_corpus")
hostile_functions = importlib.import_module("hostile_functions")
hostile_text = importlib.import_module("hostile_text")


SOURCE = Path(__file__).parents[1] / "src/flowright"
ROOMS = (
    "criteria",
    "environments",
    "grading",
    "judging",
    "llm",
    "simulation",
    "viewer/rendering",
    "workflows",
)
TEXTS = {"text", "answer", "completion", "reply", "content"}
"""Names of parameters that hold a model's text."""

NOT_TIMED: Mapping[str, str] = {
    "flowright.criteria.constraints.checkers:verdicts": "timed within score",
    "flowright.criteria.constraints.language:word_tokens": "timed within tokens",
    "flowright.criteria.rubrics.points:is_met": "calls compare off the loop",
    "flowright.environments.instructions.tasks:sentences_of": "takes a text of our own",
    "flowright.environments.judging.synthetic:first_sentence": "takes a row of a data set",
    "flowright.grading.gold:gold_check": "calls compare off the loop",
    "flowright.judging.measuring.benchmark_rows:digest_of": "hashes a text",
    "flowright.judging.rubrics.criteria_judge:ask_criteria": "asks a judge",
    "flowright.judging.verdict:task_query": "keeps the text as it is",
    "flowright.simulation.assessor:is_master_key": "timed within trigger",
    "flowright.simulation.assessor:probability": "timed within trigger",
    "flowright.simulation.assessor:pull": "timed within trigger",
    "flowright.simulation.protocol:tokens": "timed within parse",
    "flowright.simulation.values:right_value": "takes a task's text",
    "flowright.viewer.rendering.markup:source_hash": "hashes a script of our own",
    "flowright.viewer.rendering.markup:strip": "takes a text of our own",
    "flowright.viewer.rendering.svg:word": "takes a text of our own",
    "flowright.workflows.language:apply": "timed within read_workflow",
    "flowright.workflows.language:replace": "timed within read_workflow",
    "flowright.workflows.repair:repair": "timed within read_workflow",
    "flowright.workflows.source:source_in": "timed within read_workflow",
}


def takes_text(function: ast.stmt) -> bool:
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    strings = {one.arg for one in every if one.annotation and ast.unparse(one.annotation) == "str"}
    return not function.name.startswith("_") and bool(strings & TEXTS)


def test_every_function_over_a_models_text_is_timed() -> None:
    timed = {name.partition(" ")[0] for name in hostile_functions.FUNCTIONS}
    found = set()
    for path in [path for room in ROOMS for path in (SOURCE / room).rglob("*.py")]:
        module = ".".join(["flowright", *path.relative_to(SOURCE).with_suffix("").parts])
        body = ast.parse(path.read_text(encoding="utf-8")).body
        found |= {f"{module}:{each.name}" for each in body if takes_text(each)}  # pyright: ignore
    assert sorted(found - timed - NOT_TIMED.keys()) == []
    assert sorted(NOT_TIMED.keys() - found) == [], "it is gone; take it out"
    for name in timed:
        module, _, attribute = name.partition(":")
        assert hasattr(importlib.import_module(module), attribute), name
    assert hostile_functions.BOUNDED.keys() <= timed


def test_every_text_is_read_or_refused(request: pytest.FixtureRequest) -> None:
    """Without ``--all`` each function gets another fourth of the texts."""
    share = 1 if request.config.getoption("--all") else 4
    shapes = hostile_corpus.SHAPES.values(), map(hostile_corpus.repeated, hostile_corpus.UNITS)
    texts = [text(300) for text in itertools.chain(*shapes)]
    for place, function in enumerate(hostile_functions.FUNCTIONS.values()):
        for text in texts[place % share :: share]:
            hostile_text.seconds(function, text)


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


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_marks_are_put_in_order_by_thirties(form: Literal["NFC", "NFKC"]) -> None:
    """All that may be a combining mark is known: what is left out could stand in a run of any
    length, which takes quadratic time."""
    for mark in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.combining(unicodedata.normalize("NFKD", mark)[0]):
            assert answers._MARKS.fullmatch(mark * 30), hex(ord(mark))
    text = "a" + "\u0301\u0316" * 10 + "é"
    assert answers.normalised(form, text) == unicodedata.normalize(form, text)
    long = "a" + "\u0301\u0316" * 20
    assert answers.normalised(form, long) != unicodedata.normalize(form, long)


def test_a_program_of_marks_is_not_parsed() -> None:
    with pytest.raises(SyntaxError, match="in a row"):
        parse("a" + "\u0301\u0316" * 1000)


async def test_long_texts_are_read_one_at_a_time() -> None:
    reading, most = 0, 0

    def work() -> None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.005)
        reading -= 1

    await asyncio.gather(*(off_loop(work, "a" * (MOST_CHARS + 1)) for _ in range(8)))
    assert most == 1
