"""The benchmark of hostile texts names every function that reads a model's text, and long texts
leave the event loop. How long they take is the benchmark's to say."""

import asyncio
import importlib
import inspect
import pkgutil
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
from flowright.grading.votes import groups
from flowright.judging import schemas
from flowright.llm.wire import MalformedReply, decode_reply
from flowright.workflows.language import parse
from flowright.workflows.operators import MAX_SOLUTIONS
from flowright.workflows.source import MAX_COMPLETION_CHARS, read_workflow

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
hostile_corpus = importlib.import_module("hostile_corpus")
hostile_functions = importlib.import_module("hostile_functions")
hostile_text = importlib.import_module("hostile_text")


_ROOMS = (
    "answers",
    "constraints",
    "grading",
    "judge",
    "judge_reward",
    "judge_service",
    "judge_training",
    "instructions",
    "llm",
    "presentation",
    "viewer.rendering",
    "rubrics",
    "simulation",
    "workflows",
)

_ELSEWHERE: Mapping[str, str] = {
    name: reason
    for reason, names in {
        "calls compare off the loop, and what is left runs in the sandbox": """
            grading.gold:gold_check grading.gold:algebra""",
        "takes a task, not what a model wrote": """
            constraints.ifeval_words:draws_a_letter constraints.scoring:join
            grading.gold:told_in_words grading.gold:trusted_setup
            judge.doubts:is_verdict judge.second_reading:neutral
            simulation.cues:without simulation.values:right_value
            simulation.values:wrong_values simulation.values:stub simulation.values:mutations
            judge_service.wire:failed_response""",
        "takes a name or a number of our own": """
            constraints.language:stop_words constraints.language:missing
            constraints.language:optional_package presentation.choices:drawn_choice
            judge.answer_types:shown_answer_type viewer.rendering.terminal:bar viewer.rendering.terminal:heading
            viewer.rendering.terminal:line viewer.rendering.terminal:sparkline workflows.source:source_line""",
        "timed within another": """
            constraints.scoring:verdicts constraints.language:word_tokens
            constraints.language:part_of_speech constraints.language:is_emoji
            judge.remote_wire:encoded judge.remote_wire:body_of
            judge.remote_wire:read_verdict judge.remote_wire:response_of judge.rules:decide
            viewer.rendering.markup:join viewer.rendering.markup:asset
            viewer.rendering.markup:content_policy viewer.rendering.markup:source_hash
            viewer.rendering.markup:document viewer.rendering.markup:page
            viewer.rendering.markup:section viewer.rendering.markup:grid
            viewer.rendering.markup:strip viewer.rendering.markup:header
            viewer.rendering.markup:tile viewer.rendering.markup:table
            viewer.rendering.markup:table_row viewer.rendering.markup:facts
            viewer.rendering.markup:folded viewer.rendering.record_blocks:timeline_html
            judge_reward.arguments:request_id_of
            judge_reward.arguments:request_of judge_training.frames:shown
            judge_service.wire:invalid_response judge_service.wire:error_message
            simulation.protocol:tokens simulation.protocol:request_of workflows.language:nodes
            workflows.language:top workflows.language:bound_name workflows.language:binds
            workflows.language:is_here workflows.language:check_language workflows.trace:as_text
            simulation.assessor:pull simulation.assessor:probability
            simulation.assessor:is_master_key""",
        "takes the form of a request": """
            simulation.requested_format:asks_for_json simulation.requested_format:schema_of
            simulation.requested_format:choice_for simulation.requested_format:field_of_rule""",
        "reads what a server says of itself": """
            llm.client:openai_ends llm.client:model_cards llm.context:context_of""",
        "writes a request or a reply": """
            judge_training.reading:verdict_text judge_training.reading:reply_text
            llm.wire:encode_request simulation.requested_format:write_reply
            simulation.protocol:reply_of simulation.protocol:error_of""",
        "reads files": """
            llm.control_tokens:tokens_of judge_service.tables:rows_of
            judge_service.tables:write_rows judge_training.serving:read_form""",
        "reads a list of models": "llm.context:context_of",
        "takes settings": """
            judge_training.frames:wording_of judge_training.serving:chosen_form
            judge_training.serving:form_of_run simulation.assessor:check_biases
            judge_service.tables:check_out judge_service.openrlhf:add_openrlhf""",
    }.items()
    for name in names.split()
}
"""Public functions that are not timed by themselves, and why."""

_NO_TEXT: Mapping[str, str] = {
    name: reason
    for reason, names in {
        "takes verdicts, settings, tasks or figures": """
            answers.bars answers.opening answers.options answers.screen
            constraints.checkers constraints.drawable constraints.drawing constraints.figures
            constraints.requests constraints.screen constraints.table
            judge.audit judge.build judge.panel judge.query judge.retries judge.wording
            instructions.environment instructions.grades instructions.known_rule
            instructions.measures instructions.opening judge_service.own_model
            judge_training.environment judge_training.known_rule judge_training.measures
            judge_training.rewards judge_reward.result
            judge_reward.running llm.counters llm.retries presentation.display
            presentation.environment presentation.judging presentation.measures
            presentation.rewards presentation.rollouts presentation.table presentation.tasks
            viewer.rendering.charts viewer.rendering.report
            viewer.rendering.svg simulation.draws
            simulation.table workflows.exit workflows.grammar workflows.prompt
            workflows.reference workflows.registry""",
        "asks others, which are timed": """
            answers.asking answers.benchmarks answers.grading answers.healthbench answers.local
            answers.score_session answers.scoring answers.served answers.session
            judge_reward.adapter judge_reward.own_requests judge_reward.trl judge_reward.verl
            judge_service.app judge_service.serve judge_service.verl
            instructions.rollouts rubrics.asking rubrics.checkers rubrics.rules""",
        "reads and writes files": """
            answers.questions answers.responses
            constraints.files constraints.session judge_service.scoring""",
        "takes rows of a user's files": """
            instructions.display instructions.lengths instructions.loading instructions.tasks
            judge_training.display judge_training.files judge_training.forms judge_training.lengths
            judge_training.loading judge_training.negatives judge_training.rows
            judge_training.sealed judge_training.splits judge_training.tasks
            judge_training.transcribing judge_training.transcripts
            rubrics.files rubrics.forms rubrics.points rubrics.scaffolding rubrics.wording""",
        "reads what a server says of itself, cut": "llm.client llm.transport",
        "reads an exception's message, once": "workflows.faults",
        "writes replies, or starts a server": """
            simulation.large_models simulation.process""",
        "hands an answer on, to what is timed": "presentation.operators",
        "part of read_workflow": """
            workflows.aflow workflows.assignment workflows.edits workflows.repair""",
    }.items()
    for name in names.split()
}
"""Modules none of whose public functions is timed here, and why."""


def _public_functions() -> dict[str, list[str]]:
    """By module of the rooms, its own public functions, as the benchmark names them."""
    found: dict[str, list[str]] = {}
    for room in _ROOMS:
        package = importlib.import_module(f"flowright.{room}")
        for each in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"flowright.{room}.{each.name}")
            found[f"{room}.{each.name}"] = [
                f"{room}.{each.name}:{name}"
                for name, value in vars(module).items()
                if not name.startswith("_")
                and callable(value)
                and not inspect.isclass(value)
                and getattr(value, "__module__", "") == module.__name__
            ]
    return found


def test_no_function_over_a_models_text_is_forgotten() -> None:
    timed = {name.partition(" ")[0] for name in hostile_functions.FUNCTIONS}
    modules = _public_functions()
    for module, names in modules.items():
        if module not in _NO_TEXT:
            assert set(names) - timed - _ELSEWHERE.keys() == set()
        else:
            assert not timed & set(names), f"{module} is timed"
    known = {name for names in modules.values() for name in names}
    assert _ELSEWHERE.keys() <= known, "it is gone; take it out"
    assert _NO_TEXT.keys() <= modules.keys(), "it is gone; take it out"
    assert hostile_functions.BOUNDED.keys() <= timed


@pytest.mark.parametrize("name", hostile_functions.FUNCTIONS)
def test_every_text_can_be_read(name: str) -> None:
    """Or is refused."""
    for text in [
        *hostile_corpus.SHAPES.values(),
        *map(hostile_corpus.repeated, hostile_corpus.UNITS),
    ]:
        hostile_text.seconds(hostile_functions.FUNCTIONS[name], text(300))


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
            assert schemas._MARKS.fullmatch(mark * 30), hex(ord(mark))
    text = "a" + "\u0301\u0316" * 10 + "é"
    assert schemas.normalised(form, text) == unicodedata.normalize(form, text)
    long = "a" + "\u0301\u0316" * 20
    assert schemas.normalised(form, long) != unicodedata.normalize(form, long)


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
