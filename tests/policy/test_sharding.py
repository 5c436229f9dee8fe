"""A policy whose weights are split among two processes: the updates of one that has them all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from clocks import without_clocks
from processes import run_ranks
from safetensors.torch import load_file
from shard_worker import CASES, looked_at, read_texts, to_serve, toy_training, updates
from tiny_policy import same, tiny_policy
from vllm_double import VllmDouble

from flowright.config.policy import PolicySection
from flowright.core.errors import ConfigError
from flowright.environments.registry import make_config
from flowright.grpo.ranks import ONE, peers_of_passes
from flowright.policy.tuning import ADAPTER_FILE
from flowright.runs.run_files import read_metrics, read_rollouts


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Where two processes worked, and what each found."""
    out = tmp_path_factory.mktemp("shards")

    async def work() -> None:
        async with VllmDouble() as server:
            assert await run_ranks("shard_worker.py", str(out), server.url) == [0, 0]
            # For both: a trial, versions 0 to 2, and resumed a trial, 2 and 3.
            assert server.seen["load_lora_adapter"] == 7

    asyncio.run(work())
    return out, [torch.load(out / f"{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return updates(ONE, lambda policy: policy)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_split_weights_give_the_update_of_whole_ones(
    name: str, shards: tuple[Path, list[dict[str, Any]]], alone: dict[str, Any]
):
    one, (first, second) = alone[name], (found["updates"][name] for found in shards[1])
    largest = max(float(gradient.abs().max()) for gradient in one.gradients)
    assert largest > 0
    for ours, theirs in zip(first["gradients"], one.gradients, strict=True):
        # Sums of float32 in another order: each of some hundred terms, the largest gradient's size
        # at most, may be rounded to the other side. The errors go both ways, so that some ten stay.
        atol = 16 * torch.finfo(torch.float32).eps * largest
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=atol)
    for weight, tensor in one.weights.items():
        # Adam divides by a gradient's size, so that one that is 0 but for rounding moves, too: by
        # up to 2.3e-6 with torch 2.13, at a rate of 1e-3.
        torch.testing.assert_close(first["weights"][weight], tensor, rtol=1e-6, atol=4e-6)
    assert same(first["weights"], second["weights"]), "one policy, bit for bit"
    assert first["metrics"] == pytest.approx(one.metrics, rel=1e-4, abs=1e-6)
    assert first["metrics"] == second["metrics"]
    together = first["found"] | second["found"]
    assert together.keys() == one.found.keys() and together
    for place, logprobs in together.items():
        assert logprobs == pytest.approx(one.found[place], rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_what_else_runs_the_model_finds_the_same(shards: tuple[Path, list[dict[str, Any]]]):
    out, found = shards
    one = looked_at(tiny_policy(), ONE)
    for rank, process in enumerate(found):
        looked = process["looked"]
        torch.testing.assert_close(looked["scores"], one["scores"], rtol=0, atol=1e-5)
        torch.testing.assert_close(looked["moved"], one["moved"], rtol=0, atol=1e-5)
        assert same(looked["adapter"], one["adapter"]) and same(looked["adapter"], looked["before"])
        assert same(load_file(out / f"adapter-{rank}" / ADAPTER_FILE), one["adapter"])
    together = [nats for process in found for nats in process["looked"]["divergences"]]
    assert together == pytest.approx(one["divergences"], abs=1e-4)


@pytest.mark.slow
def test_every_process_has_all_weights_for_its_server(
    shards: tuple[Path, list[dict[str, Any]]],
):
    one = to_serve(tiny_policy(trained=False, train="full"))
    for served in (process["served"] for process in shards[1]):
        assert served["size"] == one["size"]
        assert same(served["trial"], one["trial"]) and same(served["own"], one["own"])
        torch.testing.assert_close(served["scores"], one["scores"], rtol=0, atol=1e-5)


@pytest.mark.slow
async def test_processes_read_a_text_together(shards: tuple[Path, list[dict[str, Any]]]):
    one = await read_texts(tiny_policy(), ONE)
    assert len(one) == 4 and one[0] != pytest.approx(one[1], rel=1e-2)
    for process in shards[1]:
        assert process["texts"] == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_a_process_holds_its_part_of_the_layers_alone(
    shards: tuple[Path, list[dict[str, Any]]],
):
    held = [process["held"] for process in shards[1]]
    whole = held[0]["whole"]
    layers = tiny_policy().causal_lm.model.layers.named_parameters()
    assert whole == sum(4 * p.numel() for name, p in layers if "lora_" not in name)
    assert [process["part"] for process in held] == [whole // 2, whole // 2]
    others = 4 * sum(p.numel() for p in tiny_policy().model.parameters()) - whole
    for process in held:  # what was gathered has gone, but for at most the last of two layers
        assert whole // 2 < process["alive"] - others < 5 * whole // 4


@pytest.mark.slow
async def test_a_run_of_split_weights_is_that_of_one_process(
    shards: tuple[Path, list[dict[str, Any]]], tmp_path: Path
):
    """Sampled from a server, with the reference's scores in the rewards, and resumed once."""
    async with VllmDouble() as server:
        await toy_training(server.url, tmp_path, ONE)
    runs = [tmp_path / "run", shards[0] / "run"]
    one, two = ([without_clocks(row) for row in read_metrics(run)] for run in runs)
    assert len(one) == 4 and any("policy/loss" in row for row in one)
    for ours, theirs in zip(two, one, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    for step in (1, 2, 3):
        ours, theirs = ([row["completion"] for row in read_rollouts(run, step)] for run in runs)
        assert ours == theirs


@pytest.mark.slow
def test_a_process_that_dies_in_a_pass_is_said_to_have_gone(
    shards: tuple[Path, list[dict[str, Any]]],
):
    assert "another process of this run has gone" in (shards[0] / "lost.txt").read_text()


def test_other_errors_of_torch_keep_their_words():
    with pytest.raises(RuntimeError, match="out of memory"), peers_of_passes():
        raise torch.OutOfMemoryError("CUDA out of memory")


def method(loss: str) -> dict[str, Any]:
    given = loss in ("sft", "bradley_terry")
    return {"grpo": {"loss": loss}, "judging": {"method": loss} if given else {}}


async def test_what_cannot_be_split_is_refused():
    split = PolicySection(sharded=True)
    for loss in ("dapo", "sft"):  # known_rule: what sft has learned is measured by what it writes
        with pytest.raises(ValueError, match="set policy"):
            make_config(environment="judging", policy=split, **method(loss))
    scores = PolicySection(sharded=True, head="score")
    make_config(environment="judging", policy=scores, **method("bradley_terry"))
    with pytest.raises(ConfigError, match="torchrun --nproc_per_node"):
        await ONE.gpus_per_node()
    evaluated = tiny_policy(sampler="vllm", sharded=True)  # by scripts/evaluate.py
    assert evaluated.gpus == 1
    assert evaluated.peers.longest([3, 0]) == ONE.longest([3, 0]) == [3, 0]
