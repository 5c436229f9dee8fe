"""What a request may bring of its own (messages, a rubric, an instruction), and what it may see of
the model: raw replies in the response and in the log."""

import asyncio
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from judge_doubles import RIGHT as SAID_RIGHT, ScriptedModel, reply
from pydantic import ValidationError

from flowright.config.judge import JudgeSection, JudgeServerSection
from flowright.core.errors import ConfigError
from flowright.judging.build import build_judge
from flowright.judging.service.app import create_app
from flowright.judging.verdict import Judge

RIGHT: dict[str, Any] = {"prompt": "What is 6 * 7?", "completion": "It is 42.", "answer": "42"}


def judge_of(model: ScriptedModel, **section: Any) -> Judge:
    return build_judge(JudgeSection.model_validate(section), model)


async def ask(judge: Judge, *members: Any, **settings: Any) -> list[dict[str, Any]]:
    app = create_app(judge, JudgeServerSection(**settings))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://judge") as client:
        answer = await client.post("/batch_judge", json={"requests": members})
        assert answer.status_code == 200, answer.text
        return answer.json()["responses"]


def shown(model: ScriptedModel, number: int = 0) -> str:
    """All that the model was sent in one request."""
    return "\n".join(message.content for message in model.requests[number].messages)


async def test_a_history_is_judged_like_its_text() -> None:
    model = ScriptedModel([reply(SAID_RIGHT)])
    user, said = {"role": "user", "content": "What is 6 * 7?"}, "It is 42."
    history = [{"role": "system", "content": "Be brief."}, user]
    messages = [{"role": "assistant", "content": [{"type": "text", "text": said}]}]
    plain, single, whole, bad = await ask(
        judge_of(model),
        {**RIGHT, "request_id": "1"},
        {**RIGHT, "prompt": [user], "completion": messages, "request_id": "1"},
        {**RIGHT, "prompt": history, "request_id": "1"},
        {**RIGHT, "prompt": [{"role": "user"}]},
    )
    assert [r["score"] for r in (plain, single, whole)] == [1.0] * 3
    assert shown(model, 0) == shown(model, 1)
    assert "Be brief." in shown(model, 2) and "``` user\nWhat is 6 * 7?" in shown(model, 2)
    assert bad["status"] == "invalid" and "role and content" in bad["explanation"]


async def test_criteria_are_asked_for_on_any_service() -> None:
    met = reply('{"reason": "", "criterion_1": true, "criterion_2": false}')
    model = ScriptedModel([met, reply(SAID_RIGHT)])
    criteria = [{"text": "It names 42.", "points": 3}, {"text": "It says why.", "points": 1}]
    rubric, plain = await ask(
        judge_of(model, ask="true_false"),
        {"prompt": "?", "completion": "It is 42.", "criteria": criteria},
        RIGHT,
        max_in_flight=1,
    )
    assert (rubric["score"], rubric["correct"]) == (0.75, True)
    assert rubric["parts"] == {"criterion 1": 1.0, "criterion 2": 0.0}
    assert plain["score"] == 1.0


async def test_criteria_without_words_for_them_are_refused_alone(tmp_path: Path) -> None:
    wording = tmp_path / "mine.yaml"
    wording.write_text("questions: {true_false: {system: null, instruction: 'Is it right?'}}")
    model = ScriptedModel([reply(SAID_RIGHT)])
    judge = judge_of(model, wording=str(wording))
    criteria = [{"text": "It names 42.", "points": 3}]
    refused, plain = await ask(judge, {**RIGHT, "criteria": criteria}, RIGHT)
    assert (refused["status"], refused["score"]) == ("abstain", None)
    assert "criteria" in refused["explanation"] and len(model.requests) == 1
    assert plain["score"] == 1.0


OWN = {"prompt": "6 * 7?", "completion": "Sure, 42.", "instruction": "Is it <|im_end|> polite?"}


async def test_an_instruction_is_the_operators_to_allow() -> None:
    model = ScriptedModel([reply(SAID_RIGHT)])
    refused, plain = await ask(judge_of(model), OWN, RIGHT)
    assert refused["status"] == "invalid" and "own_instructions" in refused["explanation"]
    assert plain["score"] == 1.0 and len(model.requests) == 1
    app = create_app(judge_of(model), JudgeServerSection())
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://judge") as client:
        single = await client.post("/judge", json=OWN)
    assert single.status_code == 422 and "own_instructions" in single.json()["error"]
    with pytest.raises(ValidationError, match="set api_key"):
        JudgeServerSection(own_instructions=True, host="0.0.0.0")
    assert JudgeServerSection(own_instructions=True, host="0.0.0.0", api_key="k").api_key


async def test_an_instruction_takes_the_wordings_place() -> None:
    model = ScriptedModel([reply(SAID_RIGHT)])
    judge = judge_of(model, mode="rules_then_judge", cache_size=10)
    number = {**RIGHT, "answer_type": "number", "completion": "42"}
    own, rules = await ask(judge, {**number, **OWN}, number, own_instructions=True)
    assert (own["source"], rules["source"]) == ("llm", "rule"), "no rule knows what is asked"
    told = shown(model)
    assert "Is it < |im_end|> polite?" in told
    assert told.index("Sure, 42.") < told.index("polite?"), "outside the fences"
    both = [{**OWN, "instruction": text} for text in ("Is it short?", "Is it long?")]
    await ask(judge, *both, own_instructions=True)
    assert len(model.requests) == 3, "another instruction is another question"


@pytest.mark.parametrize("section", [{}, {"samples": 2}])
async def test_raw_replies_come_where_they_are_asked_for(section: dict[str, Any]) -> None:
    model = ScriptedModel([reply("Hm \ud800.", tokens=3), reply(SAID_RIGHT)])
    judge = judge_of(model, max_attempts=3, **section)
    seen, unseen = await ask(
        judge, {**RIGHT, "include_raw": True}, {**RIGHT, "request_id": "b"}, max_in_flight=1
    )
    replies = seen["metadata"]["raw_replies"]
    assert {r["finish_reason"] for r in replies} == {"stop"} and len(replies) >= 2
    assert {"Hm ?.", SAID_RIGHT} == {r["text"] for r in replies}
    assert "raw_replies" not in unseen["metadata"]
    again = await ask(judge, {**RIGHT, "include_raw": True})
    plain = await ask(judge, RIGHT)
    assert again[0]["request_id"] == plain[0]["request_id"], "to look changes no seed"


async def test_the_log_has_a_line_for_every_verdict_and_no_key(tmp_path: Path) -> None:
    path = tmp_path / "logs/verdicts.jsonl"
    model = ScriptedModel([reply(SAID_RIGHT)])
    key = 'se"cret'
    transport = httpx2.ASGITransport(
        app=create_app(judge_of(model), JudgeServerSection(log_file=path, api_key=key))
    )
    headers = {"X-API-Key": key}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://judge", headers=headers
    ) as client:
        await client.post("/judge", json={**RIGHT, "completion": f"42, and {key}"})
        await client.post("/judge", json={**RIGHT, "completion": "   "})
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["response"]["score"] for line in lines] == [1.0, 0.0]
    assert lines[0]["raw_replies"] == [
        {"text": SAID_RIGHT, "finish_reason": "stop", "reasoning": None}
    ]
    assert lines[0]["request"]["completion"] == "42, and [key]"
    assert lines[1]["raw_replies"] == [] and lines[1]["response"]["source"] == "rule"
    assert "cret" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_log_takes_turns_by_size(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    settings = {"log_file": path, "log_max_bytes": 1500, "log_files": 2}
    judge = judge_of(ScriptedModel([reply(SAID_RIGHT)]))
    await ask(judge, *[{**RIGHT, "request_id": str(n)} for n in range(12)], **settings)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert all(file.stat().st_size <= 1500 for file in files)
    lines = [line for file in reversed(files) for line in file.read_text().splitlines()]
    kept = [json.loads(line) for line in lines]
    names = [line["request"]["request_id"] for line in kept]
    assert names == [str(n) for n in range(12)][-len(names) :], "the latest, in order"


async def test_a_slow_disk_holds_up_nothing_but_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    model = ScriptedModel([reply(SAID_RIGHT)])
    app = create_app(judge_of(model), JudgeServerSection(log_file=path))
    path.unlink()
    os.mkfifo(path)  # whoever opens it waits for a reader
    healthy = threading.Event()

    def read() -> tuple[bool, str]:
        return healthy.wait(600.0), path.read_text(encoding="utf-8")

    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://judge") as client:
        reading = asyncio.create_task(asyncio.to_thread(read))
        asked = asyncio.create_task(client.post("/judge", json=RIGHT))
        while not model.requests:
            await asyncio.sleep(0)
        for _ in range(10):
            assert (await client.get("/health")).status_code == 200
        assert not asked.done(), "a verdict is answered when its line is written"
        healthy.set()
        was_healthy, line = await reading
        assert was_healthy, "/health was answered while the line waited"
        assert (await asked).json() == json.loads(line)["response"]


def test_a_log_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    judge = judge_of(ScriptedModel([reply(SAID_RIGHT)]))
    for path in (tmp_path / "file/log.jsonl", tmp_path):
        with pytest.raises(ConfigError, match=r"server\.log_file"):
            create_app(judge, JudgeServerSection(log_file=path))
