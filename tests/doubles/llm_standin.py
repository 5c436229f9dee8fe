"""A small HTTP server that misbehaves on order: for tests of the LLM client."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

HANG = object()
DROP = object()
Step = bytes | object


def http(status: int, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", "content-type: application/json", *headers]
    lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def good(text: str | None = "fine", finish: str = "stop", **message: Any) -> bytes:
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "standin-7b",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    return http(200, json.dumps(body).encode())


def problem(status: int, message: str, *headers: str) -> bytes:
    return http(status, json.dumps({"error": {"message": message}}).encode(), *headers)


def stream(*events: Any, done: bool = True) -> bytes:
    """Server-sent events without a length: the body ends with the connection."""
    lines = [f"data: {json.dumps(event)}\r\n\r\n" for event in events]
    lines += ["data: [DONE]\r\n\r\n"] if done else []
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return (head + "".join(lines)).encode()


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    value = {} if content is None else {"content": content}
    return {
        "model": "standin-7b",
        "choices": [{"index": 0, "delta": {**value, **more}, "finish_reason": finish}],
    }


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class StandIn:
    """Answers chat requests with ``script``, one step each, then with ``rest`` for ever.

    ``models`` is the body of ``/v1/models`` (ids), or a whole response. ``window`` is
    their ``max_model_len``, ``delay`` the seconds before each reply; a request beyond ``takes`` at
    once gets a 429 without it. Other paths are unknown.
    """

    script: Iterable[Step] = ()
    rest: Step = field(default_factory=good)
    models: list[str] | bytes = field(default_factory=lambda: ["standin-7b"])
    window: int | None = None
    delay: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    most_at_once: int = 0
    takes: int | None = None
    choose: Callable[[Seen], Step] | None = None
    port: int = 0

    async def __aenter__(self) -> Self:
        self._steps = iter(self.script)
        self._at_once = self.refused = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split()
        headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in head[1:] if h)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(method, path, headers, body)
        if urlsplit(path).path not in ("/v1/models", "/v1/chat/completions"):  # as FastAPI says it
            writer.write(http(404, b'{"detail": "Not Found"}'))
            await writer.drain()
            return True
        if method == "GET":
            models = self.models
            if not isinstance(models, bytes):
                window = {} if self.window is None else {"max_model_len": self.window}
                rows = [{"id": name, "object": "model", **window} for name in models]
                models = http(200, json.dumps({"object": "list", "data": rows}).encode())
            writer.write(models)
            await writer.drain()
            return True
        self.seen.append(seen)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.takes is not None and self._at_once > self.takes:
                self.refused += 1
                writer.write(problem(429, "busy"))
                await writer.drain()
                return True
            step = self.choose(seen) if self.choose else next(self._steps, self.rest)
            if self.delay:
                await asyncio.sleep(self.delay)
            if step is HANG:
                await asyncio.sleep(60)
            if not isinstance(step, bytes):
                return False
            writer.write(step)
            await writer.drain()
            declared = int(step.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or -1)
            return declared == len(step.partition(b"\r\n\r\n")[2])
        finally:
            self._at_once -= 1
