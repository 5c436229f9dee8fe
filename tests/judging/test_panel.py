"""Several judges as one: who votes, how votes become a verdict, and what a panel may not hide."""

from dataclasses import dataclass, replace

import pytest
from judge_doubles import RIGHT, WRONG, ScriptedModel, reply, unavailable

from flowright.config.judge import JudgeSection
from flowright.judging.audit import audit
from flowright.judging.build import build_judge
from flowright.judging.panel import Panel, disagreement, families
from flowright.judging.verdict import JudgeQuery, Status, Verdict
from flowright.llm.chat import Usage

ASKED = JudgeQuery("What is 6 * 7?", "It is 42.", "42", "math_expression")


@dataclass
class Member:
    """Gives one score, or fails with one status."""

    said: float | Status
    name: str = "member"

    async def judge(self, query: JudgeQuery) -> Verdict:
        del query
        usage = Usage(1, 10, 5)
        if isinstance(self.said, str):
            return Verdict(None, None, "llm", self.said, attempts=2, judge=self.name, usage=usage)
        right = self.said > 0.5
        return Verdict(self.said, right, "llm", "ok", attempts=1, judge=self.name, usage=usage)


async def asked(*said: float | Status, combine: str = "majority", **options: object) -> Verdict:
    members = [Member(what, f"m{n}") for n, what in enumerate(said)]
    return await Panel(members, combine, **options).judge(ASKED)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("said", "combine", "score"),
    [
        ((1.0, 1.0, 0.0), "majority", 2 / 3),
        ((0.6, 0.6, 0.0), "majority", 2 / 3),
        ((0.6, 0.6, 0.0), "mean", 0.4),
        ((0.6, 0.6, 0.0), "median", 0.6),
        ((0.0, 0.0, 1.0), "majority", 1 / 3),
        ((1.0,), "mean", 1.0),
    ],
)
async def test_scores_are_combined(said: tuple[float, ...], combine: str, score: float) -> None:
    verdict = await asked(*said, combine=combine)
    assert verdict.status == "ok" and verdict.score == pytest.approx(score)
    assert verdict.correct is (score > 0.5)
    assert [member.score for member in verdict.members] == list(said)


async def test_weights_count() -> None:
    assert (await asked(1.0, 0.0, 0.0, weights=[3.0, 1.0, 1.0])).correct is True
    assert (await asked(1.0, 0.0, 0.0)).correct is False
    verdict = await asked(0.8, 0.2, combine="mean", weights=[1.0, 3.0])
    assert verdict.score == pytest.approx(0.35)


async def test_a_failed_member_leaves_the_vote_and_is_no_zero() -> None:
    verdict = await asked(1.0, "timeout", "parse_error", combine="mean")
    assert (verdict.score, verdict.correct, verdict.status) == (1.0, True, "ok")
    assert "m1: timeout" in verdict.reason and "m2: parse_error" in verdict.reason
    assert verdict.usage == Usage(3, 30, 15) and verdict.attempts == 5


async def test_below_the_quorum_there_is_no_verdict() -> None:
    verdict = await asked(1.0, "timeout", "timeout", quorum=2)
    assert (verdict.score, verdict.correct, verdict.status) == (None, None, "timeout")
    assert verdict.reason.startswith("1 of 3 members, 2 needed")
    assert (await asked("unavailable", "unavailable", "timeout")).status == "unavailable"


async def test_a_tie_is_an_abstention() -> None:
    for combine in ("majority", "mean", "median"):
        verdict = await asked(1.0, 0.0, combine=combine)
        assert (verdict.score, verdict.status) == (None, "abstain")
        assert verdict.reason.startswith("a tie")


@pytest.mark.parametrize(
    ("said", "share"),
    [((1.0, 1.0, 0.0), 1 / 3), ((1.0, 0.0), 0.5), ((1.0, 1.0), 0.0), ((1.0, "timeout"), None)],
)
async def test_disagreement_is_exported(
    said: tuple[float | Status, ...], share: float | None
) -> None:
    verdict = await asked(*said)
    assert disagreement(verdict) == (None if share is None else pytest.approx(share))
    metrics = audit([verdict, None], [None, None])
    assert metrics.get("judge/disagreement") == disagreement(verdict)


@pytest.mark.parametrize(
    ("members", "options"),
    [
        (0, {}),
        (2, {"weights": [1.0]}),
        (2, {"weights": [1.0, 0.0]}),
        (2, {"quorum": 3}),
        (2, {"quorum": 0}),
    ],
)
def test_a_panel_that_cannot_be(members: int, options: dict) -> None:
    with pytest.raises(ValueError, match="members"):
        Panel([Member(1.0)] * members, **options)


async def test_a_configured_panel_asks_all_and_falls_back_as_one() -> None:
    section = JudgeSection(
        panel=("b", "c"), quorum=2, max_attempts=1, mode="judge_with_rule_fallback"
    )
    right, wrong, down = (
        ScriptedModel([step], name=name)
        for name, step in (("a", reply(RIGHT)), ("b", reply(WRONG)), ("c", unavailable()))
    )
    more = ScriptedModel([reply(RIGHT)], name="c")
    verdict = await build_judge(section, right, [wrong, more]).judge(ASKED)
    assert (verdict.correct, verdict.judge, verdict.source) == (True, "panel(a, b, c)", "llm")
    lost = await build_judge(section, down, [down, wrong]).judge(ASKED)
    assert (lost.correct, lost.source) == (True, "rule_fallback")


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": 2},
        {"panel": ["b"], "weights": [1.0]},
        {"panel": ["b"], "weights": [1.0, -1.0]},
        {"panel": ["b"], "mode": "rules"},
    ],
)
def test_a_configuration_that_cannot_be(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"quorum|weights|panel"):
        JudgeSection(**wrong)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("Qwen2.5-7B-Instruct", {"qwen"}),
        ("/models/Qwen/Qwen3-8B/", {"qwen"}),
        ("openai/gpt-oss-120b", {"gpt"}),
        ("DeepSeek-R1-Distill-Llama-70B", {"deepseek", "llama"}),
        ("mistralai/Mixtral-8x7B", {"mistral"}),
        ("phi-4", {"phi"}),
        ("sapphire-7b", set()),
        ("my-own-model", set()),
    ],
)
def test_the_family_of_a_model(model: str, found: set[str]) -> None:
    assert families(model) == found


# Confidence.


async def test_a_panel_that_is_not_sure_enough_abstains() -> None:
    verdict = await asked(1.0, 1.0, 0.0, min_confidence=0.7)
    assert (verdict.status, verdict.score) == ("abstain", None)
    assert verdict.reason.startswith("67% agree, 70% needed")
    assert (await asked(1.0, 1.0, 0.0, min_confidence=0.6)).correct is True
    assert (await asked(0.0, 0.0, 0.0, min_confidence=1.0)).correct is False
    assert (await asked(1.0, "timeout", min_confidence=1.0)).correct is True, "it left the vote"
    weighted = await asked(1.0, 0.0, weights=[4.0, 1.0], min_confidence=0.8)
    assert (weighted.correct, weighted.score) == (True, 0.8)


async def test_a_tie_between_two_answers_is_a_verdict() -> None:
    members = [Member(1.0, "a"), Member(0.0, "b")]
    pair = replace(ASKED, rival="It is 41.")
    verdict = await Panel(members).judge(pair)
    assert (verdict.status, verdict.score, verdict.correct) == ("ok", 0.5, None)
    assert (await Panel(members).judge(ASKED)).status == "abstain"
    assert (await Panel(members, min_confidence=0.6).judge(pair)).status == "abstain"


async def test_samples_of_one_model_vote_with_seeds_of_their_own() -> None:
    model = ScriptedModel([reply(RIGHT), reply(WRONG), reply(RIGHT)])
    section = JudgeSection(samples=3, sample_temperature=0.9)
    verdict = await build_judge(section, model).judge(ASKED)
    assert (verdict.correct, verdict.score) == (True, pytest.approx(2 / 3))
    assert [member.correct for member in verdict.members] == [True, False, True]
    assert len({request.seed for request in model.requests}) == 3
    assert {request.temperature for request in model.requests} == {0.9}
    assert verdict.judge == "3 x scripted"


async def test_samples_that_disagree_too_much_are_no_verdict() -> None:
    model = ScriptedModel([reply(RIGHT), reply(WRONG), reply(RIGHT)])
    section = JudgeSection(samples=3, min_confidence=0.9, second_reading=False)
    verdict = await build_judge(section, model).judge(ASKED)
    assert (verdict.status, verdict.score) == ("abstain", None)


def test_one_verdict_is_asked_for_at_the_judges_own_temperature() -> None:
    assert JudgeSection().samples == 1
    assert build_judge(JudgeSection(), ScriptedModel([reply(RIGHT)])).name == "scripted"
