"""Weighted terms beside a judge: functions, rules, aspects; in a service and the adapter."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from judge_doubles import RIGHT, WRONG, ScriptedModel, reply, unavailable
from own_modules import import_own
from pydantic import ValidationError

from flowright.config.judge import JudgeSection
from flowright.config.loading import judge_reward
from flowright.config.reward import TermsSection
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import ConfigError
from flowright.core.plugins import guarded_imports, mark_untrusted
from flowright.judging.build import build_judge, caches_of, open_terms
from flowright.judging.reward.adapter import JudgeRewardSystem
from flowright.judging.terms import RewardTerms, TermSample, WithTerms, terms_hash
from flowright.judging.verdict import Judge, JudgeQuery
from flowright.llm.chat import ChatRequest

QUERY = JudgeQuery("What is 6 * 7?", "It is 42.", "42", "number", key="a/0")

OWN = '''"""Reward functions of a user's."""

import numpy as np

SEEN = []


def shorter(completions, **columns):
    return [-len(text) / 100 for text in completions]


async def named(prompts, completions, answer, **columns):
    SEEN.append((prompts, completions, answer, sorted(columns)))
    return [float(right in text) for right, text in zip(answer, completions)]


def plain(completions):
    return np.asarray([len(text) for text in completions], dtype=np.float32)


def none(completions, **columns):
    return [None, 1.0]


def nan(completions, **columns):
    return [float("nan"), "1"]


def short(completions, **columns):
    return [1.0]


def fails(completions, **columns):
    raise ValueError("no such file")
'''


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_own(tmp_path, monkeypatch, "own_terms", OWN)


def section(*terms: dict[str, Any], judge_weight: float = 1.0) -> TermsSection:
    return TermsSection.model_validate({"terms": terms, "judge_weight": judge_weight})


def function(name: str, weight: float = 1.0) -> dict[str, Any]:
    return {"name": name, "weight": weight, "function": f"own_terms:{name}"}


def opened(given: TermsSection, model: ScriptedModel | None = None) -> RewardTerms:
    terms = open_terms(given, JudgeSection(cache_size=8), model)
    assert terms is not None
    return terms


def samples(*answers: str, prompt: Any = "Name it.") -> list[TermSample]:
    return [
        TermSample(JudgeQuery("Name it.", text, "42", key=f"{n}"), prompt, {"answer": "42", "n": n})
        for n, text in enumerate(answers)
    ]


async def test_a_function_gets_lists_as_trl_gives_them() -> None:
    import own_terms  # pyright: ignore[reportMissingImports]

    own_terms.SEEN.clear()
    terms = opened(section(function("named"), function("plain", 0.5)))
    one, two = await terms.score(samples("It is 42.", "41"))
    assert (one.values, two.values) == ({"named": 1.0, "plain": 9.0}, {"named": 0.0, "plain": 2.0})
    assert terms.weighted(one) == {"named": 1.0, "plain": 4.5}
    messages = [{"role": "user", "content": "Name it."}]
    await opened(section(function("named"))).score(samples("42", prompt=messages)[:0])
    with_messages = opened(section(function("plain")))
    (scored,) = await with_messages.score(samples("42", prompt=messages))
    assert scored.values == {"plain": 1.0}  # a list of one message
    assert own_terms.SEEN == [
        (["Name it."] * 2, ["It is 42.", "41"], ["42", "42"], ["n"]),
    ]


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("none", ["returned None", ""]),
        ("nan", ["returned nan; return None for no reward", "returned a str, not a number"]),
        ("short", ["returned 1 values for 2 completions"] * 2),
        ("fails", ["ValueError: no such file"] * 2),
    ],
)
async def test_a_value_that_is_none_leaves_the_answer_out(name: str, reasons: list[str]) -> None:
    found = await opened(section(function(name), function("plain"))).score(samples("a", "b"))
    for scores, reason in zip(found, reasons, strict=True):
        assert reason in scores.reason
        assert (scores.status == "ok") == (reason == "") == bool(scores.values)
        assert reason == "" or scores.reason.startswith(f"reward function own_terms:{name}: ")


async def test_rules_are_gold_length_and_checkers() -> None:
    terms = opened(
        section(
            {"name": "right", "rule": "gold"},
            {"name": "long", "rule": "words", "arguments": {"most": 4}},
            {
                "name": "named",
                "rule": "keywords:existence",
                "arguments": {"keywords": ["it"]},
                "weight": -2,
            },
        )
    )
    found = await terms.score([TermSample.of_query(QUERY)])
    assert found[0].values == {"right": 1.0, "long": 0.75, "named": 1.0}
    assert terms.weighted(found[0]) == {"right": 1.0, "long": 0.75, "named": -2.0}
    # No gold check of a text that is paraphrased: not scored, whatever the answer.
    open_query = JudgeQuery("Why?", "So.", "word " * 30, "free_text")
    (lost,) = await terms.score([TermSample.of_query(open_query)])
    assert lost.values == {} and lost.reason.startswith("rule gold: ")


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        ({"rule": "word"}, "unknown instruction 'word'"),
        ({"rule": "words"}, "most is missing"),
        ({"rule": "keywords:existence", "arguments": {"kewords": []}}, "keywords is missing"),
        ({"rule": "gold", "arguments": {"most": 1}}, "takes no arguments"),
        ({"function": "own_terms:plane"}, "no plane; did you mean plain?"),
        ({"function": "own_terms:SEEN"}, "not a function"),
    ],
)
def test_terms_that_cannot_be_used_are_refused(term: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=r"^reward\.terms: mine: ") as refused:
        opened(section({"name": "mine", **term}))
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"terms": [{"name": "a"}]}, "give one of function, rule and aspect, not none"),
        ({"terms": [{"name": "a", "rule": "gold", "aspect": "Good?"}]}, "not rule, aspect"),
        ({"terms": [{"name": "cost", "rule": "gold"}]}, "cost: parts of every reward"),
        ({"terms": [{"name": "a", "rule": "gold"}] * 2}, "two have the same name"),
        ({"judge_weight": 0}, "nothing is earned"),
    ],
)
def test_sections_that_mean_nothing_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TermsSection.model_validate(given)


ASPECTS = section(
    {"name": "kind", "aspect": "Is it friendly?", "weight": 0.5},
    {"name": "clear", "aspect": "Is it clear?", "weight": 0.25},
    judge_weight=0.25,
)


def grades(request: ChatRequest) -> Any:
    text = str(request.messages[-1].content)
    if "- kind: Is it friendly?" in text:
        return reply(json.dumps({"reason": "", "kind": 4, "clear": 1, "overall": 2}))
    return reply(RIGHT)


def weighted(given: TermsSection, model: ScriptedModel, bounded: bool = True) -> Judge:
    inner = build_judge(JudgeSection(), model)
    return WithTerms(inner, opened(given, model), bounded=bounded)


async def test_aspects_are_graded_in_one_question_and_summed() -> None:
    model = ScriptedModel([grades])
    verdict = await weighted(ASPECTS, model).judge(QUERY)
    assert len(model.requests) == 2  # the verdict, and all aspects
    assert verdict.score == 0.25 * 1 + 0.5 * 1 + 0.25 * 0.25
    assert verdict.parts == {"judge": 1.0, "kind": 1.0, "clear": 0.25}
    assert (verdict.correct, verdict.status, verdict.usage.calls) == (True, "ok", 2)
    refused = await weighted(ASPECTS, model).judge(JudgeQuery("Q", "a", "", rival="b"))
    assert refused.status == "refused"


async def test_the_judge_of_aspects_has_its_own_cache() -> None:
    model = ScriptedModel([grades])
    terms = opened(ASPECTS, model)
    first = await terms.score([TermSample.of_query(QUERY)])
    assert await terms.score([TermSample.of_query(QUERY)]) != first  # without usage
    assert len(model.requests) == 1
    (cache,) = caches_of(None, terms)
    assert len(cache.state()) == 1


async def test_a_term_or_a_judge_that_fails_leaves_the_answer_unscored() -> None:
    lost = await weighted(section(function("fails", 0.5)), ScriptedModel([reply(RIGHT)])).judge(
        QUERY
    )
    assert (lost.score, lost.correct, lost.status) == (None, None, "unavailable")
    down = ScriptedModel([unavailable()])
    given = section({"name": "long", "rule": "words", "arguments": {"most": 4}, "weight": 0.1})
    assert (await weighted(given, down).judge(QUERY)).score is None


async def test_a_judge_of_weight_0_is_not_asked() -> None:
    model = ScriptedModel([reply(WRONG)])
    given = section({"name": "long", "rule": "words", "arguments": {"most": 4}}, judge_weight=0)
    verdict = await weighted(given, model).judge(QUERY)
    assert (verdict.score, verdict.correct, verdict.source) == (0.75, True, "rule")
    assert model.requests == [] and verdict.parts == {"long": 0.75}


async def test_a_service_keeps_its_scores_from_0_to_1() -> None:
    model = ScriptedModel([reply(RIGHT)])
    given = section(function("plain", 0.5), judge_weight=0.5)
    verdict = await weighted(given, model).judge(QUERY)  # 0.5 + 0.5 * 9
    assert verdict.score is None and "score 5; " in verdict.reason
    assert (await weighted(given, model, bounded=False).judge(QUERY)).score == 5.0


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"reward": {"terms": [function("plain", 0.1)]}}, "at most 1 in all"),
        ({"reward": {"terms": [function("plain", -0.1)], "judge_weight": 0.5}}, "0 or more"),
        (
            {
                "reward": {"terms": [{"name": "a", "aspect": "?", "weight": 0.1}],
                           "judge_weight": 0.5},
                "judge": {"mode": "rules"},
            },
            "aspect a: graded by judge.model",
        ),
    ],
)  # fmt: skip
def test_a_service_refuses_terms_that_it_cannot_have(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        JudgeServerConfig.model_validate({"judge": {"model": "simulated"}, **config})


def test_a_service_of_terms_alone_needs_no_model() -> None:
    given = {"judge_weight": 0, "terms": [function("plain")]}
    assert JudgeServerConfig.model_validate({"reward": given}).models == frozenset()


class Lenient(JudgeRewardSystem):
    async def _request_judge(self, request: dict[str, Any]) -> Any:
        return {"score": 0.5, "detailed_scores": {"tone": 0.2}}


def test_the_adapter_adds_terms() -> None:
    given = {"judge_url": "http://localhost:1", "judge_weight": 2}
    with Lenient(**given, terms=[function("shorter", 3), function("named")]) as rewards:
        result = rewards.reward("What is 6 * 7?", "It is 42.", "42")
    assert math.isclose(result["reward"], 2 * 0.5 - 3 * 0.09 + 1)
    assert result["detailed_scores"] == {
        "tone": 0.2, "judge": 0.5, "shorter": -0.09, "named": 1.0
    }  # fmt: skip
    with Lenient(**given, terms=[function("none")]) as rewards:
        assert rewards.reward("Q", "A", "B")["reward"] is None
    for terms in ([{"name": "a", "aspect": "?"}], []):
        with pytest.raises(ConfigError):
            judge_reward({**given, "judge_weight": 0 if not terms else 1, "terms": terms})


def test_the_hash_follows_weights_and_source(tmp_path: Path) -> None:
    one = terms_hash(section(function("plain")))
    assert terms_hash(section(function("plain"))) == one
    assert terms_hash(section(function("plain", 0.5))) != one
    (tmp_path / "own_more.py").write_text("def plain(completions):\n    return [1.0]\n")
    more = {"name": "plain", "function": "own_more:plain"}
    assert terms_hash(section(more)) != one


def test_the_code_of_a_received_run_is_not_imported(tmp_path: Path) -> None:
    with guarded_imports(trusted=False):
        mark_untrusted(tmp_path / "config.json")
        with pytest.raises(ConfigError, match="--trust does so"):
            opened(section(function("plain")))
    assert opened(section(function("plain")))
