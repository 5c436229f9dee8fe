"""A training run that samples from a server: every step from the adapter just trained."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from served_run import served, train
from tiny_policy import tiny_policy
from toy_run import configured
from vllm_double import VllmDouble, error

from flowright.app.open_policies import check_samplers, open_samplers
from flowright.core.errors import RunError, RunPaused, UserError
from flowright.grpo.ranks import Ranks
from flowright.policy.local import LocalSampler
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


async def test_several_ranks_share_out_the_servers_and_keep_folders_of_their_own(
    tmp_path: Path,
) -> None:
    policy = tiny_policy()
    async with VllmDouble() as one, VllmDouble() as other:
        config = served(one.url, tmp_path)
        vllm = config.policy.vllm.model_copy(update={"base_urls": (one.url, other.url)})
        section = config.policy.model_copy(update={"vllm": vllm})
        both = config.model_copy(update={"policy": section})
        for rank, server in ((0, one), (1, other)):
            async with open_samplers(both, policy, ranks=Ranks(rank, 2)) as (sampler, _):
                await sampler.refresh(0)
                (adapter,) = server.adapters.values()
                assert Path(adapter.path).parent == tmp_path / f"run/adapters/rank-{rank}"
        assert one.seen["load_lora_adapter"] == other.seen["load_lora_adapter"] == 2
        async with open_samplers(config, policy, ranks=Ranks(1, 2)) as (sampler, _):
            await sampler.refresh(0)  # one server for both
        assert one.seen["load_lora_adapter"] == 4


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
