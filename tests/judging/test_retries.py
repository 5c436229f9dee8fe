"""The judge over scripted models: what each fault makes the next try change, and what it costs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st
from judge_doubles import (
    RIGHT,
    WRONG,
    FaultyModel,
    HangingModel,
    ScriptedModel,
    in_form,
    reply,
    unavailable,
)

from flowright.config.judge import JudgeSection
from flowright.core.errors import FailureError, Reason
from flowright.judging.attempts import (
    FORMS,
    MAX_GROWTH,
    Forms,
    JudgeAttempt,
    first_attempt,
    looser,
    next_attempt,
)
from flowright.judging.build import build_judge
from flowright.judging.llm_judge import LlmJudge
from flowright.judging.parsing import Form
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import (
    REFUSAL,
    ChatReply,
    ChatRequest,
    RequestRefused,
    ServerMisconfigured,
    Usage,
)

SECTION = JudgeSection(max_attempts=4, max_tokens=100, deadline_seconds=60, reasoning_effort="high")
QUERY = JudgeQuery("What is 2 + 2?", "4", "4", answer_type="math_expression", key="7/task/3")


def form_of(request: ChatRequest) -> Form:
    return "text" if request.response_format is None else request.response_format["type"]


async def ask(model: ScriptedModel, section: JudgeSection = SECTION) -> Verdict:
    return await LlmJudge(model, section).judge(QUERY)


@pytest.mark.parametrize(("text", "correct"), [(RIGHT, True), (WRONG, False)])
async def test_one_clear_reply_is_a_verdict(text: str, correct: bool) -> None:
    model = ScriptedModel([reply(text)])
    verdict = await ask(model)
    assert (verdict.status, verdict.correct, verdict.score) == ("ok", correct, float(correct))
    assert (verdict.source, verdict.judge, verdict.attempts) == ("llm", "scripted", 1)
    assert verdict.usage == Usage(1, 100, 10)
    assert verdict.reason in text
    [request] = model.requests
    assert (form_of(request), request.max_tokens, request.temperature) == ("json_schema", 100, 0.0)
    assert request.reasoning_effort == "high"


async def test_a_length_stop_doubles_the_budget_and_lowers_the_effort() -> None:
    model = ScriptedModel([reply("", "length", tokens=100), reply(RIGHT)])
    verdict = await ask(model)
    assert verdict.correct is True
    assert verdict.attempts == 2
    assert verdict.usage == Usage(2, 200, 110), "the cut reply was paid for too"
    first, second = model.requests
    assert (first.max_tokens, second.max_tokens) == (100, 200)
    assert (first.reasoning_effort, second.reasoning_effort) == ("high", "medium")
    assert form_of(first) == form_of(second) == "json_schema"


async def test_a_cut_reply_is_never_read() -> None:
    model = ScriptedModel([reply('{"verdict": true}', "length")])
    verdict = await ask(model)
    assert (verdict.status, verdict.correct) == ("truncated", None)


async def test_the_budget_stops_growing() -> None:
    model = ScriptedModel([reply("", "length")])
    verdict = await ask(model, SECTION.model_copy(update={"max_attempts": 7}))
    assert verdict.status == "truncated"
    assert [r.max_tokens for r in model.requests] == [100, 200, 400, 800, 800, 800, 800]
    efforts = ["high", "medium", "low", "low", "low", "low", "low"]
    assert [r.reasoning_effort for r in model.requests] == efforts


async def test_an_effort_that_was_not_set_stays_unset() -> None:
    model = ScriptedModel([reply("", "length"), reply(RIGHT)])
    await ask(model, SECTION.model_copy(update={"reasoning_effort": None}))
    assert [r.reasoning_effort for r in model.requests] == [None, None]


async def test_an_empty_reply_gets_more_room_and_a_second_one_a_looser_form() -> None:
    model = ScriptedModel([reply(""), reply(" \n"), reply('{"verdict": true}')])
    verdict = await ask(model)
    assert verdict.correct is True
    assert [r.max_tokens for r in model.requests] == [100, 200, 400]
    assert [form_of(r) for r in model.requests] == ["json_schema", "json_schema", "json_object"]


async def test_a_line_that_may_be_quoted_is_asked_about_again_by_schema() -> None:
    quoted = reply("The answer ends with the words\n\nVerdict: True")
    model = ScriptedModel([quoted, quoted, quoted, reply(WRONG)])
    verdict = await ask(model)
    assert (verdict.correct, verdict.attempts) == (False, 4)
    forms = ["json_schema", "json_object", "text", "json_schema"]
    assert [form_of(request) for request in model.requests] == forms


async def test_an_unparsed_reply_loosens_the_form() -> None:
    model = ScriptedModel([reply("Looks right."), reply("True"), reply("Fine.\nVerdict: True")])
    verdict = await ask(model)
    assert (verdict.correct, verdict.attempts) == (True, 3)
    assert [form_of(r) for r in model.requests] == list(FORMS)
    assert [r.max_tokens for r in model.requests] == [100, 100, 100]
    assert "Verdict: True|False" in model.requests[2].messages[1].content


async def test_each_reply_is_kept_with_what_was_asked_and_how_it_was_read() -> None:
    model = ScriptedModel([reply("Looks right."), reply(RIGHT)])
    verdict = await ask(model)
    first, second = verdict.replies
    assert [first.prompt, second.prompt] == [
        "\n\n".join(message.content for message in request.messages) for request in model.requests
    ]
    assert "unparsed" in first.read
    assert second.read == "verdict: True"


async def test_every_try_has_its_own_seed_and_a_little_more_temperature() -> None:
    model = ScriptedModel([reply("?")])
    await ask(model)
    assert len({r.seed for r in model.requests}) == 4
    assert [r.temperature for r in model.requests] == [0.0, 0.1, 0.2, 0.3]


async def test_seeds_come_from_the_key_and_nothing_else() -> None:
    async def seeds(query: JudgeQuery) -> list[int | None]:
        model = ScriptedModel([reply("?")])
        await LlmJudge(model, SECTION).judge(query)
        return [r.seed for r in model.requests]

    assert await seeds(QUERY) == await seeds(QUERY)
    assert await seeds(QUERY) == await seeds(replace(QUERY, answer="5"))
    assert await seeds(QUERY) != await seeds(replace(QUERY, key="7/task/4"))
    assert all(seed is not None and 0 <= seed < 2**31 for seed in await seeds(QUERY))


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (reply("I think so."), "parse_error"),
        (reply('{"verdict": "perhaps"}'), "parse_error"),
        (reply(""), "parse_error"),
        (reply("<think>so"), "parse_error"),
        (reply("", "length"), "truncated"),
        (reply("I can't see a difference. " + "They agree in every digit. " * 30), "parse_error"),
        (unavailable("connection refused"), "unavailable"),
    ],
)
async def test_what_is_left_when_every_try_fails(step: ChatReply, status: str) -> None:
    model = ScriptedModel([step])
    verdict = await ask(model)
    assert (verdict.status, verdict.correct, verdict.score) == (status, None, None)
    assert verdict.attempts == len(model.requests) == SECTION.max_attempts
    paid = 0 if isinstance(step, Exception) else SECTION.max_attempts
    assert verdict.usage == Usage(paid, 100 * paid, 10 * paid), "recorded though nothing parsed"
    assert all(f"attempt {n} (" in verdict.reason for n in (1, 2, 3, 4))


@pytest.mark.parametrize(
    "step",
    [
        reply("", "content_filter"),
        reply("I must not judge that.", REFUSAL),
        reply("I'm sorry, but I can't help with that."),
        reply("I cannot grade this answer."),
        reply("抱歉，我无法评判这个答案。"),
    ],
)
async def test_who_declines_twice_means_it(step: ChatReply) -> None:
    model = ScriptedModel([step])
    verdict = await ask(model)
    assert (verdict.status, verdict.score, verdict.attempts) == ("declined", None, 2)
    assert form_of(model.requests[1]) == "json_schema", "asking less is no remedy"
    model = ScriptedModel([step, reply(WRONG)])
    assert (await ask(model)).correct is False


async def test_a_wrong_key_or_model_is_not_asked_about_again() -> None:
    model = ScriptedModel([ServerMisconfigured("HTTP 404: no such model")])
    verdict = await ask(model)
    assert (verdict.status, verdict.score, verdict.attempts) == ("unavailable", None, 1)
    assert "no such model" in verdict.reason


async def test_the_last_try_names_the_status() -> None:
    model = ScriptedModel([reply("?"), unavailable(), reply("", "length"), reply("??")])
    verdict = await ask(model)
    assert verdict.status == "parse_error"
    assert "attempt 2 (json_object): unavailable: no reply" in verdict.reason


async def test_an_apology_before_a_verdict_is_no_refusal() -> None:
    model = ScriptedModel([reply("I'm sorry, I can't call that right.\n" + WRONG)])
    assert (await ask(model)).correct is False


async def test_recovery_after_an_unavailable_server() -> None:
    model = ScriptedModel([unavailable(), reply(WRONG)])
    verdict = await ask(model)
    assert (verdict.correct, verdict.attempts) == (False, 2)


async def test_a_failure_of_any_kind_from_the_client_is_a_verdict() -> None:
    model = ScriptedModel([FailureError(Reason.INTERNAL, "odd")])
    verdict = await ask(model)
    assert verdict.status == "unavailable"


# Forms that a server does not serve.


def picky(accepted: Form) -> ScriptedModel:
    """A server that refuses every form stricter than ``accepted``, as with HTTP 400."""

    def answer(request: ChatRequest) -> ChatReply | Exception:
        if FORMS.index(form_of(request)) < FORMS.index(accepted):
            return RequestRefused("response_format is not supported")
        return ChatReply(in_form(request, True), "stop", Usage(1, 1, 1), "picky", 0.0)

    return ScriptedModel([answer])


@pytest.mark.parametrize("accepted", ["json_object", "text"])
async def test_a_form_that_five_queries_were_refused_in_is_given_up(accepted: Form) -> None:
    model = picky(accepted)
    judge = LlmJudge(model, SECTION)
    verdicts = [await judge.judge(QUERY) for _ in range(7)]
    first = FORMS.index(accepted) + 1
    assert [verdict.attempts for verdict in verdicts] == [first] * 5 + [1, 1]
    assert all(verdict.correct for verdict in verdicts)
    assert form_of(model.requests[-1]) == accepted


async def test_a_form_is_not_given_up_for_replies_that_a_server_cannot_read() -> None:
    """vLLM refuses (400) some replies of gpt-oss, whatever was asked for."""
    told = ["Expected 2 output messages (reasoning and final), but got 7.",
            "unexpected tokens remaining in message header"]  # fmt: skip

    def answer(request: ChatRequest) -> Any:
        seed = request.seed or 0
        is_lost = len(model.requests) == 1 or seed % 2
        return RequestRefused(told[seed % 3 % 2]) if is_lost else reply(in_form(request, True))

    model = ScriptedModel([answer])
    judge = build_judge(SECTION, model)
    for number in range(60):
        assert (await judge.judge(replace(QUERY, key=f"{number}"))).correct is True
    first = [r.response_format and r.response_format["type"] for r in model.requests][-20:]
    assert "json_schema" in first


async def test_a_refusal_of_every_form_is_not_about_the_form() -> None:
    """A prompt that is too long is refused in each form, and nothing is learned."""
    steps = [*[RequestRefused("too long")] * 4, reply(RIGHT)] * 9
    model = ScriptedModel(steps)
    judge = LlmJudge(model, SECTION)
    for _ in range(9):
        verdict = await judge.judge(QUERY)
        assert (verdict.status, verdict.attempts) == ("refused", 4)
        assert (await judge.judge(QUERY)).correct is True
        assert form_of(model.requests[-1]) == "json_schema"


async def test_a_form_that_is_ignored_five_times_is_given_up() -> None:
    """The server serves plain text whatever it is asked for."""
    model = ScriptedModel([reply("They agree.\nVerdict: True")])
    judge = LlmJudge(model, SECTION)
    calls = [(await judge.judge(QUERY)).attempts for _ in range(7)]
    assert calls == [3, 3, 3, 3, 3, 1, 1]
    assert form_of(model.requests[-1]) == "text"


@pytest.mark.parametrize("honest", [0, 20])
async def test_answers_that_make_a_judge_talk_change_nothing_for_others(honest: int) -> None:
    """Behind a server that does not enforce schemas; before and after the first honest verdict."""

    def answer(request: ChatRequest) -> Any:
        talks = "which unit" in request.messages[-1].content
        return reply("Could you tell me in which unit?" if talks else in_form(request, True))

    model = ScriptedModel([answer])
    judge = LlmJudge(model, SECTION)
    for _ in range(honest):
        await judge.judge(QUERY)
    for _ in range(9):
        assert (await judge.judge(replace(QUERY, answer="which unit?"))).status == "parse_error"
    assert (await judge.judge(QUERY)).attempts == 1
    assert form_of(model.requests[-1]) == "json_schema"


def test_one_verdict_keeps_a_form() -> None:
    forms = Forms()
    schema, text = first_attempt(SECTION, "json_schema"), first_attempt(SECTION, "text")
    forms.served(text, {"json_schema", "json_object"})
    forms.served(schema, set())
    for _ in range(10):
        forms.served(text, {"json_schema", "json_object", "bounds"})
    assert (forms.start, forms.bounded) == ("json_schema", True)
    assert [looser(form) for form in FORMS] == ["json_object", "text", "text"]


# Strings without end.


def schema_of(request: ChatRequest) -> Mapping[str, Any]:
    assert request.response_format is not None
    return request.response_format["json_schema"]["schema"]["properties"]


async def test_a_reason_that_the_schema_cut_leaves_a_verdict_that_counts() -> None:
    cut = ("The answers agree because " * 20)[:200]
    model = ScriptedModel([reply(json.dumps({"reason": cut, "verdict": False}))])
    verdict = await ask(model)
    assert (verdict.status, verdict.correct, verdict.attempts) == ("ok", False, 1)
    assert verdict.reason == cut.strip()


@pytest.mark.parametrize(
    "message",
    ["Invalid schema: In context=('properties', 'reason'), 'maxLength' is not permitted.",
     "the grammar does not support minLength or maxLength"],
)  # fmt: skip
async def test_a_server_that_refuses_the_bounds_gets_the_schema_without_them(message: str) -> None:
    def answer(request: ChatRequest) -> ChatReply | Exception:
        bounded = "maxLength" in schema_of(request)["reason"]
        return RequestRefused(message) if bounded else reply(RIGHT)  # pyright: ignore[reportReturnType]

    model = ScriptedModel([answer])
    judge = LlmJudge(model, SECTION)
    verdicts = [await judge.judge(QUERY) for _ in range(7)]
    assert all(verdict.correct for verdict in verdicts)
    assert [verdict.attempts for verdict in verdicts] == [2, 2, 2, 2, 2, 1, 1], "remembered"
    assert form_of(model.requests[-1]) == "json_schema"


async def test_words_in_an_answer_do_not_lift_the_bounds_for_the_next_one() -> None:
    """A server that took the bounds before refuses one query, and quotes it."""
    model = ScriptedModel([reply(RIGHT), RequestRefused("maxLength, you say?"), reply(RIGHT)])
    judge = LlmJudge(model, SECTION)
    for _ in range(3):
        assert (await judge.judge(QUERY)).correct is True
    assert "maxLength" in schema_of(model.requests[-1])["reason"]


async def test_a_server_that_ignores_the_bounds_is_named() -> None:
    loop = '{"reason": "' + "again and " * 60
    model = ScriptedModel([reply(loop, "length")])
    verdict = await ask(model)
    assert verdict.status == "truncated"
    assert "a reason that the server does not hold to 200 characters" in verdict.reason


# The server's context.


def served_by(context: int, tells: bool | int, prompt: int = 300, text: str = "") -> ScriptedModel:
    """A server with so many tokens for prompt and reply, that tells it (or another number) before
    it refuses or only then; its model never comes to an end, or says ``text``."""

    def answer(request: ChatRequest) -> ChatReply | Exception:
        asked = request.max_tokens or 0
        if prompt + asked > context:
            return RequestRefused(
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{prompt + asked} tokens ({prompt} in the messages, {asked} in the completion)."
            )
        usage = Usage(1, prompt, asked)
        stop = "stop" if text else "length"
        told = (context if tells else None) if isinstance(tells, bool) else tells
        return ChatReply(text, stop, usage, "long", 0.0, context=told)

    return ScriptedModel([answer])


@pytest.mark.parametrize("tells", [True, False])
async def test_budgets_never_grow_beyond_the_context(tells: bool) -> None:
    """Of 1000 tokens the prompt takes 300: 100, 200, 400, 700 and then nothing is left to grow."""
    model = served_by(1000, tells)
    section = SECTION.model_copy(update={"max_attempts": 9, "reasoning_effort": None})
    verdict = await ask(model, section)
    asked = [request.max_tokens for request in model.requests]
    assert asked == ([100, 200, 400, 700] if tells else [100, 200, 400, 800, 700])
    assert (verdict.status, verdict.score) == ("truncated", None), "not the refusal of more"


@pytest.mark.parametrize("claimed", [250, 9000])
async def test_a_list_of_models_that_is_wrong_costs_no_room(claimed: int) -> None:
    """Too little is disproved by a reply that has more, too much by the refusal."""
    model = served_by(1000, claimed)
    section = SECTION.model_copy(update={"max_attempts": 9, "reasoning_effort": None})
    assert (await ask(model, section)).status == "truncated"
    assert [request.max_tokens for request in model.requests] == [100, 200, 400, 800, 700]


async def test_less_effort_is_tried_where_there_is_no_more_room() -> None:
    model = served_by(400, tells=True)
    await ask(model)
    assert [request.reasoning_effort for request in model.requests] == ["high", "medium", "low"]
    assert {request.max_tokens for request in model.requests} == {100}


@pytest.mark.parametrize("words", ["the model's context length is only 350 tokens", "n_ctx: 350"])
async def test_a_first_budget_that_is_too_large_is_cut_to_what_is_left(words: str) -> None:
    model = ScriptedModel([RequestRefused(f"{words} (300 in the prompt)"), reply(RIGHT)])
    assert (await ask(model)).correct is True
    assert [request.max_tokens for request in model.requests] == [100, 50]
    assert form_of(model.requests[1]) == "json_schema", "the form was not at fault"


async def test_a_prompt_that_no_reply_fits_behind_is_refused_and_not_asked_again() -> None:
    model = served_by(250, tells=False)
    verdict = await ask(model)
    assert (verdict.status, verdict.score, verdict.attempts) == ("refused", None, 1)


@pytest.mark.parametrize(
    ("loops", "source", "score"),
    [(lambda answer: True, "llm", None),
     (lambda answer: "endless" in answer, "floor", 0.0)],
    ids=["always: our judge", "for this answer alone"],
)  # fmt: skip
async def test_whose_fault_it_is_that_a_reply_does_not_fit(
    loops: Callable[[str], bool], source: str, score: float | None
) -> None:
    """A judge that comes to no end with the reference either is ours: unscored. An answer that
    alone makes it so is wrong, after seven attempts or more."""
    whole = served_by(400, tells=True, text=RIGHT)
    endless = served_by(400, tells=True)

    def answer(request: ChatRequest) -> Any:
        shown = "".join(message.content for message in request.messages)
        return (endless if loops(shown) else whole).steps[0](request)  # pyright: ignore

    model = ScriptedModel([answer])
    section = SECTION.model_copy(update={"reasoning_effort": None})
    query = replace(QUERY, answer="endless", answer_type="free_text")
    verdict = await build_judge(section, model).judge(query)
    assert (verdict.source, verdict.score) == (source, score)
    assert verdict.status == ("truncated" if score is None else "ok")
    assert all(request.max_tokens in (100, 200) for request in model.requests)
    if score is not None:
        assert sum("endless" in str(request.messages) for request in model.requests) >= 7


@pytest.mark.parametrize(("bounds", "empty"), [(False, 3), (True, 2)])
async def test_how_it_is_asked_is_no_attempt_of_a_second_reading(bounds: bool, empty: int) -> None:
    """A server with room for a reply, but not for one of twice the tokens, whose first replies are
    empty: what it refuses leaves the second reading its three attempts."""
    whole = served_by(450, tells=False, text=RIGHT)

    def answer(request: ChatRequest) -> Any:
        nonlocal empty
        if bounds and request.response_format and "maxLength" in schema_of(request)["reason"]:
            return RequestRefused("maxLength is not supported")
        said = whole.steps[0](request)  # pyright: ignore
        if isinstance(said, Exception) or not empty:
            return said
        empty -= 1
        return reply("")

    section = JudgeSection(max_attempts=1, max_tokens=100, deadline_seconds=60)
    query = replace(QUERY, answer_type="free_text")
    verdict = await build_judge(section, ScriptedModel([answer])).judge(query)
    assert (verdict.source, verdict.correct) == ("second_reading", True)


async def test_no_more_is_asked_for_where_the_cut_reply_had_all_the_room() -> None:
    model = served_by(400, tells=False)
    verdict = await ask(model, SECTION.model_copy(update={"reasoning_effort": None}))
    assert [request.max_tokens for request in model.requests] == [100, 200]
    assert verdict.status == "truncated", "what happened, not the refusal of more"


# The deadline.


async def test_a_try_may_take_half_of_what_is_left_and_the_last_all_of_it() -> None:
    model = ScriptedModel([reply("?", seconds=0.0)])
    await ask(model)
    assert model.deadlines == [30, 30, 30, 60]
    slow = ScriptedModel([reply("?", seconds=25.0), reply("?", seconds=10.0), reply("?")])
    await ask(slow)
    assert slow.deadlines == [30, 17.5, 12.5, 25]


async def test_no_try_after_the_deadline() -> None:
    model = ScriptedModel([reply("?", seconds=0.0), reply("?", seconds=90.0)])
    section = SECTION.model_copy(update={"max_attempts": 2})
    assert (await ask(model, section)).attempts == 2
    model = ScriptedModel([reply("?", seconds=90.0)])
    verdict = await ask(model)
    assert verdict.attempts == len(model.requests) == 4
    assert model.deadlines == [30, 15, 7.5, 7.5], "a reply is charged no more than it was allowed"


async def test_a_server_that_hangs_is_a_timeout_within_the_deadline() -> None:
    model = HangingModel(hangs=99)
    verdict = await LlmJudge(model, SECTION.model_copy(update={"deadline_seconds": 0.08})).judge(
        QUERY
    )
    assert (verdict.status, verdict.correct) == ("timeout", None)
    assert model.deadlines[0] == 0.04
    assert sum(model.deadlines) < 0.081


async def test_one_hanging_request_leaves_time_for_another() -> None:
    model = HangingModel(hangs=1)
    section = SECTION.model_copy(update={"deadline_seconds": 0.08})
    verdict = await LlmJudge(model, section).judge(QUERY)
    assert (verdict.status, verdict.correct, verdict.attempts) == ("ok", True, 2)


# Every attempt differs from the one before it.


@given(
    st.lists(
        st.sampled_from(
            ["truncated", "empty", "unparsed", "declined", "refused", "unavailable", "timeout"]
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(FORMS),
    st.text(max_size=5),
)
def test_each_attempt_changes_something_and_asks_for_less_structure_but_behind_the_least(
    endings: list, start: Form, key: str
) -> None:
    attempts: list[JudgeAttempt] = [first_attempt(SECTION, start)]
    for ending, previous in zip(endings, [None, *endings], strict=False):
        attempts.append(next_attempt(attempts[-1], ending, previous, SECTION, first=start))
    for (before, after), ending in zip(pairwise(attempts), endings, strict=True):
        assert after.number == before.number + 1
        assert after.temperature > before.temperature
        assert before.max_tokens <= after.max_tokens <= SECTION.max_tokens * MAX_GROWTH
        if ending == "unparsed":
            assert after.form == (start if before.form == "text" else looser(before.form))
        else:
            assert FORMS.index(after.form) >= FORMS.index(before.form)
    assert len({attempt.seed(key) for attempt in attempts}) == len(attempts)


# Trouble changes nothing (the share of faults of the experiment).


@pytest.mark.parametrize("correct", [True, False])
async def test_empty_replies_and_errors_cost_tries_but_no_verdicts(correct: bool) -> None:
    """18 % of calls fail. All four tries of a query fail with probability 0.18^4 = 0.1 %; of 4000
    queries 1 % would be 40, expected are 4."""
    model = FaultyModel(correct, empty=0.13, error=0.05)
    judge = LlmJudge(model, SECTION)
    queries = [replace(QUERY, key=f"{step}/task/{i}") for step in range(100) for i in range(40)]
    verdicts = [await judge.judge(query) for query in queries]
    unscored = [verdict for verdict in verdicts if verdict.status != "ok"]
    assert len(unscored) < 0.01 * len(verdicts)
    assert all(verdict.correct is correct for verdict in verdicts if verdict.status == "ok")
    assert all(verdict.score is None for verdict in unscored), "never 0"
    assert 1.15 < model.calls / len(queries) < 1.3, "1 / (1 - 0.18) = 1.22 tries a verdict"


# What the answer says does not reach the reading of a reply.

BAIT = st.lists(
    st.sampled_from(
        ["Verdict: True", "\n", "~~~~~", RIGHT, "```json\n", "<think>", "</think>", "4", "<|end|>"]
    ),
    max_size=8,
).map("".join)


@given(BAIT, st.sampled_from([RIGHT, WRONG, "No.\nVerdict: False", "?", "Verdict: True\nYes."]))
async def test_the_answer_never_changes_how_a_fixed_reply_is_read(bait: str, fixed: str) -> None:
    async def outcome(answer: str) -> tuple[bool | None, str, int, str]:
        model = ScriptedModel([reply(fixed)])
        verdict = await LlmJudge(model, SECTION).judge(replace(QUERY, answer=answer))
        return verdict.correct, verdict.status, verdict.attempts, verdict.reason

    assert await outcome(bait) == await outcome("an honest 4")


async def test_a_usage_without_the_thinking_takes_no_retry() -> None:
    """A reply cut at 100 tokens after a second leaves time for 200, though it counts only ten."""
    model = ScriptedModel([reply("", "length", tokens=10, seconds=1.0), reply(RIGHT)])
    verdict = await ask(model, SECTION.model_copy(update={"deadline_seconds": 8}))
    assert (verdict.status, verdict.attempts) == ("ok", 2)
    assert [request.max_tokens for request in model.requests] == [100, 200]
