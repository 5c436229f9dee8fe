"""Sampling from servers: the right adapter or none, whatever a server does."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_policy import same, shake, tiny_policy, weights
from vllm_bench import PLAIN, PROMPTS, SMALL, expected, prompt_of, refused
from vllm_double import BASE, Model, VllmDouble, configured, error, model

from flowright.core.errors import RunError
from flowright.policy.sampling import Sampling
from flowright.policy.vllm.sampler import VllmSampler
from flowright.policy.vllm.server import check_servers


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_samples_are_the_trained_adapters_with_its_log_probabilities(
    bench: Any, temperature: float
):
    it = await bench(temperature=temperature)
    await it.sampler.refresh(0)
    await it.train(1)
    sampling = Sampling(temperature, 1.0, 6, 7)
    samples = await it.draw(sampling=sampling)
    for index, sample in enumerate(samples):
        assert sample.logprobs == pytest.approx(
            expected(it.policy, prompt_of(index), sample, temperature), abs=1e-4
        )
        kept = [t for t in sample.token_ids if t not in it.policy.end_ids]
        assert sample.text == it.policy.tokenizer.decode(kept)
        assert sample.version == 1 == it.sampler.version
    assert len({sample.token_ids for sample in samples}) > 2
    assert await it.draw(sampling=sampling) == samples
    assert await it.draw(sampling=Sampling(temperature, 1.0, 6, 8)) != samples
    (proof,) = it.proofs.values()
    assert proof.gap < 1e-4 and proof.excluded == 2 and proof.decided
    assert proof.share is not None and proof.share.value == pytest.approx(1.0, abs=0.01)
    assert it.sampler.metrics["policy/proof_decided"] == 1.0
    assert it.sampler.metrics["policy/proof_error"] < 0.01


async def test_what_a_request_asks_for(bench: Any):
    it = await bench(api_key="sk-mine")
    await it.sampler.refresh(0)
    await it.draw()
    bodies = it.server.draws
    assert len({body["seed"] for body in bodies}) == 4
    assert all(0 <= body["seed"] < 2**63 for body in bodies)
    assert [body["prompt"] for body in bodies] == [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    # A model's generation_config.json would otherwise cut and bend the distribution.
    plain = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    for body in bodies:
        assert plain.items() <= body.items()
        assert body["model"].startswith("flowright-step_000000-")
        assert body["stop_token_ids"] == sorted(it.policy.end_ids)
        assert (body["max_tokens"], body["temperature"], body["top_p"]) == (6, 1.0, 1.0)


async def test_draws_depend_on_the_place_in_the_batch_not_on_who_draws(bench: Any):
    it = await bench()
    await it.train(1)
    whole = await it.sampler.sample(PROMPTS, 2, PLAIN)
    assert await it.sampler.sample(PROMPTS[1:], 2, PLAIN, [1]) == whole[1:]
    assert await it.sampler.sample(PROMPTS[1:], 2, PLAIN) != whole[1:]
    assert await it.sampler.sample([], 2, PLAIN) == []


async def test_a_completion_ends_with_its_end_token_or_at_the_limit(bench: Any):
    it = await bench()
    it.policy.causal_lm.generation_config.eos_token_id = [2, *range(80, 160)]
    await it.sampler.refresh(0)
    samples = await it.draw(n=8)
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}
    for sample in samples:
        ends = [token in it.policy.end_ids for token in sample.token_ids]
        assert not any(ends[:-1])
        assert ends[-1] == (sample.finish_reason == "stop")


async def test_every_version_has_a_new_name_and_path_and_old_ones_go(bench: Any, tmp_path: Path):
    it = await bench()
    seen: list[str] = []
    for version in range(4):
        await it.train(version)
        seen += [name for name in it.server.adapters if name not in seen]
        assert list(it.server.adapters) == seen[-2:]
        folders = sorted(f"flowright-{path.name}" for path in (tmp_path / "adapters").iterdir())
        trial = folders.pop()  # a server that is started anew is asked for it again
        assert trial.startswith("flowright-trial-") and folders == sorted(it.server.adapters)
    assert len(seen) == 4


async def test_a_model_in_bfloat16_has_adapter_files_in_it(tmp_path: Path):
    """A checkpoint's stay in float32; scoring and writing leave the event loop free."""
    policy, served = (tiny_policy(trained=False, dtype="bfloat16") for _ in range(2))
    threads: set[str] = set()
    policy.causal_lm.model.register_forward_pre_hook(lambda *_: threads.add(current_thread().name))
    async with VllmDouble(Model(served)) as server:
        section = configured(server, tolerance=0.1)
        sampler = VllmSampler(policy, section, BASE, tmp_path / "adapters")
        for version in range(3):
            shake(policy, seed=version)
            await sampler.refresh(version)
        files = (tmp_path / "adapters").glob("*/adapter_model.safetensors")
        found = {t.dtype for file in files for t in load_file(file).values()}
        policy.save(tmp_path / "checkpoint")
        kept = load_file(tmp_path / "checkpoint/adapter_model.safetensors").values()
        assert found == {torch.bfloat16} and {t.dtype for t in kept} == {torch.float32}
        metrics = sampler.metrics
        assert metrics["policy/proof_decided"] and metrics["policy/proof_gap"] < 0.1
        assert metrics["policy/proof_share"] == pytest.approx(1.0, abs=0.1)
        await sampler.aclose()
    assert threads == {"model_0"}


async def test_samples_under_way_keep_their_version_while_the_next_is_published(bench: Any):
    it = await bench()
    await it.train(1)
    before = await it.draw()
    it.server.delay = 0.05
    drawing = asyncio.create_task(it.draw())
    await asyncio.sleep(0.01)
    it.server.delay = 0.0
    for version in (2, 3, 4):  # more than are kept
        await it.train(version)
    assert await drawing == before
    assert {sample.version for sample in before} == {1}
    assert {sample.version for sample in await it.draw()} == {4}


async def test_a_server_at_its_trial_is_not_disturbed_by_the_next_version(bench: Any):
    it = await bench()
    loaded: list[str] = []

    def heard(path: str, body: dict[str, Any]) -> None:
        loaded.append(body["lora_name"]) if path == "load_lora_adapter" else None

    it.server.fail = heard
    await it.train(1)
    (trial,) = (name for name in loaded if "trial" in name)
    assert trial not in it.server.adapters
    it.server.adapters[trial] = next(iter(it.server.adapters.values()))
    await it.train(2)
    assert trial in it.server.adapters
    await it.sampler.aclose()
    assert trial not in it.server.adapters


async def test_a_later_process_clears_what_an_earlier_one_left(bench: Any, tmp_path: Path):
    it = await bench()
    await it.sampler.refresh(0)
    other = VllmSampler(it.policy, configured(it.server), BASE, tmp_path / "adapters")
    elsewhere = VllmSampler(it.policy, configured(it.server), BASE, tmp_path / "another run")
    await elsewhere.refresh(0)
    await other.refresh(3)
    assert len(list((tmp_path / "adapters").iterdir())) == 2  # with its trial adapter
    paths = {Path(adapter.path).parent.name for adapter in it.server.adapters.values()}
    assert paths == {"adapters", "another run"} and len(it.server.adapters) == 2
    await other.aclose()
    assert not (tmp_path / "adapters").exists()
    assert len(it.server.adapters) == 1
    await elsewhere.aclose()


async def test_the_untrained_policy_is_the_servers_base_model_by_its_own_name(bench: Any):
    it = await bench()
    await it.train(1)
    (group, _) = await it.sampler.untrained().sample(PROMPTS, 2, PLAIN)
    assert {body["model"] for body in it.server.draws} == {BASE}
    for sample in group:
        with it.policy.reference():
            rows = expected(it.policy, PROMPTS[0], sample)
        assert sample.logprobs == pytest.approx(rows, abs=1e-4)
        assert sample.version == 0


# What must never become a sample


async def test_a_server_that_ignores_adapters_is_found_before_the_first_update(bench: Any):
    it = await bench(VllmDouble(ignores=lambda name: True))
    told = await refused(it, 0, 0.0)
    assert "of what they change, its log-probabilities show 0% ± 0%" in told


async def test_a_server_that_scales_adapters_otherwise_is_found_before_the_first_update(bench: Any):
    it = await bench(VllmDouble(scales=0.5))
    told = await refused(it, 0, 0.0)
    assert "does not apply trial weights as the learner does" in told


@pytest.mark.parametrize("scale", [0.1, SMALL])
async def test_a_server_that_ignores_a_later_adapter_is_told_from_one_that_does_not(
    bench: Any, scale: float
):
    it = await bench(VllmDouble(ignores=lambda name: "trial" not in name))
    await it.sampler.refresh(0)  # a fresh adapter is the base model: nothing can be said
    told = await refused(it, 1, scale)
    assert "does not serve version 1" in told and "the base model" in told


async def test_the_trial_leaves_the_learner_as_it_was_and_no_adapter_behind(bench: Any):
    it = await bench()
    shake(it.policy, seed=1)
    before = weights(it.policy)
    await it.sampler.refresh(1)
    assert same(weights(it.policy), before)
    assert [name.split("-")[1] for name in it.server.adapters] == ["step_000001"]
    assert it.server.seen["load_lora_adapter"] == 2
    await it.train(2)
    assert it.server.seen["load_lora_adapter"] == 3, "one trial is enough"


@pytest.mark.parametrize("scale", [0.1, SMALL])
async def test_a_server_that_stays_with_an_earlier_adapter_is_caught(bench: Any, scale: float):
    it = await bench()
    await it.train(1, scale)
    await it.train(2, scale)
    it.server.serves_first = True
    told = await refused(it, 3, scale)
    assert "does not serve version 3" in told
    assert ("those of version 1" in told) if scale == 0.1 else ("version 1 was" in told), told


async def test_an_adapter_that_is_used_for_prompts_but_not_while_decoding_is_caught(bench: Any):
    it = await bench(VllmDouble(decodes_with_base=True))
    await it.sampler.refresh(0)
    assert "draws tokens with other weights than it scores them with" in await refused(it)


async def test_another_base_model_is_caught(bench: Any):
    it = await bench(VllmDouble(model("llama")))
    assert "base model is not the learner's" in await refused(it)


async def test_an_adapter_loaded_from_elsewhere_is_caught(bench: Any):
    it = await bench()

    def other_path(path: str, body: dict[str, Any]) -> None:
        for name, adapter in it.server.adapters.items():
            adapter.path = adapter.path if "trial" in name else "/cache/adapter"

    it.server.fail = other_path
    assert "lists flowright-step_000001" in await refused(it)


async def test_a_load_that_is_not_listed_is_caught(bench: Any):
    """As with several API servers, each with a list of its own."""
    it = await bench()
    plain = it.server._load
    it.server._routes = lambda: {  # the load goes to another process
        "models": it.server._models,
        "completions": it.server._completions,
        "load_lora_adapter": lambda body: (plain(body), it.server.restart())[0],
    }
    assert "does not list it; run one API server" in await refused(it)


async def test_replies_of_another_model_are_never_used(bench: Any):
    it = await bench()
    await it.sampler.refresh(0)

    def as_base(reply: dict[str, Any], body: dict[str, Any]) -> None:
        if body.get("seed"):
            reply["model"] = BASE

    it.server.edit = as_base
    with pytest.raises(RunError, match=f"from model '{BASE}', not 'flowright-step_000000"):
        await it.draw()


def short(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"].pop()


def endless(choice: dict[str, Any]) -> None:
    choice["finish_reason"] = "stop"


def cut(choice: dict[str, Any]) -> None:
    choice["token_ids"].pop()
    choice["logprobs"]["token_logprobs"].pop()


def undefined(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][0] = math.nan


def impossible(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][0] = -9999.0


def aborted(choice: dict[str, Any]) -> None:
    choice["finish_reason"] = "abort"


def nameless(choice: dict[str, Any]) -> None:
    del choice["token_ids"]


def other_prompt(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = [1, *choice["prompt_token_ids"]]


FAULTS = {
    short: "6 tokens with 5 log-probabilities",
    endless: "its last token is not one that ends a completion",
    cut: "cut after 5 of 6 tokens",
    undefined: "a log-probability is nan",
    impossible: "a log-probability is -9999",
    aborted: "finish_reason 'abort'",
    nameless: "no token_ids",
    other_prompt: "the prompt that it answers is not the one that was sent",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_reply_that_breaks_the_contract_is_tried_again_and_then_fatal(
    bench: Any, fault: Callable[[dict[str, Any]], None]
):
    it = await bench()
    await it.sampler.refresh(0)
    good = await it.draw()
    left = [1]

    def spoil(reply: dict[str, Any], body: dict[str, Any]) -> None:
        if body.get("seed") and left[0]:
            left[0] -= 1
            fault(reply["choices"][0])

    it.server.edit = spoil
    assert await it.draw() == good
    left[0] = 10**6
    with pytest.raises(RunError, match=FAULTS[fault]):
        await it.draw()


async def test_an_end_token_that_is_left_out_is_no_sample(bench: Any):
    it = await bench()
    it.policy.causal_lm.generation_config.eos_token_id = [2, *range(60, 220)]
    await it.sampler.refresh(0)

    def drop_end(reply: dict[str, Any], body: dict[str, Any]) -> None:
        if body.get("seed") and reply["choices"][0]["finish_reason"] == "stop":
            cut(reply["choices"][0])

    it.server.edit = drop_end
    with pytest.raises(RunError, match="its last token is not one that ends"):
        await it.draw(n=4)


# Servers that are set up wrongly


@pytest.mark.parametrize("setting", [{"temperature": 0.7}, {"top_p": 0.9}, {}], ids=str)
async def test_raw_log_probabilities_are_refused_where_they_would_be_wrong(
    bench: Any, setting: dict[str, float]
):
    it = await bench(VllmDouble(logprobs_mode="raw_logprobs"), **setting)
    if setting:
        assert "--logprobs-mode processed_logprobs" in await refused(it)
    else:
        await it.train(1)
        assert len(await it.draw()) == 4


SETUPS: list[tuple[dict[str, Any], str]] = [
    ({"max_lora_rank": 2}, "start it with --max-lora-rank 8 or above"),
    ({"runtime_lora": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    ({"sees": lambda path: False}, "set policy.vllm.adapter_dir"),
    (
        {"fail": lambda path, body: error(500, "No free lora slots") if "load" in path else None},
        "--max-loras of policy.vllm.max_loras or above",
    ),
    (
        {"fail": lambda path, body: error(400, "LoRA is not enabled.") if "load" in path else None},
        "--enable-lora",
    ),
    (
        {"fail": lambda path, body: error(401, "Unauthorized")},
        "check api_key",
    ),
    ({"max_model_len": 100}, "--max-model-len is 100, but policy.max_prompt_tokens"),
]


@pytest.mark.parametrize(("setup", "told"), SETUPS, ids=[told for _, told in SETUPS])
async def test_a_server_that_is_set_up_wrongly_ends_the_run_with_what_to_do(
    bench: Any, setup: dict[str, Any], told: str
):
    assert told in await refused(await bench(VllmDouble(**setup)))


async def test_a_server_has_to_take_all_turns_of_an_attempt(tmp_path: Path) -> None:
    async with VllmDouble(max_model_len=120) as server:
        section = configured(server)
        assert await check_servers(section, BASE) == []
        longer = section.model_copy(update={"max_episode_tokens": 40})
        (problem,) = await check_servers(longer, BASE)
    assert "is 120, but policy.max_prompt_tokens and policy.max_episode_tokens are 140" in problem


async def test_more_adapters_than_the_server_holds_are_pushed_out_without_harm(bench: Any):
    it = await bench(VllmDouble(capacity=1))
    for version in range(4):
        await it.train(version)
        assert {sample.version for sample in await it.draw()} == {version}
