"""The embedded server as a process: protocol, determinism, faults, its start and its end."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from command_lines import command
from judge_doubles import question

from flowright.config.llm import FaultSection, LlmSection, SimulatedSection
from flowright.core.errors import FailureError, UserError
from flowright.data.task import Problem, write_tasks
from flowright.judging.verdict import JudgeQuery
from flowright.llm.chat import ChatReply, ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.simulation.process import SimulatedServer

ROOT = Path(__file__).parents[2]
TASKS = [
    Problem(
        f"sum/{n}",
        "math",
        "sums",
        f"What do {n} lorries with {3 * n + 4} tons of gravel each carry together, in tons?",
        str(n * (3 * n + 4)),
    )
    for n in range(2, 62)
]
CODE = Problem(
    "code/double",
    "code",
    "doubles",
    'def double_all(xs: list[int]) -> list[int]:\n    """Return every number twice as large."""\n',
    "def double_all(xs):\n    return [2 * x for x in xs]\n",
    entry_point="double_all",
    hidden_tests=("assert double_all([1, 2]) == [2, 4]",),
)
FAST = LlmSection(backoff_seconds=0.01, attempts=8)


def ask(task: Problem, seed: int | None = 0, temperature: float = 0.7) -> ChatRequest:
    prompt = f"{task.problem}\nThink step by step."
    return ChatRequest((Message("user", prompt),), temperature=temperature, seed=seed)


def to_judge(task: Problem, answer: str) -> ChatRequest:
    query = JudgeQuery(task.problem, answer, task.reference, "math_expression")
    return ChatRequest(question(query).messages("text"), temperature=0.0)


RIGHT = to_judge(TASKS[5], TASKS[5].reference)


async def all_replies(
    server: SimulatedServer, requests: list[ChatRequest], section: LlmSection = FAST
) -> tuple[list[ChatReply], ChatClient]:
    client = ChatClient("simulated", server.entry(), section)
    try:
        return list(await asyncio.gather(*(client.chat(r) for r in requests))), client
    finally:
        await client.aclose()


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer([*TASKS, CODE]) as running:
        yield running


# Protocol.


async def test_our_client_talks_to_it(server: SimulatedServer):
    client = ChatClient("simulated", server.entry(), FAST)
    assert await client.check() == []
    reply = await client.chat(ask(TASKS[0]))
    await client.aclose()
    assert reply.model == "simulated"
    assert reply.finish_reason == "stop"
    assert reply.usage.prompt_tokens == -(-len(ask(TASKS[0]).messages[0].content) // 4)
    assert reply.usage.completion_tokens == -(-len(reply.text) // 4)


async def test_streamed_and_whole_replies_are_the_same(server: SimulatedServer):
    requests = [ask(task) for task in TASKS[:10]]
    whole, _ = await all_replies(server, requests)
    client = ChatClient("s", server.entry().model_copy(update={"stream": True}), FAST)
    streamed = [await client.chat(request) for request in requests]
    await client.aclose()
    assert [r.text for r in streamed] == [r.text for r in whole]
    assert [r.usage for r in streamed] == [r.usage for r in whole]


def plain_client(url: str) -> openai.OpenAI:
    """What anybody would write, but for proxies of this machine."""
    return openai.OpenAI(
        base_url=url, api_key="any", max_retries=0, http_client=httpx2.Client(trust_env=False)
    )


def test_the_openai_client_talks_to_it(server: SimulatedServer):
    with plain_client(server.base_url) as client:
        assert [model.id for model in client.models.list()] == ["simulated"]
        messages = [{"role": "user", "content": [{"type": "text", "text": TASKS[3].problem}]}]
        reply = client.chat.completions.create(
            model="simulated",
            messages=messages,  # pyright: ignore[reportArgumentType]
            n=5,
            temperature=1.0,
        )
        assert reply.system_fingerprint == "simulated"
        assert [choice.index for choice in reply.choices] == [0, 1, 2, 3, 4]
        assert reply.usage is not None
        assert reply.usage.total_tokens == (
            reply.usage.prompt_tokens + reply.usage.completion_tokens
        )
        chunks = client.chat.completions.create(
            model="simulated",
            messages=messages,  # pyright: ignore[reportArgumentType]
            stream=True,
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text
        formed = client.chat.completions.create(
            model="simulated",
            messages=messages,  # pyright: ignore[reportArgumentType]
            response_format={"type": "json_object"},
        )
        assert list(json.loads(formed.choices[0].message.content or "")) == ["answer"]
        short = client.chat.completions.create(
            model="simulated",
            messages=[{"role": "user", "content": f"{TASKS[3].problem} Think step by step."}],
            max_tokens=5,
        )
        assert short.choices[0].finish_reason == "length"
        assert len(short.choices[0].message.content or "") == 20


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_ends_before_its_stop_text(server: SimulatedServer, stream: bool) -> None:
    """Also where the pieces of a stream cut the stop text in two."""
    prompt = f"{TASKS[3].problem}\nThink step by step."

    def said(**options: object) -> tuple[str, str | None]:
        body: Any = {"model": "simulated", "messages": [{"role": "user", "content": prompt}]}
        with plain_client(server.base_url) as client:
            reply = client.chat.completions.create(temperature=0, stream=stream, **body, **options)
            if not stream:
                return reply.choices[0].message.content or "", reply.choices[0].finish_reason
            chunks = [chunk.choices[0] for chunk in reply if chunk.choices]
            return "".join(c.delta.content or "" for c in chunks), chunks[-1].finish_reason

    whole, _ = said()
    across = whole[60:70]  # pieces have 64 characters
    at = whole.index(across)
    assert said(stop=across) == (whole[:at], "stop")
    assert said(stop=["never said", whole[80:90], across]) == (whole[:at], "stop")
    assert said(stop="never said") == (whole, "stop")
    assert said(stop=across, max_tokens=2) == (whole[:8], "length")
    assert said(stop=whole[0]) == ("", "stop")


@pytest.mark.parametrize(
    ("schema", "right"),
    [
        ({"type": "boolean"}, True),
        ({"type": "object", "properties": {"review": {"type": "object", "properties": {
            "verdict": {"type": "boolean"}}, "required": ["verdict"]}}},
         {"review": {"verdict": True}}),
        ({"enum": [False, True]}, True),
        ({"type": "object", "properties": {"verdict": {"enum": ["no", "yes"]}}},
         {"verdict": "yes"}),
        ({"type": "object", "properties": {"grade": {"anyOf": [{"type": "null"}, {
            "type": "integer", "minimum": 7, "maximum": 7}]}}}, {"grade": 7}),
    ],
)  # fmt: skip
def test_a_verdict_in_any_schema(server: SimulatedServer, schema: Any, right: Any) -> None:
    messages = [{"role": m.role, "content": m.content} for m in RIGHT.messages]
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}}
    with plain_client(server.base_url) as client:
        reply = client.chat.completions.create(
            model="simulated",
            messages=messages,  # pyright: ignore[reportArgumentType]
            response_format=wanted,
            temperature=0,
        )
    assert json.loads(reply.choices[0].message.content or "") == right


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b'{"model": "gpt-4", "messages": []}', 404, "'gpt-4' does not exist"),
        (b'{"model": "simulated", "messages": []}', 400, "non-empty list"),
        (b'{"model": "simulated", "messages": [1]}', 400, "messages[0]"),
        (b'{"model": "simulated", "messages": [{"role": "user", "content": 3}]}', 400, "text"),
        (
            b'{"model": "simulated", "n": 0, "messages": [{"role": "user", "content": "x"}]}',
            400,
            "n: must be between 1",
        ),
        (
            b'{"model": "simulated", "stop": [""], "messages": [{"role": "user", "content": "x"}]}',
            400,
            "stop: must be a text that is not empty",
        ),
        (
            b'{"model": "simulated", "logprobs": true,'
            b' "messages": [{"role": "user", "content": "x"}]}',
            400,
            "logprobs: this server has none",
        ),
        (
            b'{"model": "simulated", "messages": [{"role": "user", "content": "x"}],'
            b' "response_format": {"type": "json_schema", "json_schema": {"schema": {"if": {}}}}}',
            400,
            "response_format: the schema cannot be filled: if",
        ),
        (
            b'{"model": "simulated", "seed": "a", "messages": [{"role": "user", "content": "x"}]}',
            400,
            "seed: must be an integer",
        ),
    ],
)
def test_bad_requests_are_told_so(server: SimulatedServer, body: bytes, status: int, message: str):
    with httpx2.Client(trust_env=False) as client:
        reply = client.post(f"{server.base_url}/chat/completions", content=body)
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_health_and_unknown_paths(server: SimulatedServer):
    root = server.base_url.removesuffix("/v1")
    with httpx2.Client(trust_env=False) as client:
        health = client.get(f"{root}/health").json()
        assert health == {"status": "ok", "simulated": True, "tasks": len(TASKS) + 1}
        assert client.get(f"{root}/v1/embeddings").status_code == 404


async def test_it_judges(server: SimulatedServer):
    requests = [to_judge(task, task.reference) for task in TASKS]
    requests += [to_judge(task, "one ton") for task in TASKS]
    replies, _ = await all_replies(server, requests)
    verdicts = [reply.text.splitlines()[-1] == "Verdict: True" for reply in replies]
    assert sum(verdicts[:60]) >= 52  # 0.97 of 60, binomial
    assert sum(verdicts[60:]) <= 8


async def test_wrong_code_is_there(server: SimulatedServer):
    request = ChatRequest((Message("user", f"Implement the function.\n{CODE.question}"),))
    requests = [ChatRequest(request.messages, temperature=1.0, seed=s) for s in range(40)]
    replies, _ = await all_replies(server, requests)
    right = [CODE.reference.strip() in reply.text for reply in replies]
    assert 0 < sum(right) < 40
    assert all("```python" in reply.text for reply in replies)


# Determinism.


async def test_replies_do_not_depend_on_order_or_on_the_process(server: SimulatedServer):
    requests = [ask(task, seed) for task in TASKS[:20] for seed in range(3)]
    requests += [to_judge(task, "12") for task in TASKS[:20]]
    first, _ = await all_replies(server, requests)
    shuffled = list(range(len(requests)))
    random.Random(0).shuffle(shuffled)
    async with SimulatedServer(list(reversed(TASKS))) as other:
        again, _ = await all_replies(other, [requests[i] for i in shuffled])
    assert [first[i].text for i in shuffled] == [reply.text for reply in again]


async def test_temperature_zero_ignores_the_seed_and_others_do_not(server: SimulatedServer):
    greedy, _ = await all_replies(
        server, [ask(task, seed, 0.0) for task in TASKS for seed in (1, 2)]
    )
    assert [r.text for r in greedy[::2]] == [r.text for r in greedy[1::2]]
    sampled, _ = await all_replies(server, [ask(task, seed) for task in TASKS for seed in (1, 2)])
    assert [r.text for r in sampled[::2]] != [r.text for r in sampled[1::2]]


# Faults.


async def test_injected_faults_are_survived_and_change_nothing(server: SimulatedServer):
    requests = [ask(task, seed) for task in TASKS for seed in range(2)]
    faults = FaultSection(error_500=0.05, error_429=0.03, malformed=0.05)
    expected, _ = await all_replies(server, requests)
    async with SimulatedServer(TASKS, SimulatedSection(faults=faults)) as troubled:
        replies, client = await all_replies(troubled, requests)
        again, _ = await all_replies(troubled, requests)  # the same requests, later occurrences
    assert [r.text for r in replies] == [r.text for r in expected] == [r.text for r in again]
    counts = client.counters.role("executor")
    kinds = [counts[kind] for kind in ("http_500", "http_429", "malformed")]
    assert all(kinds) and sum(kinds) == counts["failures"]
    assert counts["failures"] / counts["attempts"] == pytest.approx(0.13, abs=0.07)


async def test_empty_and_truncated_contents_are_replies():
    faults = FaultSection(empty=0.3, truncate=0.3)
    async with SimulatedServer(TASKS, SimulatedSection(faults=faults)) as server:
        replies, client = await all_replies(
            server, [ask(task, s) for task in TASKS for s in (0, 1)]
        )
    empty = [reply for reply in replies if not reply.text]
    cut = [reply for reply in replies if reply.text and reply.finish_reason == "length"]
    assert client.counters.role("executor")["failures"] == 0
    assert all(reply.finish_reason == "length" and reply.reasoning for reply in empty)
    assert len(empty) / 120 == pytest.approx(0.3, abs=0.17)
    assert len(cut) / 120 == pytest.approx(0.3, abs=0.17)


async def test_faults_can_be_for_the_judge_alone():
    faults = FaultSection(error_500=1.0, roles="judge")
    once = LlmSection(attempts=1)
    async with SimulatedServer(TASKS, SimulatedSection(faults=faults)) as server:
        replies, _ = await all_replies(server, [ask(TASKS[0])], once)
        assert replies[0].text
        with pytest.raises(FailureError, match="injected fault"):
            await all_replies(server, [to_judge(TASKS[0], "5")], once)


async def test_a_hang_lasts_until_the_client_gives_up():
    section = LlmSection(request_seconds=0.2, backoff_seconds=0.01, attempts=2)
    faults = FaultSection(hang=1.0)
    async with SimulatedServer(TASKS, SimulatedSection(faults=faults)) as server:
        with pytest.raises(FailureError, match="2 x timeout"):
            await all_replies(server, [ask(TASKS[0])], section)


async def test_latency_has_the_mean_that_was_asked_for():
    async with SimulatedServer(TASKS, SimulatedSection(latency_ms=60)) as server:
        replies, _ = await all_replies(server, [ask(task) for task in TASKS])
    assert sum(reply.seconds for reply in replies) / len(replies) > 0.03
    assert len({round(reply.seconds, 3) for reply in replies}) > 10


# Starting and ending.


def test_a_mistake_in_the_settings_is_one_line():
    with (
        pytest.raises(UserError, match="did you mean verbosity"),
        SimulatedServer(TASKS, SimulatedSection(judge_biases={"verbosit": 1.0})),
    ):
        pass


def test_a_missing_task_file_is_one_line(tmp_path: Path):
    with (
        pytest.raises(UserError, match="no such file"),
        SimulatedServer(tmp_path / "absent.jsonl"),
    ):
        pass


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def test_it_ends_with_its_context():
    with SimulatedServer(TASKS[:2]) as server:
        pid = server.pid
        assert pid is not None
        assert is_running(pid)
    assert not is_running(pid)


PARENT = """
import os, sys, time
from pathlib import Path
from flowright.simulation.process import SimulatedServer
with SimulatedServer(Path(sys.argv[1])) as server:
    holder = 0
    if sys.argv[2] == "forked":  # a fork that keeps the pipe to the server open
        holder = os.fork()
        if holder == 0:
            os.close(1)
            time.sleep(60)
            os._exit(0)
    print(server.pid, holder, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("forked", ["alone", "forked"])
def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path, forked: str):
    tasks = tmp_path / "tasks.jsonl"
    write_tasks(tasks, [*TASKS[:2], CODE])
    command = [sys.executable, "-c", PARENT, str(tasks), forked]
    holder = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            server, holder = map(int, parent.stdout.readline().split())
            assert is_running(server)
        finally:
            parent.kill()
        assert_ends(server)
    if holder:
        os.kill(holder, signal.SIGKILL)
        assert_ends(holder)


# The script.


def test_the_script_serves_any_openai_client(tmp_path: Path):
    tasks = tmp_path / "tasks.jsonl"
    write_tasks(tasks, TASKS)
    words = [sys.executable, str(ROOT / "scripts/serve_simulated_llm.py")]
    words += ["--tasks", str(tasks), "--port", "0", "--fault", "error_429=0.01"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"http://\S+/v1", first)
            assert found, first
            assert "60 tasks" in first
            with plain_client(found[0]) as client:
                reply = client.chat.completions.create(
                    model="simulated",
                    messages=[{"role": "user", "content": TASKS[0].problem}],
                )
            assert reply.system_fingerprint == "simulated"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(600) in (0, 130)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no tasks: give --tasks FILE"),
        (["--tasks", "absent.jsonl"], "absent.jsonl: no such file"),
        (["--tasks", "absent.jsonl", "--port", "99999"], "port 99999: ports go to 65535"),
        (["--tasks", "x", "--fault", "emty=1"], "did you mean empty"),
        (["--tasks", "x", "--bias", "position=much"], "name=number"),
    ],
)
def test_the_command_explains_mistakes(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert command("simulate")(arguments) == 2
    assert message in capsys.readouterr().err
