"""The exam with judges whose faults are known: effects, order, failures, and what is written."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from exam_doubles import Comparing, Gullible, items, verdict

from flowright.core.batch_calls import ServerDown
from flowright.core.errors import UserError
from flowright.data.task import Pair
from flowright.judging.measuring.exam_probes import (
    EQUAL,
    ExamPlan,
    ExamProbe,
    ProbeResult,
    ask_probes,
    pairs_of,
    sample_items,
)
from flowright.judging.measuring.judge_exam import (
    BIASED,
    UNEQUAL,
    chosen_perturbations,
    hold_exam,
    service,
)
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Message

SMALL = ExamPlan(repeats=2, resamples=500, concurrency=4)


def effects_on_wrong(record: dict[str, Any]) -> dict[str, Any]:
    return {effect["bias"]: effect for effect in record["effects"] if not effect["label"]}


async def test_a_judge_fooled_by_markdown() -> None:
    judge = Gullible(fooled=lambda query: "**" in query.answer)
    record = await hold_exam(items(20), judge, None, SMALL)
    measures = record["measures"]["all"]
    # 20 questions without an error: n / (n + z^2), by Wilson.
    assert measures["agreement"] == pytest.approx({"value": 1.0, "low": 0.8389, "high": 1.0}, 1e-4)
    assert measures["kappa"] == {"value": 1.0, "low": None, "high": None}
    assert measures["false_positive_rate"]["value"] == 0.0
    on_wrong = effects_on_wrong(record)
    fooled = on_wrong.pop("formatting")
    assert (fooled["before"]["value"], fooled["after"]["value"]) == (0.0, 1.0)
    assert fooled["own"] == pytest.approx({"value": 1.0, "low": 0.8389, "high": 1.0}, 1e-4)
    assert (fooled["found"], fooled["asked"], fooled["compared"]) == ("raises", 20, 20)
    assert {e["own"]["value"] for e in on_wrong.values()} == {0.0}
    assert {e["found"] for e in on_wrong.values()} == {None}
    on_right = [e for e in record["effects"] if e["label"]]
    assert {e["own"]["value"] for e in on_right} == {0.0}
    assert record["stability"]["value"] == 1.0


async def test_the_length_of_a_cue_is_not_counted_for_it() -> None:
    """A judge that likes anything longer than the plain answer has no bias for authority."""
    judge = Gullible(fooled=lambda query: len(query.answer.split()) > 20)
    on_wrong = effects_on_wrong(await hold_exam(items(20), judge, None, SMALL))
    assert on_wrong["authority"]["total"]["value"] == 1.0
    assert on_wrong["authority"]["own"]["value"] == 0.0
    assert on_wrong["authority"]["found"] is None
    assert on_wrong["neutral"]["found"] == on_wrong["verbosity"]["found"] == "raises"


async def test_a_verdict_that_failed_leaves_its_pair_and_is_counted() -> None:
    judge = Gullible(silent=lambda query: query.key.endswith("tone") and "/1" in query.key)
    record = await hold_exam(items(20), judge, None, SMALL)
    tone = effects_on_wrong(record)["tone"]
    lost = sum(str(number).startswith("1") for number in range(20))
    assert (tone["asked"], tone["compared"]) == (20, 20 - lost)
    assert tone["own"]["value"] == 0.0
    assert record["service"]["status"]["abstain"] > 0


async def test_where_every_verdict_failed_there_is_no_number() -> None:
    judge = Gullible(silent=lambda query: True, status="parse_error")
    record = await hold_exam(items(5), judge, None, SMALL)
    assert record["measures"]["all"]["agreement"] == {"value": None, "low": None, "high": None}
    assert {e["own"]["value"] for e in record["effects"]} == {None}
    assert {e["found"] for e in record["effects"]} == {None}
    assert record["confusion"]["wrong_unscored"] == 5
    assert record["service"]["status"]["parse_error"] == 1.0
    json.dumps(record, allow_nan=False)


async def test_a_judge_that_always_prefers_the_first() -> None:
    first = Comparing(lambda query: (1.0, 0.0))
    plan = ExamPlan(perturbations=(), repeats=1, resamples=500)
    pairs = (await hold_exam(items(10), Gullible(), first, plan))["pairs"]
    for found in pairs.values():
        assert found["position"]["value"] == 1.0
        assert found["consistency"]["value"] == 0.0
        assert found["found"] == "raises"
    assert pairs[EQUAL]["pairs"] == 20 and pairs[UNEQUAL]["pairs"] == 10
    assert pairs[UNEQUAL]["prefers"]["value"] == 0.5


async def test_a_judge_without_a_preference_for_an_order() -> None:
    def fair(query: JudgeQuery) -> tuple[float, float]:
        equal = query.answer.rsplit("\n", 1)[-1] == str(query.rival).rsplit("\n", 1)[-1]
        return (0.5, 0.5) if equal else (1.0, 1.0)

    pairs = (await hold_exam(items(10), Gullible(), Comparing(fair), SMALL))["pairs"]
    assert pairs[EQUAL]["position"]["value"] == pairs[UNEQUAL]["position"]["value"] == 0.0
    assert pairs[EQUAL]["consistency"]["value"] == 1.0
    assert pairs[UNEQUAL]["prefers"]["value"] == 1.0
    assert pairs[EQUAL]["found"] is None


async def test_a_pair_with_one_order_lost_is_left_out() -> None:
    half = Comparing(lambda query: (1.0, None) if "What is 3" in query.question else (1.0, 1.0))
    pairs = (await hold_exam(items(10), Gullible(), half, SMALL))["pairs"]
    assert (pairs[EQUAL]["pairs"], pairs[EQUAL]["compared"]) == (20, 18)
    assert pairs[EQUAL]["consistency"]["value"] == 1.0


def test_programs_are_in_no_pair() -> None:
    assert pairs_of(items(3), SMALL)
    assert pairs_of([replace(item, answer_type="code") for item in items(3)], SMALL) == []


async def test_repetitions_have_keys_of_their_own_and_instability_shows() -> None:
    @dataclass
    class Fickle:
        name: str = "fickle"

        async def judge(self, query: JudgeQuery) -> Verdict:
            unstable = "What is 0" in query.question
            return verdict(not (unstable and query.key.endswith("/1")))

    plan = ExamPlan(perturbations=(), repeats=2, resamples=100)
    record = await hold_exam(items(4), Fickle(), None, plan)
    assert record["stability"]["value"] == 0.75
    assert record["effects"] == []
    once = await hold_exam(items(4), Fickle(), None, ExamPlan(perturbations=(), repeats=1))
    assert once["stability"] is None


async def test_cost_tries_and_seconds() -> None:
    plan = ExamPlan(perturbations=(), repeats=1, resamples=10, price_in=1.0, price_out=10.0)
    told = (await hold_exam(items(5), Gullible(), None, plan))["service"]
    assert (told["verdicts"], told["asked"]) == (10, 10)
    assert told["cost"] == pytest.approx(10 * (100 * 1.0 + 10 * 10.0) / 1e6)
    assert told["cost_per_1000"] == pytest.approx(0.2)
    assert (told["tries_mean"], told["retried"]) == (1.0, 0.0)
    assert (told["seconds"]["p50"], told["seconds"]["p95"]) == (0.5, 0.5)
    assert told["status"]["ok"] == 1.0 and told["source"] == {"llm": 1.0}


def test_the_two_orders_of_a_pair_are_no_retry() -> None:
    calm = verdict(True)
    harried = replace(calm, attempts=3)
    outcomes = [
        ProbeResult(
            probe, replace(calm, attempts=sum(m.attempts for m in members), members=members)
        )
        for probe, members in zip(
            pairs_of(items(2), SMALL), [(calm, calm), (calm, harried)], strict=False
        )
    ]
    found = service(outcomes, SMALL)
    assert (found["tries_mean"], found["retried"]) == (6 / 4, 1 / 4)


async def test_a_judge_that_is_down_is_not_asked_to_the_end() -> None:
    down = Gullible(silent=lambda query: True, status="unavailable")
    with pytest.raises(ServerDown, match="no record was written") as error:
        await hold_exam(items(200), down, None, SMALL)
    assert error.value.exit_code == 1
    assert len(down.queries) < 40


async def test_a_judge_that_dies_is_not_asked_to_the_end() -> None:
    answers = iter([False] * 50)
    dying = Gullible(silent=lambda query: next(answers, True), status="unavailable")
    with pytest.raises(ServerDown, match=r"50 answered, 2\d failed"):
        await hold_exam(items(200), dying, None, SMALL)
    assert len(dying.queries) < 80


async def test_a_judge_that_is_down_now_and_then_is_examined() -> None:
    shaky = Gullible(silent=lambda query: "/False" in query.key, status="timeout")
    plan = replace(SMALL, perturbations=("tone",))  # master keys are wrong answers in a row
    record = await hold_exam(items(30), shaky, None, plan)
    assert record["confusion"]["wrong_unscored"] == 30
    assert record["measures"]["all"]["false_positive_rate"]["value"] is None
    assert record["measures"]["all"]["false_negative_rate"]["value"] == 0.0


async def test_no_more_queries_at_once_than_asked_for() -> None:
    @dataclass
    class Crowded:
        now: int = 0
        most: int = 0
        name: str = "crowded"

        async def judge(self, query: JudgeQuery) -> Verdict:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return verdict(True)

    judge, told = Crowded(), list[ProbeResult]()
    probes = [ExamProbe(item, "plain", item.query(item.id)) for item in items(25)]
    outcomes = await ask_probes(judge, probes, 7, told.append)
    assert judge.most == 7
    assert [outcome.probe for outcome in outcomes] == probes
    assert len(told) == 50


def test_a_sample_takes_whole_questions() -> None:
    chosen = sample_items(items(30), 10, seed=0)
    assert len(chosen) == 20 and len({item.question for item in chosen}) == 10
    assert chosen == sample_items(items(30), 10, seed=0) != sample_items(items(30), 10, seed=1)
    assert sample_items(items(3), None, 0) == items(3)


def test_perturbations_are_chosen_by_name() -> None:
    assert chosen_perturbations("tone, verbosity,tone") == ("tone", "verbosity")
    assert chosen_perturbations("") == ()
    with pytest.raises(UserError, match="did you mean verbosity"):
        chosen_perturbations("verbosit")


def test_what_is_kept_of_an_outcome() -> None:
    item = items(1)[0]
    row = ProbeResult(
        ExamProbe(item, "plain", item.query("k")), verdict(None, status="timeout")
    ).row()
    assert row["status"] == "timeout" and "score" not in row and "correct" not in row
    assert row["label"] is True and row["answer"] == "The answer is 1."


async def test_pairs_of_evalbiasbench_are_a_row_of_their_own() -> None:
    """A judge that prefers what is shown as ``answer``: the better one, whichever stands first."""
    asked = (Message("user", "Which?"),)
    biased = [
        Pair("1", "evalbiasbench", asked, "plain", "showy", "first"),
        Pair("2", "evalbiasbench", asked, "showy", "plain", "second"),
        Pair("3", "evalbiasbench", asked, "a", "b", "tie"),
    ]

    def prefers_plain(query: JudgeQuery) -> tuple[float, float]:
        return (1.0, 1.0) if query.answer == "plain" else (0.5, 0.5)

    judge = Comparing(prefers_plain)
    pairs = (await hold_exam(items(4), Gullible(), judge, SMALL, biased=biased))["pairs"]
    assert pairs[BIASED]["pairs"] == pairs[BIASED]["compared"] == 2
    assert pairs[BIASED]["prefers"]["value"] == pairs[BIASED]["consistency"]["value"] == 1
    assert pairs[EQUAL]["prefers"]["value"] == 0.5
