"""A training run that samples from a server: every step from the adapter just trained."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from loop_ranks import loop_ranks
from served_run import served, train
from tiny_policy import shake, tiny_policy, weights
from toy_run import configured
from vllm_bench import PLAIN, PROMPTS
from vllm_double import VllmDouble, error

from flowright.app.open_policies import check_samplers, open_samplers
from flowright.config.root import Config
from flowright.core.errors import RunError, RunPaused, UserError
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy
from flowright.policy.vllm.sampler import VllmSampler
from flowright.runs.run_files import read_metrics, read_rollouts


async def test_every_step_is_sampled_from_the_adapter_just_trained(tmp_path: Path) -> None:
    async with VllmDouble() as server:
        assert await train(served(server.url, tmp_path)) == 3
        assert server.adapters == {}  # taken away at the end
    assert not (tmp_path / "run" / "adapters").exists()
    loads = [body["lora_name"] for path, body in server.requests if path == "load_lora_adapter"]
    assert loads.pop(0).startswith("flowright-trial-")
    assert [name.split("_")[1][:6] for name in loads] == ["000000", "000001", "000002", "000003"]
    for step in range(1, 4):
        rows = list(read_rollouts(tmp_path / "run", step))
        assert {row["policy_version"] for row in rows} == {step - 1}
    for row in read_metrics(tmp_path / "run")[1:]:
        # The server's log-probabilities are the learner's own.
        assert abs(row.get("policy/sampler_logp_diff", 0.0)) < 1e-4
        assert row["policy/proof_decided"] == 1.0
        assert row["policy/proof_share"] == pytest.approx(1.0, abs=0.01)


async def test_a_resumed_run_publishes_its_adapter_first(tmp_path: Path) -> None:
    async with VllmDouble() as server:
        await train(served(server.url, tmp_path))
        server.requests.clear()
        config = served(server.url, tmp_path)
        grpo = config.grpo.model_copy(update={"steps": 4})
        assert await train(config.model_copy(update={"grpo": grpo}), resume=True) == 4
    trial, first, *_ = (body for path, body in server.requests if path == "load_lora_adapter")
    assert trial["lora_name"].startswith("flowright-trial-")
    assert first["lora_name"].startswith("flowright-step_000003-")
    assert {row["policy_version"] for row in read_rollouts(tmp_path / "run", 4)} == {3}


async def test_a_server_that_is_lost_while_sampling_pauses_the_run_where_it_was(
    tmp_path: Path,
) -> None:
    def lost(path: str, body: dict[str, Any]) -> web.Response | None:
        is_draw = path == "completions" and body.get("seed") and "step_000001" in body["model"]
        return error(503, "the engine is dead") if is_draw else None

    async with VllmDouble(fail=lost) as server:
        with pytest.raises(RunPaused, match="no server could be used"):
            await train(served(server.url, tmp_path))
    assert (tmp_path / "run/checkpoints/step_000001").is_dir()  # though one is due every second
    async with VllmDouble() as server:
        assert await train(served(server.url, tmp_path), resume=True) == 3


async def test_a_server_that_ignores_adapters_ends_the_run_at_the_first_one_and_loses_no_step(
    tmp_path: Path,
) -> None:
    async with VllmDouble(ignores=lambda name: "trial" not in name) as server:
        with pytest.raises(RunError, match="it does not serve version 1") as caught:
            await train(served(server.url, tmp_path))
    assert caught.value.problems[-1] == "step 1 is saved; once that is mended: --resume"
    assert list(read_rollouts(tmp_path / "run", 1))
    assert not list((tmp_path / "run" / "rollouts").glob("*000002*"))
    async with VllmDouble() as server:
        assert await train(served(server.url, tmp_path), resume=True) == 3
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1, 2, 3]


async def test_batches_ahead_are_sampled_from_the_version_of_their_turn(tmp_path: Path) -> None:
    async with VllmDouble() as server:
        config = served(server.url, tmp_path)
        pipeline = config.pipeline.model_copy(update={"max_staleness": 1})
        assert await train(config.model_copy(update={"pipeline": pipeline})) == 3
    for step, version in ((1, 0), (2, 0), (3, 1)):
        rows = read_rollouts(tmp_path / "run", step)
        assert {row["policy_version"] for row in rows} == {version}


def shared_by(config: Config, *servers: VllmDouble) -> Config:
    vllm = config.policy.vllm.model_copy(update={"base_urls": tuple(s.url for s in servers)})
    policy = config.policy.model_copy(update={"vllm": vllm})
    return config.model_copy(update={"policy": policy})


@asynccontextmanager
async def two_ranks(
    config: Config, policies: Sequence[Policy]
) -> AsyncIterator[Sequence[VllmSampler]]:
    async with AsyncExitStack() as stack:
        found = []
        for policy, ranks in zip(policies, loop_ranks(2), strict=True):
            sampler, _ = await stack.enter_async_context(open_samplers(config, policy, ranks=ranks))
            found.append(sampler)
        yield found


async def refreshed(samplers: Sequence[VllmSampler], version: int) -> list[str]:
    """What each rank's refresh raised."""
    work = [sampler.refresh(version) for sampler in samplers]
    return [str(error or "") for error in await asyncio.gather(*work, return_exceptions=True)]


def loaded(server: VllmDouble) -> list[str]:
    bodies = [body for path, body in server.requests if path == "load_lora_adapter"]
    return [re.sub("-[0-9a-f]+$", "", body["lora_name"]) for body in bodies]


def bounds(sampler: VllmSampler) -> set[float]:
    return {server.window.ceiling for server in sampler._fleet._retries.balance.servers}


async def test_ranks_that_share_a_server_publish_once(tmp_path: Path) -> None:
    policy = tiny_policy(trained=False)
    async with VllmDouble() as server:
        config = shared_by(served(server.url, tmp_path), server)
        async with two_ranks(config, (policy, policy)) as samplers:
            for version in range(4):
                shake(policy, seed=version)
                assert await refreshed(samplers, version) == ["", ""]
                assert len(server.adapters) == min(version + 1, 2)
                assert server.seen["load_lora_adapter"] == version + 2
            scored = server.seen["completions"]
            (one, other) = [await s.sample(PROMPTS, 2, PLAIN) for s in samplers]
            assert one == other and one[0][0].version == 3
            assert server.seen["completions"] == scored + 8, "no rank proves what another has"
            assert [bounds(sampler) for sampler in samplers] == [{128}, {128}]
            paths = {adapter.path for adapter in server.adapters.values()}
            folder = tmp_path / "run/adapters"
            assert {str(path) for path in folder.iterdir()} > paths
        assert not server.adapters and not folder.exists()
    assert loaded(server) == ["flowright-trial", *(f"flowright-step_00000{n}" for n in range(4))]


async def test_an_adapter_stays_while_another_rank_uses_it(tmp_path: Path) -> None:
    policy = tiny_policy(trained=False)
    async with VllmDouble() as server:
        config = shared_by(served(server.url, tmp_path), server)
        async with two_ranks(config, (policy, policy)) as samplers:
            await refreshed(samplers, 0)
            before = await samplers[1].sample(PROMPTS, 2, PLAIN)
            gate = server.gate = asyncio.Event()
            drawing = asyncio.create_task(samplers[1].sample(PROMPTS, 2, PLAIN))
            while server.in_flight < 4:
                await asyncio.sleep(0.01)
            server.gate = None
            for version in (1, 2, 3):
                shake(policy, seed=version)
                assert await refreshed(samplers, version) == ["", ""]
            assert len(server.adapters) == 3
            gate.set()
            assert await drawing == before
            await refreshed(samplers, 4)
            assert len(server.adapters) == 2


async def test_ranks_that_meet_a_restarted_server_at_once_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    policy = tiny_policy(trained=False)
    async with VllmDouble(delay=0.02) as server:
        config = shared_by(served(server.url, tmp_path), server)
        async with two_ranks(config, (policy, policy)) as samplers:
            shake(policy, seed=1)
            await refreshed(samplers, 1)
            before = await samplers[0].sample(PROMPTS, 2, PLAIN)
            server.restart()
            found = await asyncio.gather(*(s.sample(PROMPTS, 2, PLAIN) for s in samplers))
            assert found == [before, before]
            assert len(server.adapters) == 1
    again = loaded(server)[2:]
    assert again == ["flowright-trial"] * 2 + ["flowright-step_000001"] * 2
    assert len(server.refusals) == 1 and "already been loaded" in server.refusals[0]


async def test_a_failure_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    policy, other = tiny_policy(trained=False), tiny_policy(trained=False)
    async with VllmDouble() as server:
        config = shared_by(served(server.url, tmp_path), server)
        async with two_ranks(config, (policy, other)) as samplers:
            assert await refreshed(samplers, 0) == ["", ""]
            shake(other, seed=1)
            one, two = await refreshed(samplers, 1)
            assert one == two and "the processes of this run have different weights" in one
            other.load(weights(policy))
            shake(policy, seed=2), shake(other, seed=2)
            server.ignores = lambda name: True
            one, two = await refreshed(samplers, 2)
            assert one == two and "does not serve version 2" in one
            assert [sampler.version for sampler in samplers] == [0, 0]


async def test_a_proof_of_the_first_rank_is_not_trusted_for_another_folder(
    tmp_path: Path,
) -> None:
    policy, lists = tiny_policy(trained=False), 0

    def moved(path: str, body: dict[str, Any]) -> None:
        nonlocal lists
        lists += path == "models"
        if lists == 3:  # of the first before and after it loads, then of the second
            for adapter in server.adapters.values():
                adapter.path = "/elsewhere"

    async with VllmDouble() as server:
        config = shared_by(served(server.url, tmp_path), server)
        async with two_ranks(config, (policy, policy)) as samplers:
            assert await refreshed(samplers, 0) == ["", ""]
            server.fail = moved
            one, two = await refreshed(samplers, 1)
            assert one == "" and "as loaded from /elsewhere" in two


async def test_ranks_with_servers_of_their_own_read_one_folder(tmp_path: Path) -> None:
    policy = tiny_policy(trained=False)
    async with VllmDouble() as one, VllmDouble() as other:
        config = shared_by(served(one.url, tmp_path), one, other)
        async with two_ranks(config, (policy, policy)) as samplers:
            assert await refreshed(samplers, 0) == ["", ""]
            assert one.adapters.keys() == other.adapters.keys()
            assert loaded(one) == loaded(other) == ["flowright-trial", "flowright-step_000000"]
            await samplers[1].sample(PROMPTS, 2, PLAIN)
            assert other.draws and not one.draws
            assert [bounds(sampler) for sampler in samplers] == [{256}, {256}]
        assert not one.adapters and not other.adapters


async def test_the_sampler_is_the_configured_one(tmp_path: Path) -> None:
    policy = tiny_policy()
    async with open_samplers(configured(), policy) as (trained, untrained):
        assert isinstance(trained, LocalSampler) and isinstance(untrained, LocalSampler)
    async with VllmDouble() as server:
        config = served(server.url, tmp_path)
        folder = tmp_path / "shared"
        vllm = config.policy.vllm.model_copy(update={"adapter_dir": folder})
        section = config.policy.model_copy(update={"vllm": vllm})
        moved = config.model_copy(update={"policy": section})
        async with open_samplers(moved, policy, "evaluation-1") as (trained, _):
            assert isinstance(trained, VllmSampler)
            await trained.refresh(0)
            assert len(list((folder / "run" / "evaluation-1").iterdir())) == 2  # and the trial's


async def test_the_dry_run_looks_at_the_policys_server(tmp_path: Path) -> None:
    async with VllmDouble(runtime_lora=False) as server:
        with pytest.raises(UserError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            await check_samplers(served(server.url, tmp_path))
        server.runtime_lora = True
        assert f"vLLM at {server.url}" in await check_samplers(served(server.url, tmp_path))
