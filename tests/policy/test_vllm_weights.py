"""Sampling from servers that get all weights: the right ones or none, whatever a server does."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served_run import served, train
from tiny_policy import tiny_policy
from vllm_bench import PLAIN, PROMPTS, expected, prompt_of, refused
from vllm_double import BASE, OWN, VllmDouble, configured, exchanging

from flowright.app.open_policies import open_samplers
from flowright.core.errors import ConfigError, RunError
from flowright.grpo.ranks import Ranks
from flowright.policy.vllm.sampler import VllmSampler
from flowright.policy.vllm.server import check_servers
from flowright.runs.run_files import read_metrics, read_rollouts


def exchanges(server: VllmDouble) -> list[str]:
    """What was loaded: the server's own weights, the trial's, or a step's."""
    paths = (b["kwargs"]["weights_path"] for p, b in server.requests if p == "collective_rpc")
    return [path if path == OWN else Path(path).name.rpartition("-")[0] for path in paths]


async def test_samples_are_the_trained_weights_with_their_log_probabilities(bench: Any) -> None:
    it = await bench(exchanging())
    await it.sampler.refresh(0)
    for version in (1, 2):
        await it.train(version, 0.03)
        for index, sample in enumerate(await it.draw()):
            rows = expected(it.policy, prompt_of(index), sample)
            assert sample.logprobs == pytest.approx(rows, abs=1e-4)
            assert sample.version == version == it.sampler.version
    assert exchanges(it.server) == ["trial", "step_000000", "step_000001", "step_000002"]
    assert {body["model"] for body in it.server.draws} == {BASE}
    assert it.server.label.startswith("flowright-step_000002-") and not it.server.paused
    (proof,) = it.proofs.values()
    assert proof.gap < 1e-4 and proof.decided and proof.excluded == 3
    assert it.sampler.metrics["policy/proof_share"] == pytest.approx(1.0, abs=0.01)


async def test_the_untrained_policy_is_loaded_again_and_then_the_trained_one(
    bench: Any, tmp_path: Path
) -> None:
    it = await bench(exchanging())
    await it.sampler.refresh(0)
    await it.train(1)
    (group, _) = await it.sampler.untrained().sample(PROMPTS, 2, PLAIN)
    for sample in group:
        with it.policy.reference():
            rows = expected(it.policy, PROMPTS[0], sample)
        assert sample.logprobs == pytest.approx(rows, abs=1e-4)
        assert sample.version == 0
    assert it.server.label == "default"
    for index, sample in enumerate(await it.draw()):
        rows = expected(it.policy, prompt_of(index), sample)
        assert sample.logprobs == pytest.approx(rows, abs=1e-4)
    assert exchanges(it.server)[2:] == ["step_000001", OWN, "step_000001"]
    left = {path.name.rpartition("-")[0] for path in (tmp_path / "adapters").iterdir()}
    assert left == {"trial", "step_000001"}


async def test_completions_end_before_the_next_weights_come(bench: Any) -> None:
    """The double refuses to reload while a completion is open."""
    it = await bench(exchanging())
    await it.sampler.refresh(0)
    await it.train(1)
    before = await it.draw()
    it.server.delay = 0.05
    drawing = asyncio.create_task(it.draw())
    while not it.server.in_flight:
        await asyncio.sleep(0.001)
    it.server.delay = 0.0
    await it.train(2)
    assert await drawing == before
    assert {sample.version for sample in await it.draw()} == {2}


@pytest.mark.parametrize("during", [False, True])
async def test_a_restarted_server_gets_the_newest_weights_before_a_sample_counts(
    bench: Any, during: bool
) -> None:
    it = await bench(exchanging())
    await it.sampler.refresh(0)
    await it.train(1)
    before = await it.draw()

    def restart(reply: dict[str, Any], body: dict[str, Any]) -> None:
        if body.get("seed"):
            it.server.edit = lambda reply, body: None
            it.server.restart()

    if during:  # after a draw from the right weights, and before the others
        it.server.edit = restart
    else:
        it.server.restart()
    assert await it.draw() == before
    assert exchanges(it.server)[3:] == ["trial", "step_000001"]


# What must never become a sample


@pytest.mark.parametrize(
    "takes", [lambda path, weight: False, lambda path, weight: "norm" in weight], ids=["0", "norms"]
)
async def test_a_server_that_keeps_weights_is_found_before_the_first_update(
    bench: Any, takes: Callable[[str, str], bool]
) -> None:
    it = await bench(exchanging(takes=takes))
    told = await refused(it, 0, 0.0)
    assert "does not apply trial weights as the learner does" in told


async def test_a_server_that_keeps_later_weights_is_found_at_the_first_of_them(bench: Any) -> None:
    it = await bench(exchanging(takes=lambda path, weight: "step_000001" not in path))
    await it.sampler.refresh(0)
    told = await refused(it, 1, 0.003)
    assert "it does not serve version 1" in told


async def test_a_prefix_cache_of_the_weights_before_is_noticed(bench: Any) -> None:
    it = await bench(exchanging(keeps_cache=True), tolerance=0.1)
    told = await refused(it, 0, 0.0)
    assert "it draws tokens with other weights than it scores them with" in told
    assert "reset_prefix_cache" in it.server.seen


async def test_two_runs_on_one_server_are_refused(bench: Any, tmp_path: Path) -> None:
    it = await bench(exchanging())
    await it.sampler.refresh(0)
    other = VllmSampler(it.policy, configured(it.server), BASE, tmp_path / "another run")
    await other.refresh(0)
    with pytest.raises(RunError, match=r"another run loaded flowright-step_000000-.*one run a ser"):
        await it.draw()
    await other.aclose()


async def test_a_server_that_was_left_in_the_middle_of_an_exchange_is_taken_up(bench: Any) -> None:
    it = await bench(exchanging())
    it.server.label, it.server.paused = "flowright-unknown", True
    it.server.loaded = {name: 1.5 * tensor for name, tensor in it.server.model.own.items()}
    await it.sampler.refresh(0)
    assert exchanges(it.server) == [OWN, "trial", "step_000000"]
    assert len(await it.draw()) == 4


async def test_a_server_that_takes_no_weights_is_named_with_what_to_start(bench: Any) -> None:
    it = await bench(exchanging())
    assert await check_servers(configured(it.server), BASE) == []
    section = configured(it.server)
    it.server.dev_mode = False
    (line,) = await check_servers(section, BASE)
    assert "VLLM_SERVER_DEV_MODE=1, as POLICY_TRAIN=full bash launch_vllm_safe.sh policy" in line
    with pytest.raises(RunError, match="takes no weights while it runs"):
        await it.sampler.refresh(0)


async def test_a_folder_that_the_server_does_not_see_is_named(bench: Any) -> None:
    it = await bench(exchanging(sees=lambda path: False))
    with pytest.raises(RunError, match=r"as we do; set policy\.vllm\.adapter_dir"):
        await it.sampler.refresh(0)
    assert not it.server.paused and it.server.label == "flowright-unknown"


# A run


async def test_every_step_is_sampled_from_the_weights_just_trained(tmp_path: Path) -> None:
    async with exchanging() as server:
        config = served(server.url, tmp_path, wait_seconds=60.0)
        section = config.policy.model_copy(update={"train": "full"})
        config = config.model_copy(update={"policy": section})
        pipeline = config.pipeline.model_copy(update={"max_staleness": 1})
        config = config.model_copy(update={"pipeline": pipeline})
        policy = tiny_policy(trained=False, train="full")
        assert await train(config, policy=policy) == 3
        assert exchanges(server)[1:] == [f"step_00000{step}" for step in range(4)]
        with pytest.raises(ConfigError, match="each needs a server of its own"):
            async with open_samplers(config, policy, ranks=Ranks(0, 2)):
                pass
    assert not (tmp_path / "run" / "adapters").exists()
    for step, version in ((1, 0), (2, 0), (3, 1)):
        rows = list(read_rollouts(tmp_path / "run", step))
        assert {row["policy_version"] for row in rows} == {version}
    for row in read_metrics(tmp_path / "run")[1:]:
        assert row["policy/proof_decided"] == 1.0
