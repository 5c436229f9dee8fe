"""A judge that writes, asked as it was trained; who writes is scripted."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from workflow_doubles import ScriptedModel

from flowright.config.judge import JudgeSection, TrainedJudgeSection
from flowright.core.errors import DataError, FailureError, Reason
from flowright.environments.judging.frame_judge import (
    FORM_FILE,
    FrameJudge,
    JudgeForm,
    Judges,
    ServerWriter,
    Written,
    chosen_form,
    form_of_run,
    read_form,
)
from flowright.environments.judging.frames import wording_of
from flowright.environments.registry import make_config
from flowright.judging.verdict import Criterion, JudgeQuery
from flowright.llm.chat import ChatReply, Message, RequestRefused, Usage

ASKED = JudgeQuery("Name corn.", "corn", "corn")
COMPARED = JudgeQuery("Name corn.", "corn", "", rival="beet")


@dataclass
class Scripted:
    """Writes what ``says`` gives for a prompt; an exception is raised."""

    says: Any
    finish: str = "stop"
    prompts: list[str] = field(default_factory=list)

    async def write(self, messages: Sequence[Message]) -> Written:
        self.prompts.append(messages[0].content)
        said = self.says(messages[0].content) if callable(self.says) else self.says
        if isinstance(said, Exception):
            raise said
        return Written(said, self.finish, Usage(1, 10, 5))


def judge(
    writer: Any, judges: Judges = "both", confident: bool = False, **section: Any
) -> FrameJudge:
    form = JudgeForm(judges=judges, wording=wording_of("short"), states_confidence=confident)
    return FrameJudge("mine", writer, form, JudgeSection(**section))


@pytest.mark.parametrize(("score", "right"), [(0, False), (1, False), (2, True), (4, True)])
async def test_a_grade_is_a_share_of_four(score: int, right: bool):
    verdict = await judge(Scripted(f"<think>why</think><score>{score}</score>")).judge(ASKED)
    assert (verdict.score, verdict.correct) == (score / 4, right)
    assert (verdict.reason, verdict.usage) == ("why", Usage(1, 10, 5))


async def test_where_right_begins_is_configured():
    said = "<think>why</think><score>3</score>"
    assert (await judge(Scripted(said), right_from=0.8).judge(ASKED)).correct is False


@pytest.mark.parametrize(
    ("said", "finish", "status"),
    [
        ("<score>4</score>", "stop", "parse_error"),
        ("<think>a</think><score>9</score>", "stop", "parse_error"),
        ("", "stop", "parse_error"),
        ("<think>a</think><score>4</score>", "length", "truncated"),
        (RequestRefused("a prompt of 9,000 tokens"), "stop", "refused"),
        (FailureError(Reason.LLM_UNAVAILABLE, "down"), "stop", "unavailable"),
    ],
)
async def test_what_cannot_be_read_is_no_score(said: Any, finish: str, status: str):
    for query in (ASKED, COMPARED):
        verdict = await judge(Scripted(said, finish)).judge(query)
        assert (verdict.score, verdict.correct, verdict.status) == (None, None, status)
        assert verdict.reason


async def test_two_answers_are_shown_in_both_orders():
    writer = Scripted(lambda prompt: _which(prompt, "corn", "beet"))
    verdict = await judge(writer).judge(COMPARED)
    assert (verdict.score, verdict.correct) == (1.0, True)
    assert verdict.parts == {"answer first": 1.0, "rival first": 1.0}
    assert len({*writer.prompts}) == 2
    verdict = await judge(Scripted(lambda prompt: _which(prompt, "beet", "corn"))).judge(COMPARED)
    assert (verdict.score, verdict.correct) == (0.0, False)


def _which(prompt: str, better: str, worse: str) -> str:
    answers = prompt[prompt.index("ANSWER A") :]
    letter = "A" if answers.index(better) < answers.index(worse) else "B"
    return f"<think>a</think><better>{letter}</better>"


async def test_a_judge_that_goes_by_the_place_has_a_tie_or_abstains():
    first = Scripted("<think>a</think><better>A</better>")
    verdict = await judge(first).judge(COMPARED)
    assert (verdict.score, verdict.correct, verdict.status) == (0.5, None, "ok")
    assert verdict.parts == {"answer first": 1.0, "rival first": 0.0}
    verdict = await judge(first, on_disagreement="abstain").judge(COMPARED)
    assert (verdict.score, verdict.status) == (None, "abstain")
    once = await judge(first, both_orders=False).judge(COMPARED)
    assert once.score in (0.0, 1.0) and len(once.parts) == 1


async def test_a_judge_of_single_answers_compares_by_a_score_of_each():
    def graded(prompt: str) -> str:
        answer = prompt[prompt.index("ANSWER") :]
        return f"<think>a</think><score>{4 if 'corn' in answer else 1}</score>"

    verdict = await judge(Scripted(graded), "one").judge(COMPARED)
    assert (verdict.score, verdict.correct, verdict.attempts) == (1.0, True, 2)
    same = await judge(Scripted("<think>a</think><score>2</score>"), "one").judge(COMPARED)
    assert (same.score, same.correct) == (0.5, None)


async def test_what_it_was_not_trained_for_is_refused():
    writer = Scripted("<think>a</think><better>A</better>")
    assert (await judge(writer, "two").judge(ASKED)).status == "refused"
    rubric = JudgeQuery("q", "a", "", criteria=(Criterion("is short", 1.0),))
    assert (await judge(writer).judge(rubric)).status == "refused"
    assert not writer.prompts


async def test_its_confidence_is_a_part_of_the_verdict():
    said = "<think>a</think><score>4</score><confidence>0.9</confidence>"
    verdict = await judge(Scripted(said), confident=True).judge(ASKED)
    assert verdict.parts == {"confidence": 0.9}


async def test_a_server_s_reasoning_is_the_thought():
    reply = ChatReply("<score>3</score>", "stop", Usage(1, 3, 2), "m", 0.1, reasoning="long")
    model = ScriptedModel(lambda prompt: reply)
    verdict = await judge(ServerWriter(model, JudgeSection(max_tokens=64))).judge(ASKED)
    assert (verdict.score, verdict.reason) == (0.75, "long")
    assert model.requests[0].max_tokens == 64 and model.requests[0].temperature == 0


@pytest.mark.parametrize(
    ("judging", "judges"),
    [
        ({"method": "pointwise"}, "one"),
        ({"method": "pairwise"}, "two"),
        ({"method": "joint"}, "both"),
        ({"method": "sft"}, "two"),
        ({"method": "sft", "data": "files", "train_files": ["a.jsonl"]}, "both"),
    ],
)
def test_a_run_says_how_its_judge_is_asked(judging: dict[str, Any], judges: str):
    told = {"environment": "judging", "judging": {**judging, "wording": "short"}}
    form = form_of_run(told)
    assert form is not None
    assert (form.judges, form.wording) == (judges, wording_of("short"))
    assert form_of_run(make_config().model_dump(mode="json")) is None


def test_how_a_judge_is_asked_travels_with_its_weights_and_can_be_said_otherwise(tmp_path: Path):
    path = tmp_path / FORM_FILE
    assert read_form(path) is None
    form = JudgeForm(judges="one", wording=wording_of("short"), opened_thought=True)
    path.write_text(json.dumps(form.model_dump()))
    assert read_form(path) == form
    said = TrainedJudgeSection(wording="standard", states_confidence=True)
    chosen = chosen_form(form, said)
    assert (chosen.judges, chosen.opened_thought, chosen.states_confidence) == ("one", True, True)
    assert chosen.wording == wording_of("standard")
    assert chosen_form(None, TrainedJudgeSection()).judges == "both"
    path.write_text('{"judges": "all"}')
    with pytest.raises(DataError, match=r"judge\.json: does not say how a judge is asked"):
        read_form(path)
