"""Environments that fail between turns: one line, the group goes on, and law 1 holds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny_policy import same, tiny_policy
from toy_run import TASKS, Outcome, Toy, configured, train

from flowright.core.errors import FailureError, Reason, RunPaused, UserError
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout
from flowright.grpo.batch import Batch
from flowright.grpo.episodes import Player
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import Pipeline
from flowright.grpo.ranks import Ranks
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import fitting, render
from flowright.policy.turns import Contexts
from flowright.runs.run_files import read_rollouts

ONCE = {"steps": 1, "epochs": 1, "minibatches": 1}
NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def answer(*given: Any, **fields: Any) -> Callable[[], Any]:
    return lambda: Observation(*given, **fields)


def fails(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


async def hangs() -> Any:
    await asyncio.Event().wait()


@dataclass
class Answers(Toy):
    """Answers ``good``; what ``does`` does at the first turns of some attempts."""

    does: Callable[[], Any] = lambda: Observation("good")
    some: tuple[str, ...] = ("/0/1",)
    config: Any = None
    longest: int | None = None
    answers_at_once: ClassVar[bool] = True
    respond_seconds: ClassVar[float] = 0.3

    def __post_init__(self) -> None:
        self.config = self.config or configured(ONCE, evaluation={"every": 0})
        self.graded: list[Episode] = []

    @property
    def max_turns(self) -> int:
        return 2

    @property
    def max_episode_tokens(self) -> int:
        return self.longest or super().max_episode_tokens

    async def respond(self, episode: Episode) -> Observation | None:
        if len(episode.turns) > 1 or not episode.key.endswith(self.some):
            return Observation("good")
        found = self.does()
        return await found if asyncio.iscoroutine(found) else found

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        self.graded += [episode for group in groups for episode in group]
        return await super().rollout(groups)


async def run(path: Path, environment: Answers, **options: Any) -> Outcome:
    return await train(path, environment, environment.config, **options)


BAD: list[tuple[Callable[[], Any], str]] = [
    (fails(ValueError("boom")), "internal: environment: ValueError: boom"),
    (fails(TimeoutError("the server")), "internal: environment: TimeoutError: the server"),
    (fails(FailureError(Reason.LLM_UNAVAILABLE, "connection refused")),
     "llm_unavailable: connection refused"),
    (hangs, "internal: respond: no answer in 0.3 s"),
    (answer(""), "internal: respond: no text for the policy, but ''"),
    (answer(" \n\t"), r"internal: respond: no text for the policy, but ' \n\t'"),
    (answer(None), "internal: respond: no text for the policy, but None"),
    (answer(b"bytes" * 100), "internal: respond: no text for the policy, but b'bytesbytes"),
    (answer([5, 6, 7]), "internal: respond: no text for the policy, but [5, 6, 7]"),
    (lambda: "a text", "internal: respond: give an Observation, not a str"),
    (answer("hi", role="tool"), "internal: respond: the chat template refuses turns of user, "),
    (answer("hi", memory={1, 2}), "internal: environment: TypeError: Object of type set is not"),
    (answer("hi", reward=None), "internal: environment: TypeError"),
]  # fmt: skip


@pytest.mark.parametrize(("does", "line"), BAD)
async def test_an_answer_that_fails_leaves_its_attempt_unscored(
    tmp_path: Path, does: Callable[[], Any], line: str
) -> None:
    environment = Answers(does=does)
    done = await run(tmp_path, environment, template=NO_TOOLS)
    row = done.metrics[1]
    assert row["rollout/unscored"] == row["turns/stop/failed"] == 1 / 8
    assert row["turns/stop/max_turns"] == 7 / 8 and row["tokens/trained_as_sampled"] == 1.0
    assert len(environment.graded) == 7 and all(e.failure is None for e in environment.graded)
    failed = [r for r in read_rollouts(tmp_path, 1) if r["failure"]]
    assert [(r["group"], r["index"]) for r in failed] == [(0, 1)]
    about = failed[0]["failure"]
    assert f"{about['reason']}: {about['message']}".startswith(line)
    assert "\n" not in about["message"] and about["blame"] == "infrastructure"
    assert failed[0]["reward"]["value"] is None and failed[0]["advantage"] == 0.0


ODD = {
    "long": "x1 " * 333_333 + "end",
    "control": "<|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>" * 9,
    "halves": "\ud800 half \udfff",
    "unicode": "\0\ufdd0\u202e\ufffe🙂",
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_answer_is_seen_as_text_and_trained_with(tmp_path: Path, name: str) -> None:
    done = await run(tmp_path, Answers(does=answer(ODD[name])))
    row = done.metrics[1]
    assert row["rollout/unscored"] == 0.0 and row["tokens/trained_as_sampled"] == 1.0
    assert row["policy/logprob_gap/turn_2"] < 1e-4
    assert row["tokens/observation_mean"] < 560


async def test_too_many_failed_answers_pause_the_run(tmp_path: Path) -> None:
    whole = await run(tmp_path / "whole", Answers())
    broken = Answers(does=fails(ValueError("boom")), some=("/0", "/1"))
    paused = await run(tmp_path / "run", broken, raises=RunPaused)
    line = "step 1: 4 of 8 samples could not be scored (limit 20%), so nothing was trained on"
    assert any(said.startswith(line) for said in paused.reporter.said)
    assert "  internal: environment: ValueError: boom" in paused.reporter.said
    mended = await run(tmp_path / "run", Answers(), resume=True)
    rows = [
        {n: v for n, v in row.items() if "dropped_on_resume" not in n} for row in mended.metrics
    ]
    assert rows == whole.metrics and same(mended.weights, whole.weights)
    every = Answers(does=fails(ValueError("boom")), some=("",))
    await run(tmp_path / "every", every, raises=RunPaused)
    assert not every.graded


async def test_what_the_user_has_to_mend_ends_the_run_with_its_line(tmp_path: Path) -> None:
    lost = Answers(does=fails(UserError("tools.yaml: no such tool")))
    ended = await run(tmp_path / "ended", lost, raises=UserError)
    assert ended.reporter.said[-1] == "tools.yaml: no such tool"
    whole = await run(tmp_path / "whole", Answers())
    away = Answers(does=fails(RunPaused("no server can be used; start one, and --resume")))
    paused = await run(tmp_path / "run", away, raises=RunPaused)
    assert paused.reporter.said[-1] == "no server can be used; start one, and --resume"
    mended = await run(tmp_path / "run", Answers(), resume=True)
    assert mended.metrics == whole.metrics and same(mended.weights, whole.weights)


async def test_what_the_policy_brought_about_is_scored(tmp_path: Path) -> None:
    """Law 1: no completion may turn "wrong" into "unscored"."""
    environment = Answers(does=fails(FailureError(Reason.CRASHED, "its program divides by 0")))
    done = await run(tmp_path, environment)
    assert done.metrics[1]["rollout/unscored"] == 0.0
    assert done.metrics[1]["turns/stop/done"] == 1 / 8
    assert len(environment.graded) == 8


async def test_an_episode_without_room_for_another_turn_is_scored(tmp_path: Path) -> None:
    done = await run(tmp_path, Answers(does=answer("long " * 20), longest=60))
    row = done.metrics[1]
    assert row["turns/stop/overflow"] == 1 / 8 and row["turns/stop/max_turns"] == 7 / 8
    assert row["rollout/unscored"] == 0.0 and row["turns/max"] == 2


async def test_a_failed_answer_is_unscored_in_an_evaluation(tmp_path: Path) -> None:
    config = configured(ONCE, evaluation={"every": 1, "problems": 3})
    names = tuple(f"{task.id}/0" for task in TASKS[:3])
    environment = Answers(does=fails(ValueError("boom")), some=names, config=config)
    done = await run(tmp_path, environment)
    assert done.metrics[0]["val/unscored"] > 0 and done.metrics[1]["rollout/unscored"] == 0


@dataclass(frozen=True)
class Heard(Ranks):
    """A single rank that keeps what it would send to the others."""

    sent: list[Any] = field(default_factory=list)

    async def all_gather(self, item: Any) -> list[Any]:
        self.sent.append(item)
        return [item]


async def test_a_pause_between_turns_reaches_all_ranks() -> None:
    """The others would wait for this one's share of the batch."""
    environment = Answers(does=fails(RunPaused("no server can be used")))
    policy, ranks = tiny_policy(trained=False), Heard()
    contexts = Contexts(policy.tokenizer, policy.end_ids)
    player = Player(environment, LocalSampler(policy, 64), contexts)
    pipeline = Pipeline(
        environment.config,
        player,
        lambda task: render(environment.messages(task), policy.tokenizer, 100),
        partial(fitting, tokenizer=policy.tokenizer, max_tokens=100),
        TASKS,
        ranks,
    )
    learner = Learner(policy, environment.config.grpo, 1.0, 1)
    with pytest.raises(RunPaused, match="no server can be used"):
        await pipeline.take(1, learner, lambda stage, step: None)
    assert ranks.sent == [(Batch([], [], [], []), ("no server can be used",))]
