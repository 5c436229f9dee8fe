"""What the requests of each role came to, as metrics since they were last asked for."""

from llm_standin import StandIn, problem

from flowright.config.llm import LlmSection, ModelEntry
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters, metrics_since

ASK = ChatRequest((Message("user", "What is six times seven?"),))
ONE, TWO = "http://gpu-1:8002/v1", "http://me:secret@gpu-2:8002/v1"


def counted(*urls: str, role: str = "judge") -> Counters:
    counters = Counters(urls)
    counts = counters.role(role)
    counts["calls"] += 4
    for url in urls:
        for kind in ("http_429", "http_500", "http_503", "timeout", "malformed"):
            counts.attempt(url)
            counts.failed(url, kind)
    counts["wait_seconds"] += 1.5
    counts.replied(30, 4)
    return counters


def test_a_roles_metrics_and_their_names() -> None:
    assert metrics_since([counted(ONE)]) == {
        "servers/judge/calls": 4,
        "servers/judge/attempts": 5,
        "servers/judge/http_429": 1,
        "servers/judge/http_5xx": 2,
        "servers/judge/timeouts": 1,
        "servers/judge/failures": 5,
        "servers/judge/empty": 0,
        "servers/judge/wait_seconds": 1.5,
        "servers/judge/wire_seconds": 0.0,
        "servers/judge/prompt_tokens": 30,
        "servers/judge/completion_tokens": 4,
    }


def test_several_servers_are_told_apart_without_their_passwords() -> None:
    metrics = metrics_since([counted(ONE, TWO)])
    assert metrics["servers/judge/attempts"] == 10
    each = {name: value for name, value in metrics.items() if "gpu" in name}
    assert each == {
        "servers/judge/gpu-1:8002/attempts": 5,
        "servers/judge/gpu-1:8002/failures": 5,
        "servers/judge/gpu-2:8002/attempts": 5,
        "servers/judge/gpu-2:8002/failures": 5,
    }


def test_owners_of_the_same_role_are_put_together() -> None:
    metrics = metrics_since([counted(ONE), counted(TWO), counted(ONE, role="executor")])
    assert metrics["servers/judge/calls"] == 8
    assert metrics["servers/judge/gpu-2:8002/attempts"] == 5
    assert "servers/executor/gpu-1:8002/attempts" not in metrics, "it has one server"


def test_the_models_of_a_pool_also_count_as_the_executor() -> None:
    counts = metrics_since([counted(ONE, role="executor/a"), counted(ONE, role="executor/b/c")])
    calls = {name: n for name, n in counts.items() if name.endswith("/calls")}
    assert calls == {
        f"servers/executor{name}/calls": n for name, n in [("/a", 4), ("/b/c", 4), ("", 8)]
    }


def test_only_what_is_new_is_told_and_zeros_are_kept() -> None:
    owner = counted(ONE)
    counts = owner.role("judge")
    metrics_since([owner])
    assert metrics_since([owner]) == {}
    counts["calls"] += 1
    counts.attempt(ONE)
    told = metrics_since([owner])
    assert told["servers/judge/calls"] == told["servers/judge/attempts"] == 1
    kinds = ("http_429", "http_5xx", "timeouts", "failures")
    assert [told[f"servers/judge/{kind}"] for kind in kinds] == [0, 0, 0, 0]
    counts.replied(7, 1)  # to a call that began in the step before
    assert metrics_since([owner])["servers/judge/prompt_tokens"] == 7


async def test_roles_that_share_a_client_are_counted_apart() -> None:
    async with StandIn([problem(429, "slow down", "retry-after: 0")]) as server:
        entry = ModelEntry(base_url=server.url, model_name="standin-7b")
        client = ChatClient("big", entry, LlmSection(backoff_seconds=0.01))
        judge = client.as_role("judge")
        assert judge.name == client.name
        assert (await judge.chat(ASK)).text == (await client.chat(ASK)).text == "fine"
        metrics = metrics_since([client.counters])
        await client.aclose()
    names = ("calls", "attempts", "http_429", "failures", "prompt_tokens", "completion_tokens")
    assert [metrics[f"servers/judge/{name}"] for name in names] == [1, 2, 1, 1, 11, 7]
    assert [metrics[f"servers/executor/{name}"] for name in names] == [1, 1, 0, 0, 11, 7]
