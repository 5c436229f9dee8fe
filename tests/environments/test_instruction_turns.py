"""Answers in turns: what is not met stands before the next answer, and the last one counts."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from criteria_doubles import CriteriaModel
from lost_sandbox import LostSandbox
from tiny_policy import same
from toy_run import Killed, Outcome, Wrapped, configured, train

from flowright.config.root import Config
from flowright.core.errors import FailureError, Reason
from flowright.criteria.constraints.checkers import InstructedPrompt
from flowright.criteria.constraints.drawable import sentence_of
from flowright.criteria.constraints.drawing import DRAWABLE, Drawing, draw
from flowright.criteria.rubrics.rows import Constraint, Item, MathAnswer, RubricRow, VerifRow
from flowright.environments.episode import Episode, Observation, Turn
from flowright.environments.instructions.environment import InstructionsEnvironment
from flowright.environments.instructions.grader import OpenGrader, grader_of, judge_of
from flowright.environments.instructions.reward import ConstraintGrader, Grader, InstructionGrade
from flowright.environments.instructions.tasks import InstructionTask, Row, task_of
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout
from flowright.grpo.episodes import rolled_out
from flowright.llm.chat import Message
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_rollouts

SMALL = {"train": 30, "held_out": 10}
ASKED = (Message("user", "Which?"),)
NO_SANDBOX = LostSandbox(workers=1)  # never entered


def config_of(**instructions: object) -> Config:
    keys = {"known_rule": SMALL, "reward": "constraints", "turns": 2, **instructions}
    return make_config({"environment": "instructions", "instructions": keys})


@dataclass
class Counting:
    """Grades with another grader, and keeps the answers."""

    inner: Grader
    graded: list[str] = field(default_factory=list)

    async def grade(self, task: InstructionTask, completion: Episode) -> InstructionGrade:
        self.graded.append(completion.sample.text)
        return await self.inner.grade(task, completion)


class Graded(InstructionsEnvironment):
    """Opens no more than a grader."""

    def __init__(self, config: Config, grader: Grader) -> None:
        super().__init__(config)
        self._open = OpenGrader(grader)

    def open(self, tasks: Sequence[Any]) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def nothing():
            yield

        return nothing()


def by_checkers(**keys: object) -> tuple[Graded, Counting]:
    config = config_of(**keys)
    grader = Counting(ConstraintGrader(config.instructions))
    return Graded(config, grader), grader


def by_judge(model: CriteriaModel, **keys: object) -> Graded:
    config = config_of(**{"reward": "rubric", **keys})
    config = config.model_copy(
        update={"judge": config.judge.model_copy(update={"max_attempts": 2})}
    )
    return Graded(config, grader_of(config, judge_of(config, model), NO_SANDBOX))


PLAIN = InstructedPrompt(
    "1",
    "Write.",
    ("punctuation:no_comma", "keywords:existence"),
    ({}, {"keywords": ["lemon", "drum"]}),
)


async def played(made: Graded, row: Row, *answers: str) -> Episode:
    """The episode of these answers, as far as it goes."""
    episode = Episode(task_of(row, "f", "f:1"), "/".join(answers), ())
    for number, text in enumerate(answers):
        turn = Turn((), Sample((1,) * len(text), (0.0,) * len(text), text, "stop", 0))
        episode = replace(episode, turns=(*episode.turns, turn))
        observed = await made.respond(episode)
        if observed is None:
            return episode
        turn = replace(turn, observation=observed)
        stop = "max_turns" if number + 1 == made.max_turns else "done"
        episode = replace(episode, turns=(*episode.turns[:-1], turn), stop=stop)
    return episode


def seen(episode: Episode, turn: int = 0) -> str:
    observed = episode.turns[turn].observation
    assert isinstance(observed, Observation)
    return observed.text


async def rollouts_of(made: Graded, *episodes: Episode) -> list[Rollout]:
    (rollouts,) = await rolled_out(made, [episodes])
    return rollouts


async def test_what_is_not_met_is_shown_and_the_last_answer_counts() -> None:
    made, _ = by_checkers()
    mended = await played(made, PLAIN, "lemon, pie", "lemon drum")
    assert seen(mended) == (
        "Your answer does not meet this:\n- Do not use any commas.\n"
        '- Use these words: "lemon", "drum".\nWrite the whole answer again.'
    )
    worse = await played(made, PLAIN, "lemon pie", "lemon, pie")
    at_once = await played(made, PLAIN, "drum lemon")
    assert (len(worse.turns), len(at_once.turns), at_once.stop) == (2, 1, "done")
    rollouts = await rollouts_of(made, mended, worse, at_once)
    assert [rollout.reward.value for rollout in rollouts] == [1, 0, 1]
    metrics = made.summarise(rollouts)
    known = {
        "gold/accuracy/instructions": 2 / 3,
        "instructions/all_met": 2 / 3,
        "instructions/first_turn_all_met": 1 / 3,
        "instructions/first_turn_met": (0 + 1 + 2) / 6,
        "instructions/met": (2 + 0 + 2) / 6,
        "instructions/second_turn": 2 / 3,
        "instructions/first_turn_tokens": (10 + 9 + 10) / 3,
    }
    assert {name: metrics[name] for name in known} == pytest.approx(known)
    record = json.loads(json.dumps(made.record(rollouts[0])))
    assert record["instructions"]["first_turn"] == {"met": [False, False], "all": False}
    assert made.mix(rollouts)["instructions"]["all met at first"] == pytest.approx(1 / 3)


async def test_an_answer_is_graded_once_and_again_only_after_a_restart() -> None:
    made, grader = by_checkers()
    episode = await played(made, PLAIN, "lemon, pie", "lemon drum")
    assert [r.reward.value for r in await rollouts_of(made, episode)] == [1]
    assert grader.graded == ["lemon, pie", "lemon drum"]
    kept = Episode.restore(episode.task, episode.key, json.loads(json.dumps(episode.state())))
    again, fresh = by_checkers()
    (rollout,) = await rollouts_of(again, kept)
    assert again.summarise([rollout]) == made.summarise(await rollouts_of(made, episode))
    assert fresh.graded == ["lemon drum"]


async def test_feedback_may_be_a_number_and_an_empty_answer_has_one() -> None:
    made, _ = by_checkers(feedback="count")
    counted = await played(made, PLAIN, "lemon pie", "")
    again = "\nWrite the whole answer again."
    assert seen(counted) == f"Your answer does not meet 1 of 2 criteria.{again}"
    assert seen(counted, 1) == f"Your answer does not meet 2 of 2 criteria.{again}"
    judged = by_judge(CriteriaModel())
    empty = await played(judged, RubricRow(ASKED, (Item("It says `fig`.", 1),), "f", "", "f:1"), "")
    assert seen(empty) == f"Your answer is empty or cannot be read.{again}"


ROW = RubricRow(
    ASKED,
    (
        Item("It says `fig`.", 3),
        Item("It says `plum`.", -1),
        Item("It comes to the right number.", 2, MathAnswer("4711")),
    ),
    "f",
    "",
    "f:1",
)


async def test_unmet_criteria_of_a_rubric_are_shown_without_the_answers_of_rules() -> None:
    made = by_judge(CriteriaModel())
    episode = await played(made, ROW, "plum \\boxed{5}", "fig \\boxed{4711}")
    assert seen(episode).splitlines()[1:-1] == [
        "- It says `fig`.", "- Avoid: It says `plum`.", "- It comes to the right number.",
    ]  # fmt: skip
    assert "4711" not in seen(episode)
    (rollout,) = await rollouts_of(made, episode)
    assert rollout.reward.value == 1 and len(episode.turns) == 2


async def test_soft_constraints_have_one_verdict() -> None:
    soft = tuple(Constraint(f"Say `{word}`.", "soft") for word in ("fig", "plum"))
    made = by_judge(CriteriaModel(), reward="verif")
    episode = await played(made, VerifRow(ASKED, soft, "f", "", "f:1"), "fig")
    assert "- At least one of these: Say `fig`. Say `plum`.\n" in seen(episode)


async def test_a_lost_judge_leaves_the_attempt_unscored() -> None:
    made = by_judge(CriteriaModel(lost=1.0))
    with pytest.raises(FailureError, match="could not be graded") as caught:
        await played(made, ROW, "fig")
    assert caught.value.failure.reason is Reason.JUDGE_FAILED


def test_every_instruction_is_a_sentence_of_its_arguments() -> None:
    for row in draw(Drawing(tuple(DRAWABLE), fewest=1), {"train": 300}).rows["train"]:
        for name, values in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            sentence = sentence_of(name, {**values, "absent": None})
            assert sentence == DRAWABLE[name].sentence(values) and "None" not in sentence
    assert sentence_of("count:numbers", {"N": 3.0}).startswith("Have exactly 3 numbers")
    assert sentence_of("custom:csv_city", {}) == "The instruction on csv city."
    assert "the language hi" in sentence_of("language:response_language", {"language": "hi"})


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"reward": "rubric", "scaffolding": {"enabled": True}}, "no scaffolding"),
        ({"reward": "judge"}, "needs criteria"),
        ({"turns": 0}, "turns"),
        ({"feedback": "gold"}, "feedback"),
    ],
)
def test_turns_need_criteria_behind_the_answer(keys: Mapping[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config_of(**keys)


LENGTH = {"relation": "at least", "num_words": 2}
ROWS = [
    {
        "key": number,
        "prompt": f"Write {number}.",
        "instruction_id_list": [
            "punctuation:no_comma",
            *["length_constraints:number_words"] * hard,
        ],
        "kwargs": [{}, *[LENGTH] * hard],
    }
    for number, hard in enumerate([True, False] * 4)
]


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_run_of_two_turns_trains_and_resumes(tmp_path: Path, staleness: int) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    section = {
        "reward": "constraints", "constraints_score": "share", "turns": 2, "data": "files",
        "train_files": [str(file)], "held_out": 2, "sealed": [],
    }  # fmt: skip
    base = configured({"steps": 3})
    config = make_config(
        {
            **base.model_dump(exclude_unset=True),
            "environment": "instructions",
            "instructions": section,
            "policy": {"max_new_tokens": 6, "max_prompt_tokens": 60, "max_observation_tokens": 90},
            "pipeline": {"max_staleness": staleness},
        }
    )

    async def trained(run: str, **keys: Any) -> Outcome:
        environment: Any = InstructionsEnvironment(config)
        async with environment.open(()):
            return await train(tmp_path / run, environment, config, **keys)

    def kill(version: int) -> None:
        if version == 2:
            raise Killed

    whole = await trained("whole")
    killed: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    await trained("run", **killed)
    resumed = await trained("run", resume=True)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    rows = [row for row in whole.metrics if "instructions/second_turn" in row]
    assert len(rows) == 3
    for row in rows:
        assert row["tokens/trained_as_sampled"] == 1.0
        assert row["rollout/unscored"] == 0.0
        assert row["instructions/second_turn"] == pytest.approx(row["turns/mean"] - 1)
    assert 0 < sum(row["instructions/second_turn"] for row in rows) < len(rows)
    assert "first_turn" in next(iter(read_rollouts(tmp_path / "whole", 1)))["instructions"]
