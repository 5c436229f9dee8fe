"""Servers that restart, fail or are several: waited for, tried again, counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from vllm_bench import PROMPTS, SMALL, refused
from vllm_double import BASE, VllmDouble, error

from flowright.core.errors import RunError, RunPaused, UserError
from flowright.llm.counters import metrics_since


async def test_a_server_that_was_started_anew_gets_the_adapter_again_with_a_proof(bench: Any):
    it = await bench()
    await it.train(1)
    good = await it.draw()
    it.server.restart()
    it.server.requests.clear()
    assert await it.draw() == good
    assert it.server.seen["load_lora_adapter"] == 2  # the trial's, and this one
    assert sum("prompt_logprobs" in body for _, body in it.server.requests) == 4
    it.server.restart()
    it.server.ignores = lambda name: "trial" not in name
    with pytest.raises(RunError, match="does not serve version 1"):
        await it.draw()


async def test_a_server_that_lists_an_adapter_but_does_not_know_it_is_given_up(bench: Any):
    it = await bench()
    await it.sampler.refresh(0)

    def unknown(path: str, body: dict[str, Any]) -> web.Response | None:
        missing = path == "completions" and body["model"] != BASE
        return error(404, f"The model `{body['model']}` does not exist.") if missing else None

    it.server.fail = unknown
    with pytest.raises(RunPaused, match=r"given up after 3 attempts.*does not exist"):
        await it.draw()


@asynccontextmanager
async def later(server: VllmDouble, seconds: float) -> AsyncIterator[None]:
    """Start the server again after a while."""

    async def start() -> None:
        await asyncio.sleep(seconds)
        await server.__aenter__()

    starting = asyncio.create_task(start())
    try:
        yield
    finally:
        await starting
        await server.__aexit__(None, None, None)


async def test_refused_connections_are_waited_out(bench: Any):
    it = await bench(wait_seconds=20)
    await it.train(1)
    good = await it.draw()
    await it.server.__aexit__(None, None, None)
    it.server.restart()
    async with later(it.server, 0.3):
        assert await it.draw() == good
        await it.train(2)


async def test_a_server_that_stays_away_pauses_the_run(bench: Any):
    it = await bench()
    await it.train(1)
    await it.server.__aexit__(None, None, None)
    with pytest.raises(
        RunPaused, match=r"no server could be used for .*launch_vllm_safe.sh policy"
    ):
        await it.draw()
    with pytest.raises(RunError, match="no server could be used") as caught:
        await it.train(2)
    assert not isinstance(caught.value, RunPaused)  # an update that was not saved is behind it
    assert it.sampler.version == 1


async def test_errors_are_tried_again(bench: Any):
    it = await bench()
    await it.train(1)
    good = await it.draw()
    replies = iter([error(500, "EngineDeadError"), error(503, "loading")])
    it.server.fail = lambda path, body: next(replies, None)
    assert await it.draw() == good


async def test_a_server_that_hangs_pauses_the_run(bench: Any):
    it = await bench(request_seconds=1.0)
    await it.train(1)
    it.server.delay = 60
    with pytest.raises(RunPaused, match=r"no reply within 1 s"):
        await it.draw()
    it.server.delay = 0.0


async def test_what_was_asked_of_each_server_is_counted(bench: Any):
    it = await bench(VllmDouble(), VllmDouble())
    await it.train(1)
    assert metrics_since(it.sampler.counters) == {}, "adapters and proofs are no samples"
    replies = iter([error(500, "EngineDeadError"), error(429, "busy")])
    it.server.fail = lambda path, body: next(replies, None)
    samples = await it.draw()
    told = metrics_since(it.sampler.counters)
    asked = {name.removeprefix("servers/policy/"): value for name, value in told.items()}
    assert (asked["calls"], asked["attempts"], asked["failures"]) == (4, 6, 2)
    assert (asked["http_5xx"], asked["http_429"], asked["timeouts"]) == (1, 1, 0)
    assert asked["prompt_tokens"] == 2 * sum(map(len, PROMPTS))
    assert asked["completion_tokens"] == sum(len(sample.token_ids) for sample in samples)
    hosts = [server.url.removeprefix("http://").removesuffix("/v1") for server in it.servers]
    assert [asked[f"{host}/failures"] for host in hosts] == [2, 0]
    assert sum(asked[f"{host}/attempts"] for host in hosts) == 6


async def test_truncated_json_is_no_reply(bench: Any):
    it = await bench()
    await it.train(1)
    good = await it.draw()
    replies = iter([web.Response(body=b'{"model": "flowri', content_type="application/json")])
    it.server.fail = lambda path, body: next(replies, None)
    assert await it.draw() == good
    it.server.fail = lambda path, body: web.Response(body=b'{"model": "flowri')
    with pytest.raises(RunError, match="not JSON"):
        await it.draw()


async def test_a_request_that_the_server_refuses_is_not_sent_twice(bench: Any):
    it = await bench()
    await it.sampler.refresh(0)
    it.server.fail = lambda path, body: error(400, "maximum context length is 4096 tokens")
    it.server.requests.clear()
    with pytest.raises(RunError, match="maximum context length"):
        await it.draw(n=1)
    assert len(it.server.draws) <= 2


async def test_work_is_shared_and_goes_on_where_one_of_several_is_lost(bench: Any):
    it = await bench(VllmDouble(), VllmDouble(), max_concurrency=1)
    await it.train(1)
    assert len(it.proofs) == 2
    good = await it.draw()
    assert all(server.draws for server in it.servers)
    await it.servers[1].__aexit__(None, None, None)
    assert await it.draw() == good
    await it.train(2)  # one proof is enough
    it.servers[1].restart()
    await it.servers[1].__aenter__()
    it.servers[1].requests.clear()
    await it.train(3)
    while not it.servers[1].draws:  # it rests for a second
        await it.draw(n=1)
        await asyncio.sleep(0.1)
    first = it.servers[1].draws[0]
    paths = [path for path, body in it.servers[1].requests if body is not first]
    assert "load_lora_adapter" in paths and paths.count("completions") == 5  # proven before


async def test_the_metrics_are_of_the_newest_adapter_alone(bench: Any):
    it = await bench(VllmDouble(), VllmDouble())
    await it.train(1, SMALL)
    assert len(it.proofs) == 2 and it.sampler.metrics["policy/proof_decided"] == 1.0
    it.servers[0].fail = lambda path, body: error(503, "busy")
    await it.train(2)  # one proof is enough
    (proof,) = it.proofs.values()
    assert it.sampler.metrics == proof.metrics()


async def test_one_server_of_several_with_another_adapter_ends_the_run(bench: Any):
    it = await bench(VllmDouble(), VllmDouble(ignores=lambda name: "trial" not in name))
    told = await refused(it)
    assert it.servers[1].url in told and "the base model" in told


async def test_no_more_requests_than_allowed_are_in_flight(bench: Any):
    it = await bench(max_concurrency=3)
    it.server.delay = 0.002
    await it.sampler.refresh(0)
    await it.draw(n=6)
    assert it.server.most_at_once == 3


async def test_each_server_has_its_own_bound_and_one_that_refuses_gets_fewer(bench: Any):
    it = await bench(VllmDouble(), VllmDouble(), max_concurrency_per_server=4)
    await it.train(1)
    for server in it.servers:
        server.delay = 0.02
    good = await it.draw(n=8)
    assert [server.most_at_once for server in it.servers] == [4, 4]
    shy = it.servers[0]
    shy.fail = lambda path, body: error(429, "busy") if shy.in_flight >= 2 else None
    assert await it.draw(n=8) == good
    assert 0 < metrics_since(it.sampler.counters)["servers/policy/http_429"] < 16


async def test_sampling_before_anything_was_published_is_refused(bench: Any):
    it = await bench()
    with pytest.raises(RunError, match="refresh comes first"):
        await it.draw()


def test_refusals_are_for_the_user_to_mend() -> None:
    assert issubclass(RunPaused, UserError) and not issubclass(RunPaused, RunError)
