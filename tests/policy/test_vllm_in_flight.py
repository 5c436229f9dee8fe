"""Completions that go on with weights published meanwhile: each token is one version's alone."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError
from served_run import served, train
from tiny_policy import weights
from toy_run import Killed, Toy, configured as toy_configured
from vllm_bench import PLAIN, PROMPTS, Bench, expected, prompt_of
from vllm_double import VllmDouble, error

from flowright.config.grpo import PipelineSection
from flowright.config.policy import PolicySection
from flowright.config.root import Config
from flowright.core.errors import RunPaused
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.grpo.pipeline import SEED_STRIDE
from flowright.policy.sampling import Sample, Sampling
from flowright.policy.vllm.sampler import _seed
from flowright.runs.run_files import read_metrics, read_rollouts

PART = 4
IN_PARTS = Sampling(1.0, 1.0, 12, 7, part_tokens=5)


async def published_at_five(it: Bench) -> tuple[list[Sample], list[Any]]:
    """Samples whose first part version 1 draws and whose others version 2, and the weights of
    both."""
    it.policy.causal_lm.generation_config.eos_token_id = [2, *range(80, 100)]
    await it.train(1)
    states = [weights(it.policy)]
    released = asyncio.Event()

    def is_first_part(path: str, body: dict[str, Any]) -> bool:
        return path == "completions" and body["max_tokens"] == 5 and "step_000001" in body["model"]

    it.server.held = lambda path, body: is_first_part(path, body) and not released.is_set()
    drawing = asyncio.create_task(it.draw(8, IN_PARTS))
    while sum(is_first_part(*request) for request in it.server.requests) < 16:
        await asyncio.sleep(0.002)
    await it.train(2)
    released.set()
    return await drawing, [*states, weights(it.policy)]


async def test_each_token_has_its_version_and_that_versions_log_probability(bench: Any) -> None:
    it = await bench()
    samples, states = await published_at_five(it)
    for index, sample in enumerate(samples):
        count = len(sample.token_ids)
        assert sample.version == 1
        assert sample.versions == (((1, 5), (2, count - 5)) if count > 5 else ())
        assert sample.tokens_by_version == (sample.versions or ((1, count),))
        ends = [token in it.policy.end_ids for token in sample.token_ids]
        assert not any(ends[:-1]) and ends[-1] == (sample.finish_reason == "stop")
        assert ends[-1] or count == 12
        assert sample.text == it.policy.text_of(sample.token_ids)
        first, rest = slice(0, 5), slice(5, None)
        for state, mine, other in zip(states, (first, rest), (rest, first), strict=True):
            it.policy.load(state)
            exact = expected(it.policy, prompt_of(index, 8), sample)
            assert sample.logprobs[mine] == pytest.approx(exact[mine], abs=1e-4)
            if sample.versions:
                assert sample.logprobs[other] != pytest.approx(exact[other], abs=1e-2)
    assert {s.finish_reason for s in samples if s.versions} == {"stop", "length"}


async def test_a_part_is_asked_for_behind_those_before_it_with_a_seed_of_its_own(
    bench: Any,
) -> None:
    it = await bench()
    samples, _ = await published_at_five(it)
    whole = [[*prompt_of(n, 8), *sample.token_ids] for n, sample in enumerate(samples)]
    bodies = it.server.draws
    assert len({body["seed"] for body in bodies}) == len(bodies) > 16 + 8
    for body in bodies:
        prompt = next(p for p in PROMPTS if body["prompt"][: len(p)] == p)
        begun = len(body["prompt"]) - len(prompt)
        assert body["max_tokens"] == {0: 5, 5: 5, 10: 2}[begun]
        assert f"step_00000{1 if begun == 0 else 2}" in body["model"]
        assert any(ids[: len(body["prompt"])] == body["prompt"] for ids in whole)


async def test_the_same_cuts_give_the_same_draws(bench: Any) -> None:
    (first, _), (again, _) = [await published_at_five(await bench()) for _ in range(2)]
    assert first == again


async def test_without_a_new_version_a_completion_is_one_versions(bench: Any) -> None:
    it = await bench()
    await it.train(1)
    for index, sample in enumerate(await it.draw(sampling=IN_PARTS)):
        assert sample.versions == () and sample.version == 1
        assert sample.logprobs == pytest.approx(
            expected(it.policy, prompt_of(index), sample), abs=1e-4
        )


async def test_the_untrained_policy_draws_no_part_with_an_adapter(bench: Any) -> None:
    it = await bench()
    await it.train(1)
    base = it.sampler.untrained()
    assert await base.sample(PROMPTS, 2, PLAIN) == await base.sample(
        PROMPTS, 2, Sampling(1.0, 1.0, PLAIN.max_new_tokens, PLAIN.seed, part_tokens=2)
    )


async def test_the_old_version_is_drawn_from_while_the_new_one_is_proven(bench: Any) -> None:
    it = await bench()
    await it.train(1)
    before = await it.draw()
    released = asyncio.Event()

    def is_proof(path: str, body: dict[str, Any]) -> bool:
        return path == "completions" and "step_000002" in body["model"]

    it.server.held = lambda path, body: is_proof(path, body) and not released.is_set()
    training = asyncio.create_task(it.train(2))
    while not any(is_proof(*request) for request in it.server.requests):
        await asyncio.sleep(0.002)
    assert await it.draw() == before
    assert not training.done()
    released.set()
    await training
    assert {sample.version for sample in await it.draw()} == {2}


async def test_a_part_that_fails_is_repeated_and_never_counts_as_an_end(bench: Any) -> None:
    it = await bench()
    await it.train(1)
    good = await it.draw(sampling=IN_PARTS)
    left = [2]

    def fail(path: str, body: dict[str, Any]) -> web.Response | None:
        if path == "completions" and body["max_tokens"] == 2 and left[0]:
            left[0] -= 1
            return error(500, "the engine stumbled")
        return None

    it.server.fail = fail
    assert await it.draw(sampling=IN_PARTS) == good
    assert left == [0]
    left[0] = 10**6
    with pytest.raises(RunPaused):
        await it.draw(sampling=IN_PARTS)


def in_flight(url: str, path: Path, **run: Any) -> Config:
    config = served(url, path, **run)
    pipeline = PipelineSection(max_staleness=1, in_flight_tokens=PART)
    return config.model_copy(update={"pipeline": pipeline})


def one_update_late(
    run: Path, numbers: Sequence[int] = (2, 3)
) -> Callable[[str, dict[str, Any]], bool]:
    """Hold the first parts of batch 2 until step 1 is recorded, and of batch 3 until step 2 is:
    each is one version's, and the rest the next one's."""
    batches = {
        _seed(SEED_STRIDE + batch, 0, attempt): batch for batch in numbers for attempt in range(4)
    }

    def held(path: str, body: dict[str, Any]) -> bool:
        batch = batches.get(body.get("seed", 0))
        return batch is not None and read_metrics(run)[-1]["step"] < batch - 1

    return held


def versions(run: Path, step: int) -> list[list[list[int]]]:
    rows = read_rollouts(run, step)
    return [row.get("policy_versions", [[row["policy_version"], row["tokens"]]]) for row in rows]


async def test_batches_are_sampled_during_updates_and_record_their_versions(
    tmp_path: Path,
) -> None:
    run, varied = tmp_path / "run", Toy(reward=lambda e: sum(e.sample.token_ids) % 10 / 10)
    async with VllmDouble() as server:
        server.held = one_update_late(run)
        config = in_flight(server.url, tmp_path, keep_logprobs=True)
        assert await train(config, environment=varied) == 3
    metrics, old, new = read_metrics(run), list[float](), list[float]()
    for step in (1, 2, 3):
        first = max(0, step - 2)
        for row, drawn in zip(read_rollouts(run, step), versions(run, step), strict=True):
            parts = [[first, PART], [step - 1, row["tokens"] - PART]]
            is_whole = step == 1 or row["tokens"] <= PART
            assert drawn == ([[first, row["tokens"]]] if is_whole else parts)
            kept = row["token_logprobs"]
            gaps = [abs(a - b) for a, b in zip(kept["sampler"], kept["learner"], strict=True)]
            (new if step == 1 else old).extend(gaps[:PART])
            new += gaps[PART:]
        drawn = [part for parts in versions(run, step) for part in parts]
        lag = sum((step - 1 - version) * count for version, count in drawn)
        mean = lag / sum(count for _, count in drawn)
        assert metrics[step]["tokens/version_lag"] == pytest.approx(mean)
    # A token's ratio is to the version that drew it: for the newest, the learner before the update.
    assert max(new) < 3e-4 < 0.01 < max(old)
    assert 0 < metrics[2]["tokens/version_lag"] < 1 == metrics[2]["pipeline/staleness"]
    assert not (run / "adapters").exists()


@dataclass
class Cut(Toy):
    """Killed at the rollouts of a step."""

    at: int = 0

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        if groups[0][0].key.startswith(f"1/{self.at}/"):
            raise Killed
        return await super().rollout(groups)


async def test_a_checkpoint_waits_for_what_is_in_flight_and_a_resumed_run_trains_on_it(
    tmp_path: Path,
) -> None:
    for name, at in (("whole", 0), ("killed", 3)):
        async with VllmDouble() as server:
            server.held = one_update_late(tmp_path / name / "run")
            config = in_flight(server.url, tmp_path / name)
            if at:
                with pytest.raises(Killed):
                    await train(config, environment=Cut(at=at))
                sent = len(server.draws)
                assert await train(config, resume=True) == 3
                assert len(server.draws) == sent, "the last batch was whole in the checkpoint"
            else:
                assert await train(config) == 3
    for step in (1, 2, 3):
        rows = [list(read_rollouts(tmp_path / name / "run", step)) for name in ("whole", "killed")]
        assert rows[0] == rows[1]
    assert any(len(parts) == 2 for parts in versions(tmp_path / "killed/run", 3))


async def test_servers_that_are_lost_in_flight_cost_no_step_and_score_nothing(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"

    def lost(path: str, body: dict[str, Any]) -> web.Response | None:
        is_draw = path == "completions" and body.get("seed")
        goes_on = is_draw and body["max_tokens"] != PART and "step_000001" in body["model"]
        return error(503, "the engine is dead") if goes_on else None

    async with VllmDouble(fail=lost) as server:
        server.held = one_update_late(run, [2])
        with pytest.raises(RunPaused, match="no server could be used"):
            await train(in_flight(server.url, tmp_path))
    assert [row["step"] for row in read_metrics(run)] == [0, 1]
    assert not list((run / "rollouts").glob("*000002*"))
    async with VllmDouble() as server:
        assert await train(in_flight(server.url, tmp_path), resume=True) == 3
    assert [row["rollout/unscored"] for row in read_metrics(run)[1:]] == [0.0] * 3


def test_in_flight_is_refused_where_it_cannot_be() -> None:
    refused: list[dict[str, Any]] = [{"order": "ready"}, {"max_staleness": 0}]
    for other in refused:
        with pytest.raises(ValidationError, match="needs order: batch and a max_staleness of 1"):
            PipelineSection(in_flight_tokens=4, **other)
    section = PipelineSection(in_flight_tokens=4)
    assert section.on("cpu").max_staleness == 1
    for policy in (PolicySection(), PolicySection(sampler="vllm", train="full")):
        with pytest.raises(ValidationError, match="needs servers with both adapters"):
            type(toy_configured())(policy=policy, pipeline=section)
