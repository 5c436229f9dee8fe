"""Attempts of several turns that a server samples: contexts, adapters, and who waits for whom."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from served_run import served, train
from talk_environment import Talk
from toy_run import TASKS
from vllm_double import BASE, VllmDouble, configured

from flowright.config.root import Config
from flowright.environments.base import prompt_encoder
from flowright.environments.episode import Episode, Observation
from flowright.environments.registry import make_config
from flowright.grpo.episodes import Player
from flowright.grpo.problems import problems_of
from flowright.policy.sampling import Sampling
from flowright.policy.turns import Contexts
from flowright.runs.run_files import read_metrics


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_all_turns_of_a_batch_are_sampled_from_its_adapter(
    tmp_path: Path, max_staleness: int
) -> None:
    """What the server was asked for and has answered is what the learner trains on, id for id."""
    answered: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()

    def keep(reply: dict[str, Any], body: dict[str, Any]) -> None:
        if is_draw(body):
            ids = reply["choices"][0]["token_ids"]
            answered.add((body["model"].split("-")[1], tuple(body["prompt"]), tuple(ids)))

    async with VllmDouble(edit=keep) as server:
        config = served(server.url, tmp_path)
        pipeline = config.pipeline.model_copy(update={"max_staleness": max_staleness})
        grpo = config.grpo.model_copy(update={"group_size": 4})
        config = config.model_copy(update={"pipeline": pipeline, "grpo": grpo})
        environment = Talk(config)
        assert await train(config, environment=environment) == 3
    attempts = [episode for episode in environment.seen if "evaluation" not in episode.key]
    assert len(attempts) == 3 * 4
    for episode in attempts:
        version = max(0, int(episode.key.split("/")[1]) - 1 - max_staleness)
        assert episode.chains() == [[0, 1, 2]]
        context = episode.turns[0].context_ids
        for turn in episode.turns:
            sample = turn.sample
            assert turn.context_ids == context and sample.version == version
            assert (f"step_{version:06d}", context, sample.token_ids) in answered
            context = (*context, *sample.token_ids, *turn.answer_ids)
    for row in read_metrics(tmp_path / "run")[1:]:
        assert row["tokens/trained_as_sampled"] == 1.0 and row["turns/mean"] == 3.0
        gaps = [row[f"policy/logprob_gap/turn_{turn}"] for turn in (1, 2, 3)]
        assert max(gaps) < 1e-4 or max_staleness


class Slow(Talk):
    """Has ``others_ended`` set once all attempts but one have; ``waits``: the first attempt gets no
    answer before."""

    def __init__(self, config: Config, others_ended: asyncio.Event, waits: bool) -> None:
        super().__init__(config)
        self.left, self.others_ended, self.waits = 5, others_ended, waits

    async def respond(self, episode: Episode) -> Observation | None:
        if self.waits and episode.key == "a/0":
            await self.others_ended.wait()
        observation = await super().respond(episode)
        self.left -= observation is None
        if not self.left:
            self.others_ended.set()
        return observation


def is_draw(body: dict[str, Any]) -> bool:
    return "logprobs" in body and bool(body["seed"])


@dataclass
class Holding(VllmDouble):
    """Answers the first request for a sample once ``others_ended`` is set, and none before four
    have been there at once: more than a group's."""

    others_ended: asyncio.Event = field(default_factory=asyncio.Event)
    holds: bool = False

    def __post_init__(self) -> None:
        self.held = lambda path, body: is_draw(body) and self.most_at_once <= 3

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        if self.holds and is_draw(body):
            self.holds = False
            await self.others_ended.wait()
        return await super()._answer(request)


@pytest.mark.parametrize("slow", ["request", "answer"])
async def test_a_slow_request_or_answer_holds_no_other_attempt(bench: Any, slow: str) -> None:
    server = Holding()
    it = await bench(server)
    await it.sampler.refresh(0)
    server.holds = slow == "request"
    config = make_config(policy=configured(server, model_name=BASE))
    environment = Slow(config, server.others_ended, slow == "answer")
    tokenizer = it.policy.tokenizer
    encode = prompt_encoder(environment, tokenizer, config.policy.max_prompt_tokens)
    problems = problems_of(environment, encode, list(enumerate(TASKS[:2])))
    player = Player(environment, it.sampler, Contexts(tokenizer, it.policy.end_ids))
    async with asyncio.timeout(60):
        groups = await player.play(problems, [3, 3], Sampling(1.0, 1.0, 6, 7), ["a", "b"])
    turns = [len(episode.turns) for group in groups for episode in group]
    assert turns == [3] * 6 and not server.holds and server.most_at_once > 3
