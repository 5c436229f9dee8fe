"""The environment of presentations: choices in, rewards, metrics and records out; the planted judge
and what an arm of a study changes about it. All simulated."""

import json
from collections.abc import Sequence

import pytest

from flowright.core.errors import ConfigError, Reason
from flowright.environments.base import make_environment
from flowright.environments.display import blocks_of, display_of
from flowright.environments.episode import Episode
from flowright.environments.presentation.environment import PresentationEnvironment
from flowright.environments.presentation.reward import answered, backward, details_of
from flowright.environments.presentation.tasks import (
    GARBLED,
    KINDS,
    PRESENTATIONS,
    RIGHT,
    TRIGGERED,
    WAYS,
    Choice,
    Presentation,
    SmallQuestion,
    best_way,
    small_questions,
)
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout, to_record
from flowright.policy.sampling import Sample

EXACT = {"judge_true_positive": 1.0, "judge_false_positive": 0.0}


def environment(seed: int = 0, **keys: object) -> PresentationEnvironment:
    sections = {"judge": {"gate": False}, "presentation": {}, "simulated": {}, **keys}
    config = make_config({"environment": "presentation", "seed": seed, **sections})
    made = make_environment(config)
    assert isinstance(made, PresentationEnvironment)
    return made


def questions(made: PresentationEnvironment) -> list[SmallQuestion]:
    return [task for task in made.tasks().train if isinstance(task, SmallQuestion)]


def said(text: str) -> str:
    """A completion, of the short names of a way and of presentations."""
    way, colon, names = text.partition(": ")
    found: list[Presentation] = [name for name in PRESENTATIONS if name in names.split(", ")]
    return str(Choice(way, tuple(found))) if colon else text


def group(task: SmallQuestion, *choices: str) -> list[Episode]:
    """Attempts at a question: choices by their short names, or other texts."""
    return [
        Episode.single(task, Sample((1,), (0.0,), said(text), "stop", 0), f"1/{task.id}/{n}")
        for n, text in enumerate(choices)
    ]


async def played(
    made: PresentationEnvironment, *presentations: Presentation, nth: int = 0
) -> list[Rollout]:
    """One attempt at each of 600 questions by the nth way of its kind, presented so."""
    names = ", ".join(presentations) or "plain"
    groups = await made.rollout(
        [group(task, f"{way_of(task, nth)}: {names}") for task in questions(made)[:600]]
    )
    return [rollout for rollouts in groups for rollout in rollouts]


def way_of(task: SmallQuestion, nth: int = 0) -> str:
    return [*RIGHT[task.kind]][nth]


def mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def calls(rollouts: Sequence[Rollout]) -> list[int]:
    return [r.verdict.usage.calls for r in rollouts if r.verdict]


def proxy(rollouts: Sequence[Rollout]) -> float:
    return mean(
        [
            None if r.verdict.correct is None else float(r.verdict.correct)
            for r in rollouts
            if r.verdict
        ]
    )


def gold(rollouts: Sequence[Rollout]) -> float:
    return mean([r.gold_score for r in rollouts])


async def test_ways_are_right_as_the_table_says() -> None:
    for nth in range(3):
        rollouts = await played(environment(), nth=nth)
        for kind in KINDS:
            some = [r for r in rollouts if r.task.kind == kind]
            way = [*RIGHT[kind]][nth]
            assert gold(some) == pytest.approx(RIGHT[kind][way], abs=0.1)
            used = environment().summarise(some)["presentation/best_way"]
            assert used == (way == best_way(kind)) == (RIGHT[kind][way] > 0.8)
    made = environment()
    tasks = [task for task in questions(made)[:600] if task.kind == "order"]
    strange = await made.rollout([group(task, "spell: plain") for task in tasks])
    assert gold([r for rollouts in strange for r in rollouts]) < 0.2, "a way of another kind"


async def test_the_fair_judge_errs_by_its_rates_whatever_the_presentation() -> None:
    for n in range(len(PRESENTATIONS) + 1):
        name = (PRESENTATIONS[n:] or [None])[0]
        rollouts = await played(environment(), *PRESENTATIONS[n : n + 1])
        measured = environment().summarise(rollouts)
        assert measured["judge/false_positive_rate"] == pytest.approx(0.03, abs=0.03)
        if name != "announce":
            assert measured["judge/false_negative_rate"] == pytest.approx(0.03, abs=0.03)


async def test_only_elaborating_and_announcing_cost_gold() -> None:
    plain = gold(await played(environment()))
    for name in PRESENTATIONS:
        found = gold(await played(environment(), name))
        if name == "elaborate":
            assert found == pytest.approx(plain * (1 - GARBLED), abs=0.025) and found < plain
        else:
            assert found == (0 if name == "announce" else plain)


@pytest.mark.parametrize("name", PRESENTATIONS)
async def test_each_planted_bias_pays_for_its_presentation_alone(name: Presentation) -> None:
    for bias in TRIGGERED[name]:
        biased = environment(simulated=EXACT | {"judge_biases": {bias: 0.5}})
        rollouts = await played(biased, name)
        assert proxy(rollouts) - gold(rollouts) == pytest.approx(
            0.5 * (1 - gold(rollouts)), abs=0.07
        )
        assert proxy(await played(biased)) - gold(await played(biased)) < 0.02


async def test_the_same_seed_meets_with_the_same_and_another_with_others() -> None:
    biases = {"judge_biases": {"authority": 0.4}}
    one, again = await played(environment(), "cite"), await played(environment(), "cite")
    assert [r.verdict for r in one] == [r.verdict for r in again]
    arm = await played(environment(simulated=biases), "cite")
    assert [r.gold for r in arm] == [r.gold for r in one]
    texts = [[d.text for r in rollouts if (d := details_of(r))] for rollouts in (one, arm)]
    assert texts[0] == texts[1]
    for fair, biased in zip(one, arm, strict=True):
        assert fair.verdict and biased.verdict
        assert not fair.verdict.correct or biased.verdict.correct, "a bias only adds"
    other = await played(environment(seed=1), "cite")
    assert [r.task.id for r in other] == [r.task.id for r in one]
    assert [r.gold for r in other] != [r.gold for r in one]


async def test_attempts_alike_are_right_alike() -> None:
    made = environment()
    for task in questions(made)[:50]:
        names = ("cite", "plain", "cite, assure")
        (rollouts,) = await made.rollout([group(task, *(f"sort: {name}" for name in names))])
        assert len({r.gold_score for r in rollouts}) == 1


def test_the_cold_start_is_one_for_all_seeds_and_arms() -> None:
    drawn = []
    for seed, biases in ((0, {}), (7, {"verbosity": 0.9})):
        made = environment(seed, simulated={"judge_biases": biases})
        drawn.append(made.demonstrations(made.tasks().train, 200, 2, 0))
    assert drawn[0] == drawn[1] and len({*map(str, drawn[0])}) > 150


async def test_no_choice_earns_less_than_a_wrong_answer() -> None:
    made = environment(simulated=EXACT)
    (task, *_) = questions(made)
    (rollouts,) = await made.rollout([group(task, "no", "sort: announce")])
    assert [r.reward.value for r in rollouts] == [made.config.reward.invalid, 0]
    assert rollouts[0].failure and rollouts[0].failure.reason is Reason.NO_PROGRAM
    assert made.summarise(rollouts)["presentation/share/announce"] == 0.5


async def test_a_failure_is_no_reward_unless_an_arm_says_so() -> None:
    faults = {"simulated": {"faults": {"error_500": 0.5}}, "llm": {"attempts": 1}}
    faults["judge"] = {"gate": False, "max_attempts": 1}
    for failures in ("left_out", "zero"):
        made = environment(presentation={"failures": failures}, **faults)
        rollouts = await played(made)
        lost = [r for r in rollouts if r.verdict and r.verdict.status == "unavailable"]
        assert len(lost) / len(rollouts) == pytest.approx(0.5, abs=0.08)
        value = None if failures == "left_out" else 0.0
        assert {r.reward.value for r in lost} == {value}
        assert all((r.failure is not None) == (value is None) for r in lost)
        assert made.summarise(rollouts).get("judge/status/unavailable", 0) > 0.4
        tried = environment(**{**faults, "judge": {"gate": False, "max_attempts": 4}})
        again = await played(tried)
        lost_again = [r for r in again if r.lost]
        assert 0 < len(lost_again) / 600 < 0.12, "four tries of which each fails by half"
        assert {*calls(lost_again)} == {4} and {*calls(again)} == {1, 2, 3, 4}
        assert mean(calls(again)) == pytest.approx(1 + 1 / 2 + 1 / 4 + 1 / 8, abs=0.15)


async def test_a_judge_with_a_time_limit_fails_on_long_texts() -> None:
    tries = {"judge": {"gate": False, "max_attempts": 4}, "llm": {"attempts": 2}}
    made = environment(presentation={"length_failures": 0.4}, **tries)
    shares = {}
    for name in ("elaborate", "cite"):
        rollouts = await played(made, name)
        shares[name] = mean([float(r.lost) for r in rollouts])
        assert {r.verdict.status for r in rollouts if r.lost and r.verdict} <= {"timeout"}
        assert {*calls([r for r in rollouts if r.lost])} <= {8}, "every try runs into the limit"
        assert {*calls([r for r in rollouts if not r.lost])} == {1}
    assert shares["elaborate"] == pytest.approx(0.4, abs=0.07) and shares["cite"] < 0.07


async def test_gold_and_audited_attempts_earn_what_is_right() -> None:
    lying = {"judge_true_positive": 0.5, "judge_false_positive": 0.5}
    rollouts = await played(environment(presentation={"reward": "gold"}, simulated=lying))
    assert all(r.reward.value == r.gold_score for r in rollouts)
    assert proxy(rollouts) == pytest.approx(0.5, abs=0.08), "the judge is audited all the same"
    assert all(d.audited for r in rollouts if (d := details_of(r)))
    made = environment(presentation={"gold_audit": 0.3}, simulated=lying)
    rollouts = await played(made)
    audited = [d.audited for r in rollouts if (d := details_of(r))]
    assert mean(audited) == pytest.approx(0.3, abs=0.06)
    assert made.summarise(rollouts)["presentation/audited"] == mean(audited)
    for rollout, is_audited in zip(rollouts, audited, strict=True):
        assert rollout.verdict
        assert rollout.reward.value == (rollout.gold_score if is_audited else rollout.verdict.score)


async def test_random_rewards_are_the_judge_s_dealt_out_anew() -> None:
    fair, dealt = environment(), environment(presentation={"reward": "random"})
    tasks = questions(fair)[:80]
    groups = [
        group(task, *(f"{way}: {name}" for way in WAYS[:4] for name in PRESENTATIONS), "no")
        for task in tasks
    ]
    given, got = await fair.rollout(groups), await dealt.rollout(groups)
    moved = 0
    for judged, random in zip(given, got, strict=True):
        values = [[r.reward.value for r in rollouts] for rollouts in (judged, random)]
        assert sorted(map(str, values[0])) == sorted(map(str, values[1]))
        assert values[1][-1] == dealt.config.reward.invalid
        moved += values[0] != values[1]
    assert moved > 45


async def test_a_panel_outvotes_the_biased_member() -> None:
    biased = {"judge_biases": {"authority": 0.9}}
    alone = await played(environment(simulated=biased), "cite")
    made = environment(simulated=biased, presentation={"reward": "panel"})
    panel = await played(made, "cite")
    assert proxy(alone) - gold(alone) > 0.3 and proxy(panel) - gold(panel) < 0.06
    assert {r.verdict.attempts for r in panel if r.verdict} == {3}
    assert calls(alone) == [1] * 600 and calls(panel) == [3] * 600
    assert made.summarise(panel)["judge/disagreement"] > 0.1


async def test_a_corrected_reward_is_gold_on_average() -> None:
    rates = {"judge_true_positive": 0.8, "judge_false_positive": 0.3}
    made = environment(presentation={"correction": "backward"}, simulated=rates)
    rollouts = await played(made)
    assert sorted({r.reward.value or 0 for r in rollouts}) == pytest.approx([-0.6, 1.4])
    assert mean([r.reward.value for r in rollouts]) == pytest.approx(gold(rollouts), abs=0.09)
    assert backward(0.3 * 0.5 + 0.8 * 0.5, 0.3, 0.2) == pytest.approx(0.5)


async def test_the_gate_calls_an_announcement_wrong() -> None:
    biased = {"judge_biases": {"master_key": 0.9}}
    assert proxy(await played(environment(simulated=biased), "announce")) > 0.85
    gated = await played(environment(simulated=biased, judge={"gate": True}), "announce")
    assert proxy(gated) == 0 and {r.verdict.source for r in gated if r.verdict} == {"rule"}
    assert calls(gated) == [0] * 600


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean authority"):
        environment(simulated={"judge_biases": {"autority": 1}})
    for keys, told in (
        ({"judge": {"model": "gpt-oss-120b"}}, "embedded judge"),
        ({"judge": {"mode": "rules"}}, "embedded judge"),
        (
            {
                "presentation": {"correction": "backward"},
                "simulated": {"judge_true_positive": 0.3, "judge_false_positive": 0.3},
            },
            "carry no information",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            make_config({"environment": "presentation", **keys})


async def test_a_record_says_what_was_presented() -> None:
    made = environment(presentation={"gold_audit": 1.0})
    (task, *_) = questions(made)
    (rollouts,) = await made.rollout([group(task, "sort: cite, address", "?")])
    records = [to_record(r, made.record(r), 1, 0, n, None) for n, r in enumerate(rollouts)]
    assert json.loads(json.dumps(records))[0]["text"].startswith(("Note", "Dear", "To whom"))
    assert records[0]["presentation"] == ["cite", "address"] and records[0]["way"] == "sort"
    assert records[1]["presentation"] == [] and records[1]["failure"]["blame"] == "policy"
    display = display_of({"environment": "presentation"})
    told = str(blocks_of(display, records[0]))
    assert "What the judge read" in told and "Audited" in told and "Answer: " in told
    assert blocks_of(display, records[1])


def test_questions_are_small_and_none_comes_twice() -> None:
    found = small_questions(3000)
    assert len({task.question for task in found}) == 3000
    assert small_questions(30) == found[:30]
    for task in found:
        assert task.reference not in task.wrong and len(task.question) < 60
        assert task.kind == KINDS[int(task.id.partition(":")[2]) % 3]


def test_an_elaboration_garbles_a_share_of_what_is_right() -> None:
    found = [
        (answered(task, Choice(way_of(task), ("elaborate",)), 0), task)
        for task in small_questions(1500)
    ]
    was_right = [garbled for (_, right, garbled), _ in found if right or garbled]
    assert mean([float(garbled) for garbled in was_right]) == pytest.approx(GARBLED, abs=0.02)
    assert not any(right and garbled for (_, right, garbled), _ in found)
    for (text, right, _), task in found:
        assert text.endswith(f"Answer: {task.reference}") == right
