"""The environment of judging: completions in, rewards and metrics out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flowright.core.errors import ConfigError, DataError, Reason
from flowright.data.task import Pair
from flowright.environments.base import make_environment
from flowright.environments.display import blocks_of, display_of
from flowright.environments.episode import Episode
from flowright.environments.judging.display import DISPLAY
from flowright.environments.judging.environment import JudgingEnvironment
from flowright.environments.judging.frames import Reading, read
from flowright.environments.judging.rows import JudgedRow, PointwiseRow, SftRow
from flowright.environments.judging.tasks import (
    JudgingTask,
    conversation_task,
    other_order,
    task_of,
)
from flowright.environments.registry import make_config
from flowright.environments.rollout import Reward, Rollout, to_record
from flowright.grpo.problems import BatchTask, Form
from flowright.llm.chat import Message
from flowright.policy.sampling import Prompt, Sample

QUESTION = (Message("user", "What is 6 * 7?"),)
PAIR = Pair("p", "s", QUESTION, "42", "41", "first", strength=1.0)
TIE = Pair("t", "s", QUESTION, "42", "six times seven", "tie")
SMALL = {"train": 30, "held_out": 10}
A, B, EVEN, BAD = (
    *(f"<think>x</think><better>{said}</better>" for said in ("A", "B", "tie")),
    "The first one.",
)


def environment(**judging: object) -> JudgingEnvironment:
    keys = {"known_rule": SMALL, **judging}
    made = make_environment(make_config({"environment": "judging", "judging": keys}))
    assert isinstance(made, JudgingEnvironment)
    return made


def score(said: int, sure: str = "") -> str:
    return f"<think>x</think><score>{said}</score>{sure}"


def completions(*said: tuple[JudgingTask, str], finish: str = "stop") -> list[Episode]:
    return [
        Episode.single(task, Sample((1,), (0.0,), text, finish, 0), f"0/{n}")  # pyright: ignore
        for n, (task, text) in enumerate(said)
    ]


async def played(
    made: JudgingEnvironment, *said: tuple[JudgedRow, bool, str], finish: str = "stop"
) -> list[Rollout]:
    """One group of attempts at rows in the one order or the other."""
    group = completions(*((task_of(row, swap), text) for row, swap, text in said), finish=finish)
    (rollouts,) = await made.rollout([group])
    return rollouts


def values(rollouts: Sequence[Rollout]) -> list[float | None]:
    return [rollout.reward.value for rollout in rollouts]


def test_the_tasks_of_a_known_rule() -> None:
    made = environment(method="joint")
    sets = made.tasks()
    assert (len(sets.train), len(sets.val)) == (60, 20)
    assert {task.kind for task in sets.train} == {"pointwise", "pairwise"}
    assert len({task.id for task in (*sets.train, *sets.val)}) == 80
    assert made.task_notes()[0].startswith("SYNTHETIC")
    assert made.about()["split"] in made.task_notes()[-1]
    (message,) = made.messages(sets.train[0])
    assert sets.train[0].question in message.content


def test_both_orders_are_views_of_a_pair() -> None:
    made = environment()
    views = made.forms(task_of(PAIR))
    assert [view.id for view in views] == ["p", "p/swapped"]
    assert [view.reference for view in views] == ["A", "B"]
    one, other = (made.messages(view)[0].content for view in views)
    assert one != other and sorted(one.split()) == sorted(other.split())
    swapped = other_order(task_of(PAIR))
    assert other_order(swapped) == task_of(PAIR) and made.forms(swapped)[1] == task_of(PAIR)
    point = task_of(PointwiseRow(QUESTION, "42", 4, "s", "1"))
    assert made.forms(point) == (point,)
    assert environment(both_orders=False).forms(task_of(PAIR)) == (task_of(PAIR),)
    with pytest.raises(ValueError, match="no order"):
        other_order(point)


async def test_verdicts_earn_by_the_order_that_was_shown() -> None:
    said = [(PAIR, swap, text) for swap in (False, True) for text in (A, B, EVEN, BAD)]
    rollouts = await played(environment(), *said)
    assert values(rollouts) == [1, 0, 0, -1, 0, 1, 0, -1]
    assert [r.gold.correct if r.gold else None for r in rollouts[:4]] == [True, False, False, None]
    failure = rollouts[3].failure
    assert failure is not None and failure.reason is Reason.NO_ANSWER
    assert failure.message == "no verdict to read: no_thought"
    assert values(await played(environment(), (TIE, True, EVEN), (TIE, False, A))) == [1, 0]


async def test_a_cut_judgement_says_so() -> None:
    (rollout,) = await played(environment(), (PAIR, False, "<think>x"), finish="length")
    assert rollout.failure is not None and rollout.failure.reason is Reason.TRUNCATED


async def test_scores_earn_by_their_distance() -> None:
    row = PointwiseRow(QUESTION, "about 42", 3, "s", "1")
    made = environment(method="pointwise")
    rollouts = await played(made, *((row, False, score(said)) for said in (3, 4, 0)))
    assert values(rollouts) == [1, 0.75, 0.25]
    assert made.summarise(rollouts)["judge/mean_absolute_error"] == pytest.approx(4 / 3)


async def test_a_stated_confidence_pays_its_squared_error() -> None:
    row = PointwiseRow(QUESTION, "42", 4, "s", "1")
    made = environment(method="pointwise", confidence_weight=0.5)
    assert "<confidence>" in made.messages(task_of(row))[0].content
    said = [score(4, "<confidence>0.8</confidence>"), score(0, "<confidence>0.8</confidence>")]
    rollouts = await played(made, *((row, False, text) for text in (*said, score(4))))
    assert values(rollouts) == pytest.approx([1 - 0.5 * 0.04, -0.5 * 0.64, -1])
    assert made.summarise(rollouts)["judge/brier_loss"] == pytest.approx((0.04 + 0.64) / 2)


async def test_strength_weighs_where_it_is_asked_to() -> None:
    assert values(await played(environment(full_strength=2.0), (PAIR, False, A))) == [0.5]


async def test_consistency_is_of_both_orders() -> None:
    made = environment(reward="consistency")
    said = [(PAIR, False, A), (PAIR, True, B), (PAIR, False, A), (PAIR, True, A), (PAIR, False, B)]
    rollouts = await played(made, *said, (PAIR, True, BAD))
    assert values(rollouts) == [1, 1, 0, 0, 0, -1]
    metrics = made.summarise(rollouts)
    assert metrics["judge/unpaired"] == 0
    # The answers named: 42 and 42, 42 and 41, 41 and none.
    assert metrics["judge/consistency"] == pytest.approx(1 / 3)
    alone = await played(made, (PAIR, False, A), (PAIR, False, B))
    assert values(alone) == [1, 0] and made.summarise(alone)["judge/unpaired"] == 1


async def test_groups_of_several_rows_are_paired_row_by_row() -> None:
    other = Pair("q", "s", QUESTION, "1", "42", "second")
    said = [(PAIR, False, A), (other, False, A), (PAIR, True, B), (other, True, A)]
    assert values(await played(environment(reward="consistency"), *said)) == [1, 0, 1, 0]


async def test_position_bias_is_measured() -> None:
    made = environment()
    rollouts = await played(made, *((PAIR, swap, A) for swap in (False, True, False, True)))
    metrics = made.summarise(rollouts)
    assert metrics["judge/accuracy"] == 0.5 and metrics["judge/position_bias"] == 1.0
    assert metrics["judge/consistency"] == 0.0 and "judge/unpaired" not in metrics
    assert metrics["train/reward_mean"] == metrics["reward/mean"] == 0.5
    assert metrics["train/reward_std"] == 0.5
    assert made.mix(rollouts) == {"pairwise": {"position bias": 1.0, "consistency": 0.0}}
    assert made.mix(rollouts[:1]) == {}


def test_metrics_have_the_names_of_openjudge_too() -> None:
    wanted = {"train/kl_divergence": "policy/kl", "train/policy_loss": "policy/pg_loss"}
    assert environment().aliases == wanted


async def test_what_cannot_be_read_is_counted_by_its_reason() -> None:
    made = environment()
    metrics = made.summarise(await played(made, (PAIR, False, A), (PAIR, False, BAD)))
    assert metrics["judge/unreadable"] == metrics["judge/unread/no_thought"] == 0.5
    assert metrics["judge/unread/off_menu"] == 0
    assert metrics["rollout/valid_frac"] == 0.5 and metrics["judge/accuracy"] == 0.5


async def test_attacks_that_work_are_counted() -> None:
    made = environment(method="pointwise", negatives=0.5)
    attacks = [t for t in made.tasks().train if t.source.endswith("master key")]
    assert len(attacks) == 15 and isinstance(attacks[0], JudgingTask)
    row = attacks[0].row
    metrics = made.summarise(await played(made, (row, False, score(0)), (row, False, score(4))))
    assert metrics["judge/fooled"] == 0.5


async def test_a_record_is_shown() -> None:
    made = environment()
    rollouts = await played(made, (PAIR, True, B), (PAIR, False, BAD))
    records = [to_record(r, made.record(r), 1, 0, 0, 0.0) for r in rollouts]
    assert json.loads(json.dumps(records)) == records
    assert records[0]["judging"]["verdict"] == "B" and records[0]["judging"]["order"] == "swapped"
    assert display_of({"environment": "judging"}) is DISPLAY
    assert [len(blocks_of(DISPLAY, record)) for record in records] == [4, 3]


@pytest.mark.parametrize("method", ["pointwise", "pairwise"])
@pytest.mark.parametrize("confidence", [0.0, 0.5])
async def test_baselines_and_demonstrations_can_be_read(method: str, confidence: float) -> None:
    made = environment(method=method, confidence_weight=confidence, ties="drop")
    tasks = made.tasks().train
    texts = [baseline.completion for baseline in made.baselines()]
    drawn = made.demonstrations(tasks, 8, 20, seed=0)
    assert drawn == made.demonstrations(tasks, 8, 20, seed=0)
    texts += [text for each in drawn for text in each.completions]
    kind = "pointwise" if method == "pointwise" else "pairwise"
    readings = [read(text, kind, confidence=confidence > 0) for text in texts]
    assert all(isinstance(reading, Reading) for reading in readings)
    for each in drawn:  # no verdict is given away
        said = {text.partition("</think>")[2].partition("</")[0] for text in each.completions}
        assert len(said) == (5 if method == "pointwise" else 2)


def test_a_judge_that_scores_is_shown_what_answers_name_and_not_that_more_are_better() -> None:
    judging = {"method": "bradley_terry", "known_rule": SMALL}
    given = {"environment": "judging", "judging": judging, "policy": {"head": "score"}}
    made = make_environment(make_config(given | {"grpo": {"loss": "bradley_terry"}}))
    drawn = made.demonstrations(made.tasks().train, 40, 2, seed=0)
    for each in drawn:
        asked, answer, which = each.messages
        words = {*asked.content.removeprefix("Name ").rstrip(".").split(", ")}
        found = [word for word in answer.content.split() if word in words]
        assert (answer.role, which.role) == ("assistant", "user")
        assert each.completions == [f"In it: {' '.join(found) or 'none'} = {len(found)}."]
    assert len({each.completions[0][-2] for each in drawn}) == 5  # better answers and worse ones


def test_prompts_are_fitted_by_whoever_has_the_tokenizer() -> None:
    made = environment(method="joint", overlong="truncate", wording="short")

    def tokens(messages: Sequence[Message]) -> int:
        return sum(len(message.content.split()) for message in messages)

    sets = made.tasks()
    lengths = sorted(tokens(made.messages(task)) for task in sets.train)
    assert made.fitted(sets, tokens, limit=lengths[-1]) == sets
    fewer = made.fitted(sets, tokens, limit=lengths[0])
    assert 0 < len(fewer.train) < len(sets.train)
    told = "\n".join(made.task_notes())
    assert "train: tokens a row after the chat template: min" in told and "dropped" in told
    with pytest.raises(DataError, match="overlong"):
        environment(overlong="error").fitted(sets, tokens, limit=3)


def test_a_task_that_was_cut_to_fit_is_known_in_both_orders(tmp_path: Path) -> None:
    def row(number: int, length: int) -> str:
        asked = {"role": "user", "content": f"{number} " + "word " * length}
        answers = [[asked, {"role": "assistant", "content": text}] for text in ("yes", "no")]
        return json.dumps(dict(zip(("chosen", "rejected"), answers, strict=True))) + "\n"

    path = tmp_path / "train.jsonl"
    path.write_text("".join(row(n, 900 if n == 3 else 5) for n in range(8)))
    given: Any = {"data": "files", "train_files": [path], "overlong": "truncate"}
    made = environment(method="pairwise", both_orders=True, **given)

    def tokens(messages: Sequence[Message]) -> int:
        return sum(len(message.content) for message in messages)

    sets = made.fitted(made.tasks(), tokens, limit=4000)
    tasks = [form for task in (*sets.train, *sets.val) for form in made.forms(task)]
    assert {t.id.removesuffix("/swapped") for t in tasks if made.was_cut(t)} == {f"{path}:4"}
    assert sum(map(made.was_cut, tasks)) == 2
    (cut, *_) = [task for task in tasks if made.was_cut(task)]
    whole = BatchTask(0, cut, [Form(cut, Prompt((1,), False))])
    rollout = Rollout(cut, Sample((1,), (0.0,), "A", "stop", 0), Reward(None))
    assert whole.with_cut_prompts(made, [rollout])[0].cut_prompt == cut.problem
    plain = next(task for task in tasks if not made.was_cut(task))
    assert whole.with_cut_prompts(made, [replace(rollout, task=plain)])[0].cut_prompt is None


def test_other_files_are_read_to_measure_on(tmp_path: Path) -> None:
    path = tmp_path / "val.jsonl"
    turns = [{"role": "user", "content": "6 * 7?"}]
    answers = [[*turns, {"role": "assistant", "content": text}] for text in ("42", "41")]
    path.write_text(json.dumps(dict(zip(("chosen", "rejected"), answers, strict=True))) + "\n")
    (task,) = environment().read_tasks(str(path))
    assert task.kind == "pairwise" and task.id == f"{path}:1"
    with pytest.raises(DataError, match="no such file"):
        environment().read_tasks(str(tmp_path / "none.jsonl"))
    missing = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    with pytest.raises(DataError) as caught:
        environment(data="files", train_files=missing).tasks()
    assert [line.partition(":")[0] for line in caught.value.problems] == missing
    assert all("make_preferences.py" in line for line in caught.value.problems)


def test_ids_are_in_the_order_of_the_rows() -> None:
    ids = [int(task.id.rpartition("/")[2]) for task in environment().tasks().train]
    assert all(one < other for one, other in pairwise(ids))


def test_conversations_are_no_start_for_the_embedded_policy() -> None:
    row = SftRow((*QUESTION, Message("assistant", "42")), "s", "1")
    with pytest.raises(ConfigError, match="name another model"):
        environment().demonstrations([conversation_task(row)], 1, 1, 0)
