"""Principles before the verdict, and a meta judge that chooses among samples."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_doubles import ScriptedModel, Step, question, reply, unavailable
from pydantic import ValidationError

from flowright.config.judge import JudgeSection
from flowright.config.llm import SimulatedSection
from flowright.core.errors import ConfigError
from flowright.judging.audit import audit
from flowright.judging.build import build_judge, fingerprint
from flowright.judging.llm_judge import FIRST_PRINCIPLES
from flowright.judging.panel import LEFT_OUT, META, META_FAILED
from flowright.judging.parsing import Form, parse_reply
from flowright.judging.prompts import STANDARD
from flowright.judging.schemas import BETTER, GRADE, TRUTH, Field
from flowright.judging.verdict import Criterion, JudgeQuery, Verdict
from flowright.llm.chat import ChatRequest
from flowright.simulation.assessor import Assessor
from flowright.simulation.cues import JudgePrompt, TaskIndex, read_prompt
from flowright.simulation.draws import Draws
from flowright.simulation.solver import Solver
from flowright.simulation.table import REVIEW
from flowright.simulation.values import WrongSolutions

ASKED = JudgeQuery("What is 6 * 7?", "It is 42.", "42", "math_expression", key="q")
SCORE = Field("score", GRADE, tagged=True)
NAMED = "Accuracy, 90 %: the value. Clarity, 10 %: a score: 0 is given for fog."


def section(**keys: Any) -> JudgeSection:
    return JudgeSection.model_validate(keys)


@pytest.mark.parametrize(
    ("form", "text", "read"),
    [
        ("json_schema", {"principles": NAMED, "reason": "Right.", "score": 4}, True),
        ("json_object", {"principles": NAMED, "reason": "Right.", "score": 4}, True),
        ("json_schema", {"reason": "Right.", "score": 4}, False),
        ("json_schema", {"principles": " ", "reason": "Right.", "score": 4}, False),
        ("text", f"<principles>{NAMED}</principles>\nRight.\n<score>4</score>", True),
        ("text", "Right.\n<score>4</score>", False),
    ],
)
def test_principles_are_read_and_decide_nothing(form: Form, text: Any, read: bool) -> None:
    written = text if isinstance(text, str) else json.dumps(text)
    found = parse_reply(written, form, (FIRST_PRINCIPLES, SCORE))
    if read:
        assert found.values == {"principles": NAMED, "score": 4} and found.reason == "Right."
    else:
        assert not found.values and found.fault is not None, "a verdict without them is none"


def test_a_verdict_inside_the_principles_is_none() -> None:
    for field, value in ((SCORE, "4"), (Field("better", BETTER, tagged=True), "A")):
        inside = f"<principles><{field.key}>{value}</{field.key}></principles>\nI cannot."
        assert parse_reply(inside, "text", (FIRST_PRINCIPLES, field)).fault == "no_verdict"
    verdict = Field("verdict", TRUTH)
    twice = "<principles>Verdict: True</principles>\nIt is not.\nVerdict: False"
    assert parse_reply(twice, "text", (FIRST_PRINCIPLES, verdict)).values["verdict"] is False


@pytest.mark.parametrize("ask", ["true_false", "score", "pointwise", "pairwise"])
def test_principles_are_asked_for_first_in_every_form(ask: str) -> None:
    query = replace(ASKED, rival="41") if ask == "pairwise" else ASKED
    asked = question(query, ask=ask, principles=True)
    schema: Any = asked.response_format("json_schema")
    properties = list(schema["json_schema"]["schema"]["properties"])
    assert properties[:2] == ["principles", "reason"] and len(properties) == 3
    for form in ("json_object", "text"):
        shown = asked.user_message(form).content
        assert "principles that matter" in shown and "each principle" in shown
    plain = question(query, ask=ask)
    assert "principles" not in plain.user_message("text").content
    assert fingerprint(section(ask=ask)) != fingerprint(section(ask=ask, principles=True))


async def test_principles_stand_in_the_reason_and_criteria_have_none() -> None:
    text = json.dumps({"principles": NAMED, "reason": "It is 42.", "verdict": True})
    model = ScriptedModel([reply(text)])
    verdict = await build_judge(section(principles=True), model).judge(ASKED)
    assert verdict.correct is True and verdict.reason == f"Principles: {NAMED}\nIt is 42."
    criteria = replace(ASKED, criteria=(Criterion("It is 42.", 1),))
    rubric = ScriptedModel([reply('{"reason": "It is.", "criterion_1": true}')])
    assert (await build_judge(section(principles=True), rubric).judge(criteria)).score == 1
    assert "principles" not in rubric.requests[0].messages[-1].content


def test_examples_without_principles_are_refused(tmp_path: Path) -> None:
    words = STANDARD.model_dump(mode="json")
    example = {"question": "1 + 1?", "answer": "2", "reference": "2", "reason": "Equal."}
    words["questions"]["true_false"]["examples"] = [{**example, "says": {"verdict": True}}]
    path = tmp_path / "words.yaml"
    path.write_text(json.dumps(words))
    with pytest.raises(ConfigError, match="examples have no principles"):
        build_judge(section(principles=True, wording=str(path)), ScriptedModel([]))


def _samples(grades: list[int], failing: bool = False) -> Callable[[ChatRequest], Step]:
    """A judge whose samples alternate between right and wrong, and a meta judge with grades for the
    samples by their number in the reason."""
    count = iter(range(100))

    def step(request: ChatRequest) -> Step:
        shown = request.messages[-1].content
        if "JUDGEMENT" not in shown:
            number = next(count)
            right = json.dumps({"reason": f"sample {number}", "verdict": number % 2 == 0})
            return reply(right)
        if failing:
            return unavailable()
        (number,) = re.findall(r"sample (\d)", shown)
        return reply(json.dumps({"reason": "Sound.", "grade": grades[int(number)]}))

    return step


async def _voted(grades: list[int], keep: int = 1, failing: bool = False) -> Verdict:
    model = ScriptedModel([_samples(grades, failing)])
    keys = section(samples=len(grades), meta="m", keep=keep, max_attempts=1, second_reading=False)
    return await build_judge(keys, model, meta=model).judge(ASKED)


async def test_the_best_samples_vote() -> None:
    """Samples 0 and 2 call the answer right, 1 and 3 wrong."""
    verdict = await _voted([1, 4, 1, 3], keep=2)
    assert verdict.correct is False and verdict.attempts == verdict.usage.calls == 8
    assert [member.parts[META] for member in verdict.members] == [0.25, 1, 0.25, 0.75]
    left_out = [LEFT_OUT in member.parts for member in verdict.members]
    assert left_out == [True, False, True, False]
    assert len(verdict.replies) == 4, "the meta judge's"
    assert (await _voted([2, 2, 2, 2])).correct is True, "of equal ones the earlier"


async def test_a_meta_judge_that_fails_leaves_all_samples_voting() -> None:
    verdict = await _voted([0, 0, 0], failing=True)
    assert verdict.correct is True and verdict.score == pytest.approx(2 / 3)
    assert "meta judge failed (unavailable" in verdict.reason
    assert verdict.parts == {META_FAILED: 1.0}
    assert audit([verdict, await _voted([4, 0])], [None, None])["judge/meta_failed"] == 0.5
    assert "judge/meta_failed" not in audit([await _voted([4, 0])], [None])


def test_keys_that_fit_nothing_are_refused() -> None:
    for keys in ({"meta": "m"}, {"meta": "m", "samples": 3, "keep": 3}):
        with pytest.raises(ValidationError, match="meta chooses"):
            section(**keys)
    with pytest.raises(ValidationError, match="meta with mode rules"):
        section(meta="m", samples=2, mode="rules")
    assert section(meta="m", samples=2, panel=["p"]).further_models == ("p", "m")


@pytest.fixture
def assessor() -> Assessor:
    solver = Solver((), 0, WrongSolutions(None, 0, 4))  # pyright: ignore[reportArgumentType]
    return Assessor(SimulatedSection(), solver)


def test_the_embedded_meta_judge_objects_as_its_table_has_it(assessor: Assessor) -> None:
    def prompt(found: str, answer: str) -> JudgePrompt:
        return JudgePrompt("q", answer, ("42",), None, judgement=f"Verdict: {found}\nSo it is.")

    def share_low(found: str, answer: str) -> float:
        texts = [assessor.reply(prompt(found, answer), Draws(0, n), None) for n in range(800)]
        return sum("not sound" in text for text in texts) / len(texts)

    assert share_low("right", "The answer is 42") == pytest.approx(REVIEW.false_alarm, abs=0.05)
    assert share_low("wrong", "The answer is 42") == pytest.approx(REVIEW.hit, abs=0.05)
    assert share_low("right", "The answer is 41") == pytest.approx(REVIEW.hit, abs=0.05)


@pytest.mark.parametrize("ask", ["true_false", "pointwise", "pairwise"])
@pytest.mark.parametrize("form", ["json_schema", "json_object", "text"])
def test_the_embedded_judge_writes_principles_and_the_same_verdict(
    assessor: Assessor, ask: str, form: Form
) -> None:
    query = replace(ASKED, rival="41") if ask == "pairwise" else ASKED
    values = []
    for principled in (False, True):
        asked = question(query, ask=ask, principles=principled)
        messages = [(message.role, message.content) for message in asked.messages(form)]
        prompt = read_prompt(messages, TaskIndex(()))
        assert isinstance(prompt, JudgePrompt)
        text = assessor.reply(prompt, Draws(0, "judge"), asked.response_format(form))
        found = parse_reply(text, form, asked.fields)
        assert found.fault is None, (text, found)
        values.append({key: v for key, v in found.values.items() if key != "principles"})
    assert values[0] == values[1]
