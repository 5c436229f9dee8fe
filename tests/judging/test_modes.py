"""What a judge can be asked for beside right or wrong: scores, grades, pairs, rubrics, aspects."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from judge_doubles import ScriptedModel, reply, unavailable

from flowright.config.judge import JudgeSection
from flowright.config.llm import SimulatedSection
from flowright.judging.attempts import FORMS
from flowright.judging.group_judge import GroupJudge
from flowright.judging.llm_judge import LlmJudge
from flowright.judging.parsing import Form
from flowright.judging.verdict import Criterion, JudgeQuery, Verdict
from flowright.llm.chat import ChatReply, ChatRequest, Usage
from flowright.sandbox import Sandbox
from flowright.simulation.assessor import Assessor
from flowright.simulation.cues import JudgePrompt, TaskIndex, read_prompt
from flowright.simulation.draws import Draws
from flowright.simulation.solver import Solver
from flowright.simulation.values import WrongSolutions

ONE = JudgeQuery("What is 6 * 7?", "It is 42.", "42", "number", key="1/a/0")
PAIR = replace(ONE, rival="It is 41.")
RUBRIC = replace(
    ONE,
    criteria=(
        Criterion("It names `42`.", 2),
        Criterion("It explains the steps of the product, such as `7 + 7`.", 1),
        Criterion("It mentions `It is`, which is chatter.", -1),
    ),
)


def section(ask: str, **changes: Any) -> JudgeSection:
    return JudgeSection.model_validate({"ask": ask, "max_attempts": 4, **changes})


class Embedded:
    """The embedded judge without its server, without errors, and held to one request form."""

    name = "embedded"

    def __init__(self, form: Form = "json_schema", **settings: Any) -> None:
        settings = {"judge_true_positive": 1.0, "judge_false_positive": 0.0, **settings}
        no_code = WrongSolutions(Sandbox(workers=1), 0, 4)  # never entered: there are no tasks
        section = SimulatedSection.model_validate(settings)
        self._assessor = Assessor(section, Solver((), 0, no_code))
        self._form = form
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.requests.append(request)
        messages = [(message.role, message.content) for message in request.messages]
        asked = read_prompt(messages, TaskIndex([]))
        assert isinstance(asked, JudgePrompt), asked
        given = request.response_format["type"] if request.response_format else "text"
        if FORMS.index(given) < FORMS.index(self._form):
            return ChatReply("I see.", "stop", Usage(1, 10, 2), self.name, 0.0)
        text = self._assessor.reply(asked, Draws(0, asked.answer), request.response_format)
        return ChatReply(text, "stop", Usage(1, 10, 10), self.name, 0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ask", ["true_false", "score", "pointwise", "multi_aspect"])
async def test_the_embedded_judge_answers_every_question_in_every_form(
    ask: str, form: Form
) -> None:
    judge = LlmJudge(Embedded(form), section(ask))
    right = await judge.judge(ONE)
    wrong = await judge.judge(replace(ONE, answer="It is 41."))
    assert (right.status, wrong.status) == ("ok", "ok"), (right.reason, wrong.reason)
    assert (right.correct, wrong.correct) == (True, False)
    assert right.score is not None and wrong.score is not None
    assert right.score >= 0.75 and wrong.score <= 0.25
    assert right.attempts == FORMS.index(form) + 1
    names = {"correctness", "completeness", "clarity"} if ask == "multi_aspect" else set()
    assert set(right.parts) == names


@pytest.mark.parametrize("form", FORMS)
async def test_the_embedded_judge_compares_in_every_form(form: Form) -> None:
    judge = LlmJudge(Embedded(form), section("pairwise"))
    better = await judge.judge(PAIR)
    worse = await judge.judge(replace(PAIR, answer="It is 41.", rival="It is 42."))
    assert (better.status, better.score, better.correct) == ("ok", 1.0, True), better.reason
    assert (worse.status, worse.score, worse.correct) == ("ok", 0.0, False)
    assert [member.score for member in better.members] == [1.0, 1.0]


@pytest.mark.parametrize("form", FORMS)
async def test_the_embedded_judge_ranks_a_list_in_every_form(form: Form) -> None:
    how = JudgeSection.model_validate({"group": {"method": "list"}})
    ranking = GroupJudge(how, LlmJudge(Embedded(form), section("pairwise")), Embedded(form))
    answers = ("It is 41.", "It is 42.", "It is 40.", "42")
    asked = [replace(PAIR, answer=text, rival=None, key=text) for text in answers]
    scores = [verdict.score or 0.0 for verdict in await ranking.rank(asked) if verdict]
    assert min(scores[1], scores[3]) > max(scores[0], scores[2])


def test_the_embedded_judge_ranks_two_answers_as_it_compares_them() -> None:
    """And favours places by as much."""
    settings = {"judge_true_positive": 0.8, "judge_false_positive": 0.3}
    simulated = SimulatedSection.model_validate({**settings, "judge_biases": {"position": 0.2}})
    assessor = Assessor(simulated, Solver((), 0, WrongSolutions(Sandbox(workers=1), 0, 4)))
    two = JudgePrompt("How many?", "It is 42.", ("42",), None, rival="It is 41.")
    many = replace(two, listed=("It is 42.", "It is 41."))
    for prompt in (two, many):
        replies = [assessor.reply(prompt, Draws(n), None) for n in range(4000)]
        won = sum("Answer A is" in reply for reply in replies) / len(replies)
        assert won == pytest.approx(0.5 + (0.8 - 0.3) / 2 + 0.2 / 2, abs=0.03)


@pytest.mark.parametrize("form", FORMS)
async def test_the_embedded_judge_reads_a_rubric_in_every_form(form: Form) -> None:
    verdict = await LlmJudge(Embedded(form), section("rubric")).judge(RUBRIC)
    assert verdict.parts == {"criterion 1": 1.0, "criterion 2": 0.0, "criterion 3": 1.0}
    assert (verdict.status, verdict.score) == ("ok", pytest.approx(1 / 3)), "(2 - 1) of 3 points"
    assert verdict.correct is False


# Pairs.


def better(*words: str) -> ScriptedModel:
    """A model that says so, in turn: first with the answer shown first, then second."""
    return ScriptedModel([reply(f'{{"reason": "", "better": "{word}"}}') for word in words])


@pytest.mark.parametrize(
    ("said", "score", "correct"),
    [
        (("A", "B"), 1.0, True),
        (("B", "A"), 0.0, False),
        (("tie", "tie"), 0.5, None),
        (("A", "A"), 0.5, None),  # the first place won, twice
        (("B", "B"), 0.5, None),
        (("A", "tie"), 0.5, None),
    ],
)
async def test_both_orders_decide(
    said: tuple[str, str], score: float, correct: bool | None
) -> None:
    model = better(*said)
    verdict = await LlmJudge(model, section("pairwise")).judge(PAIR)
    assert (verdict.status, verdict.score, verdict.correct) == ("ok", score, correct)
    assert verdict.attempts == len(model.requests) == 2
    first, second = (request.messages[1].content for request in model.requests)
    assert first.index("It is 42.") < first.index("It is 41.")
    assert second.index("It is 41.") < second.index("It is 42.")
    won = {"A": (1.0, 0.0), "B": (0.0, 1.0), "tie": (0.5, 0.5)}
    assert [m.score for m in verdict.members] == [won[said[0]][0], won[said[1]][1]]


async def test_a_disagreement_of_the_orders_can_be_no_verdict() -> None:
    judge = LlmJudge(better("A", "A"), section("pairwise", on_disagreement="abstain"))
    verdict = await judge.judge(PAIR)
    assert (verdict.status, verdict.score) == ("abstain", None)
    assert "depends on the order" in verdict.reason
    judge = LlmJudge(better("tie", "tie"), section("pairwise", on_disagreement="abstain"))
    assert (await judge.judge(PAIR)).score == 0.5, "that is agreement"


async def test_half_a_comparison_is_none() -> None:
    model = ScriptedModel([reply('{"better": "A"}'), unavailable("HTTP 500")])
    verdict = await LlmJudge(model, section("pairwise")).judge(PAIR)
    assert (verdict.status, verdict.score) == ("unavailable", None)
    assert [member.score for member in verdict.members] == [1.0, None]
    assert "HTTP 500" in verdict.reason
    assert verdict.attempts == 1 + 4


async def test_one_order_alone_is_drawn_from_the_query() -> None:
    judge = LlmJudge(model := better("A"), section("pairwise", both_orders=False))
    verdicts = [await judge.judge(replace(PAIR, key=str(n))) for n in range(64)]
    firsts = ["ANSWER A\nIt is 42." in r.messages[1].content for r in model.requests]
    assert [verdict.score for verdict in verdicts] == [float(first) for first in firsts]
    assert 16 < sum(firsts) < 48
    again = [await judge.judge(replace(PAIR, key=str(n))) for n in range(64)]
    assert [v.score for v in again] == [v.score for v in verdicts]


async def test_answers_are_compared_without_their_thinking() -> None:
    model = better("A", "B")
    query = replace(PAIR, rival="<think>It could be 42.</think>It is 41.")
    await LlmJudge(model, section("pairwise")).judge(query)
    assert all("could" not in r.messages[1].content for r in model.requests)


# Rubrics.


def met(**values: object) -> ChatReply | Exception:
    shown = ", ".join(f'"{key}": {str(value).lower()}' for key, value in values.items())
    return reply(f'{{"reason": "so", {shown}}}')


def titles(request: ChatRequest) -> list[str]:
    lines = request.messages[1].content.splitlines()
    return [line.lstrip("~ ") for line in lines if line.startswith("~") and line.strip("~")]


async def test_only_the_missing_criteria_are_asked_again() -> None:
    model = ScriptedModel([met(criterion_1=True, criterion_3=False), met(criterion_2=True)])
    verdict = await LlmJudge(model, section("rubric")).judge(RUBRIC)
    assert verdict.parts == {"criterion 1": 1.0, "criterion 2": 1.0, "criterion 3": 0.0}
    assert (verdict.score, verdict.correct, verdict.attempts) == (1.0, True, 2)
    assert verdict.usage == Usage(2, 200, 20)
    assert titles(model.requests[0])[2:] == [
        "CRITERION 1",
        "CRITERION 2",
        "CRITERION 3",
        "FINAL ANSWER",
    ]
    assert titles(model.requests[1])[2:] == ["CRITERION 2", "FINAL ANSWER"]
    schema: Any = model.requests[1].response_format
    assert schema is not None


async def test_what_was_said_stays_although_the_last_try_failed() -> None:
    model = ScriptedModel([met(criterion_1=True, criterion_3=False), reply("")])
    verdict = await LlmJudge(model, section("rubric")).judge(RUBRIC)
    assert (verdict.status, verdict.score) == ("parse_error", None), "not half a score"
    assert verdict.parts == {"criterion 1": 1.0, "criterion 3": 0.0}


async def test_criteria_are_asked_in_batches_that_keep_their_numbers() -> None:
    def obey(request: ChatRequest) -> ChatReply | Exception:
        asked = [t.casefold().replace(" ", "_") for t in titles(request) if "CRITERION" in t]
        return met(**dict.fromkeys(asked, True))

    model = ScriptedModel([obey])
    query = replace(ONE, criteria=tuple(Criterion(f"It says {n}.", 1) for n in range(5)))
    verdict = await LlmJudge(model, section("rubric", criteria_per_call=2)).judge(query)
    assert list(verdict.parts) == [f"criterion {n}" for n in range(1, 6)]
    assert (verdict.score, verdict.attempts) == (1.0, 3)
    asked = [[t for t in titles(request) if "CRITERION" in t] for request in model.requests]
    assert [len(batch) for batch in asked] == [2, 2, 1]
    assert len({request.seed for request in model.requests}) == 3


@pytest.mark.parametrize(
    ("points", "are_met", "score"),
    [
        ((2, 1, -1), (True, False, False), 2 / 3),
        ((2, 1, -1), (True, True, True), 2 / 3),
        ((2, 1, -1), (False, False, True), 0.0),  # kept at 0
        ((2, 1, -1), (True, True, False), 1.0),
        ((1, -4), (True, True), 0.0),
        ((0.5, 1.5), (True, False), 0.25),
        ((1e308, 1e308), (True, True), 1.0),
    ],
)
async def test_points_by_hand(
    points: Sequence[float], are_met: Sequence[bool], score: float
) -> None:
    query = replace(ONE, criteria=tuple(Criterion("It is so.", p) for p in points))
    said = {f"criterion_{n}": is_met for n, is_met in enumerate(are_met, start=1)}
    verdict = await LlmJudge(ScriptedModel([met(**said)]), section("rubric")).judge(query)
    assert verdict.score == pytest.approx(score)
    assert verdict.correct is (score >= 0.5)


def test_a_criterion_that_decides_nothing_is_a_mistake() -> None:
    for text, points in (("It is so.", 0), (" ", 1), ("So.", math.inf), ("So.", math.nan)):
        with pytest.raises(ValueError, match="criterion"):
            Criterion(text, points)


# Scores, grades, aspects.


@pytest.mark.parametrize(
    ("ask", "said", "score", "correct"),
    [
        ("score", '{"score": 0.5}', 0.5, True),
        ("score", '{"score": 0.49}', 0.49, False),
        ("pointwise", '{"score": 3}', 0.75, True),
        ("pointwise", '{"score": 1}', 0.25, False),
    ],
)
async def test_a_score_counts_as_right_from_a_half(
    ask: str, said: str, score: float, correct: bool
) -> None:
    verdict = await LlmJudge(ScriptedModel([reply(said)]), section(ask)).judge(ONE)
    assert (verdict.score, verdict.correct) == (score, correct)


async def test_the_threshold_can_be_moved() -> None:
    model = ScriptedModel([reply('{"score": 3}')])
    verdict = await LlmJudge(model, section("pointwise", right_from=0.8)).judge(ONE)
    assert (verdict.score, verdict.correct) == (0.75, False)


async def test_aspects_are_named_in_the_configuration_and_missing_ones_asked_again() -> None:
    aspects: Mapping[str, str] = {"clarity": "Is it\nclear?", "tone of voice": "Is it kind?"}
    model = ScriptedModel(
        [reply('{"clarity": 4, "overall": 3}'), reply('{"tone of voice": 1, "overall": 0}')]
    )
    judge = LlmJudge(model, section("multi_aspect", aspects=aspects))
    verdict = await judge.judge(ONE)
    assert verdict.parts == {"clarity": 1.0, "tone of voice": 0.25}
    assert (verdict.score, verdict.correct) == (0.75, True), "overall was said the first time"
    assert "- clarity: Is it clear?" in model.requests[0].messages[1].content


async def test_a_query_that_does_not_fit_the_question_is_not_judged() -> None:
    for ask, query in (
        ("true_false", PAIR),
        ("pairwise", replace(PAIR, criteria=RUBRIC.criteria)),
        ("pairwise", ONE),
        ("rubric", ONE),
        ("rubric", replace(ONE, criteria=(Criterion("It is rude.", -1),))),
    ):
        model = ScriptedModel([reply('{"verdict": true, "better": "A", "criterion_1": true}')])
        verdict = await LlmJudge(model, section(ask)).judge(query)
        assert (verdict.status, verdict.score, model.requests) == ("abstain", None, [])
        assert verdict.reason


def test_a_tie_has_a_score_and_is_neither_right_nor_wrong() -> None:
    Verdict(0.5, None, "llm", "ok")
    for score, correct, status in ((0.4, None, "ok"), (None, True, "ok"), (0.5, None, "abstain")):
        with pytest.raises(ValueError, match="with score"):
            Verdict(score, correct, "llm", status)  # pyright: ignore[reportArgumentType]
