"""A judge that says [[1]] or [[0]]: how it is asked, and what is not taken for a verdict."""

import pytest
from criteria_doubles import ASKED, CriteriaModel, blocks_of
from judge_doubles import ScriptedModel, reply, unavailable
from lost_sandbox import LostSandbox

from flowright.config.judge import JudgeSection
from flowright.criteria.rubrics.rows import Constraint, VerifRow
from flowright.judging.rubrics.criteria_judge import ASKS, BracketJudge
from flowright.judging.rubrics.rewards import VerifReward
from flowright.judging.verdict import Criterion, JudgeQuery

SOFT = VerifRow(ASKED, (Constraint("It says apple.", "soft"), Constraint("It is kind.", "soft")))


@pytest.mark.parametrize(
    ("replies", "value", "asked"),
    [
        (["[[1]]"], 1.0, 1),
        (["[[0]]\n\n理由：没有提到苹果。"], 0.0, 1),
        (["<think>hm</think>[[1]] It is kind."], 1.0, 1),
        (["", "Sure! [[1]]", "[[0]]"], 0.0, 3),
        (["[[1]] or [[0]]?", "[[1]]"], 1.0, 2),
    ],
)
async def test_a_verdict_at_the_head_is_the_soft_one(
    replies: list[str], value: float, asked: int
) -> None:
    model = ScriptedModel([reply(text) for text in replies])
    reward = VerifReward(BracketJudge(model, JudgeSection()), LostSandbox(workers=1))
    grade = await reward.grade(SOFT, "An apple, dear.", "k")
    assert (grade.value, grade.soft) == (value, value == 1.0)
    assert len(model.requests) == asked
    for request in model.requests:
        content = request.messages[-1].content
        assert request.response_format is None and content.endswith(ASKS)
        assert "JSON" not in content and "True|False" not in content
        assert blocks_of(content)["CRITERION 1"] == "- It says apple.\n- It is kind."


async def test_what_a_judge_does_not_say_is_no_verdict() -> None:
    for step in (reply("Yes, all of them hold."), unavailable()):
        judge = BracketJudge(ScriptedModel([step]), JudgeSection(max_attempts=2))
        grade = await VerifReward(judge, LostSandbox(workers=1)).grade(SOFT, "An apple.", "k")
        assert (grade.value, grade.soft, grade.floored) == (None, None, False)


async def test_one_verdict_is_not_for_several_criteria() -> None:
    criteria = (Criterion("It says `a`.", 1), Criterion("It says `b`.", 1))
    judge = BracketJudge(CriteriaModel(), JudgeSection())
    verdict = await judge.judge(JudgeQuery("Q", "a", "", criteria=criteria))
    assert (verdict.status, verdict.score) == ("abstain", None)
