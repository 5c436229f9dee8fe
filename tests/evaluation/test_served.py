"""Responses of a served model: what is sent, kept, missing, and asked again."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from llm_standin import HANG, Seen, StandIn, Step, good, problem
from pyarrow import parquet

from flowright.config.llm import LlmSection, ModelEntry
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import ConfigError
from flowright.evaluation.responses.generate import Generated, GenerationRequest, generate
from flowright.evaluation.responses.response_models import (
    DrawSettings,
    ModelName,
    entry_of_environment,
    section_of_environment,
)


def file_of(tmp_path: Path, server: StandIn, count: int) -> ModelName:
    entry = {"base_url": server.url, "model_name": "standin-7b"}
    models = tmp_path / "llm.yaml"
    models.write_text(json.dumps({"models": {"big": entry}}))
    lines = [{"prompt": f"p{n}"} for n in range(count)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ModelName(server="big", llm_file=models)


async def run(tmp_path: Path, named: ModelName, **drawing: Any) -> Generated:
    how = DrawSettings(**{"samples": 2, "temperature": 0.7, "max_tokens": 9, **drawing})
    asked = GenerationRequest(named, how, tmp_path / "in.jsonl", tmp_path / "out.parquet")
    return await generate(asked, lambda done, total: lambda: None)


def responses(tmp_path: Path) -> list[list[str | None]]:
    return parquet.read_table(tmp_path / "out.parquet")["responses"].to_pylist()


def echo(seen: Seen) -> Step:
    return good(f"to {seen.json['messages'][0]['content']}")


async def test_a_sample_is_a_request_with_a_seed_of_its_own(tmp_path: Path):
    async with StandIn(choose=echo) as server:
        await run(tmp_path, file_of(tmp_path, server, 2), top_k=20, top_p=0.8)
        sent = [seen.json for seen in server.seen]
        assert responses(tmp_path) == [["to p0", "to p0"], ["to p1", "to p1"]]
        assert len({body["seed"] for body in sent}) == 4
        assert {(b["top_k"], b["top_p"], b["temperature"], b["max_tokens"]) for b in sent} == {
            (20, 0.8, 0.7, 9)
        }
        server.seen.clear()
        await run(tmp_path, file_of(tmp_path, server, 2), top_k=20, top_p=0.8)
        assert not server.seen, "all of it was there"
        (tmp_path / "out.answers.jsonl").unlink()
        await run(tmp_path, file_of(tmp_path, server, 1), samples=1, temperature=0.0)
        assert not {"seed", "top_k"} & server.seen[0].json.keys()


async def test_a_failure_is_null_and_an_empty_answer_is_empty(tmp_path: Path):
    def choose(seen: Seen) -> Step:
        said = seen.json["messages"][0]["content"]
        return {"p1": problem(400, "too long"), "p2": good("", "length")}.get(said, good("yes"))

    async with StandIn(choose=choose) as server:
        named = file_of(tmp_path, server, 4)
        done = await run(tmp_path, named)
        assert responses(tmp_path) == [["yes"] * 2, [None] * 2, ["", ""], ["yes"] * 2]
        assert done.missing == {"refused": 2}
        assert any("2 are missing (null): 2 refused" in line for line in done.lines())
        server.choose, before = echo, len(server.seen)
        await run(tmp_path, named)
        assert [seen.json["messages"][0]["content"] for seen in server.seen[before:]] == ["p1"] * 2
        assert responses(tmp_path)[1] == ["to p1"] * 2


async def test_a_server_that_refuses_everything_ends_it(tmp_path: Path):
    async with StandIn(rest=problem(400, "unknown field top_k")) as server:
        named = file_of(tmp_path, server, 2)
        with pytest.raises(ServerDown, match="needs --top-k -1"):
            await run(tmp_path, named, top_k=20)
        assert responses(tmp_path) == [[None] * 2] * 2
        server.rest = problem(401, "wrong key")
        with pytest.raises(ServerDown, match="401"):
            await run(tmp_path, named, top_k=20)


async def test_what_was_said_before_an_interruption_is_written(tmp_path: Path):
    def choose(seen: Seen) -> Step:
        return HANG if seen.json["messages"][0]["content"] == "p2" else echo(seen)

    async with StandIn(choose=choose) as server:
        named = file_of(tmp_path, server, 3)
        task = asyncio.create_task(run(tmp_path, named))
        while len(server.seen) < 6 or not _kept(tmp_path, 4):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert responses(tmp_path) == [["to p0"] * 2, ["to p1"] * 2, [None] * 2]


def _kept(tmp_path: Path, count: int) -> bool:
    ledger = tmp_path / "out.answers.jsonl"
    return ledger.exists() and len(ledger.read_text().splitlines()) > count


def test_the_environment_names_servers_and_keys(monkeypatch: pytest.MonkeyPatch):
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY", "DASHSCOPE_API_KEY", "VLLM_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_BASE_URL", "")
    assert entry_of_environment() is None
    monkeypatch.setenv("VLLM_BASE_URL", "http://a/v1, http://b/v1")
    monkeypatch.delenv("VLLM_MODEL", raising=False)
    with pytest.raises(ConfigError, match="VLLM_MODEL"):
        entry_of_environment()
    monkeypatch.setenv("VLLM_MODEL", "m")
    monkeypatch.setenv("DASHSCOPE_API_KEY", "k1,k2")
    entry = entry_of_environment()
    assert entry is not None
    assert (entry.base_urls, entry.api_keys) == (("http://a/v1", "http://b/v1"), ("k1", "k2"))
    assert not entry.streams
    for region in ("dashscope", "dashscope-intl", "dashscope-us", "cn-hongkong.dashscope"):
        url = f"https://{region}.aliyuncs.com/compatible-mode/v1"
        monkeypatch.setenv("VLLM_BASE_URL", url)
        monkeypatch.delenv("VLLM_STREAM", raising=False)
        streaming = entry_of_environment()
        assert streaming is not None and streaming.streams, region
        assert ModelEntry(base_url=url, model_name="qwq-plus").streams
        assert not ModelEntry(base_url=url, model_name="qwq-plus", stream=False).streams
        monkeypatch.setenv("VLLM_STREAM", "false")
        whole = entry_of_environment()
        assert whole is not None and not whole.streams
    assert not ModelEntry(base_url="http://a/aliyuncs.com/compatible-mode", model_name="m").streams
    monkeypatch.setenv("VLLM_TIMEOUT", "600")
    section = section_of_environment(LlmSection())
    assert (section.request_seconds, section.deadline_seconds) == (600.0, 600.0)
    monkeypatch.setenv("VLLM_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="VLLM_TIMEOUT=soon"):
        section_of_environment(LlmSection())
