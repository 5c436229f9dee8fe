"""A judge service of somebody else's, as small as can be, that takes only so much at once."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from flowright.config.judge import JudgeRewardSection
from flowright.judging.remote import RemoteJudge


def scored(member: dict[str, Any]) -> dict[str, Any]:
    """All that a small server says: right where the completion holds the answer."""
    right = member.get("answer", "") in member["completion"]
    return {"score": float(right), "request_id": member["request_id"]}


@dataclass
class StandIn:
    """Answers a batch after ``delay``. Without ``room`` for all of its members: ``busy``, with
    ``retry_after``. Beyond ``most`` members or ``most_bytes``: 413. With a member that ``refuses``
    names: that status. ``health`` is what it says of itself; None: no such page."""

    delay: float = 0.0
    room: int = 10**9
    busy: int = 429
    retry_after: str | None = "0"
    most: int = 10**9
    most_bytes: int = 10**9
    refuses: Callable[[dict[str, Any]], int | None] = lambda member: None
    answers: Callable[[list[dict[str, Any]]], Any] = lambda members: [scored(m) for m in members]
    health: dict[str, Any] | None = None
    served: list[list[dict[str, Any]]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    at_once: int = 0
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        members = (await request.json())["requests"]
        refused = [status for m in members if (status := self.refuses(m)) is not None]
        if len(members) > self.most or len(body) > self.most_bytes:
            refused = [413]
        elif self.at_once + len(members) > self.room:
            refused = [self.busy]
        if refused:
            self.statuses.append(refused[0])
            wishes = refused[0] in (429, 503) and self.retry_after is not None
            headers = {"Retry-After": self.retry_after or ""} if wishes else {}
            return web.json_response({"error": "no"}, status=refused[0], headers=headers)
        self.at_once += len(members)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.at_once -= len(members)
        self.served.append(members)
        self.statuses.append(200)
        return web.json_response({"responses": self.answers(members)})

    async def said(self, request: web.Request) -> web.Response:
        return web.json_response(self.health)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/batch_judge", self.answer)
        if self.health is not None:
            app.router.add_get("/health", self.said)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            await runner.cleanup()

    @contextmanager
    def on_a_thread(self) -> Iterator[str]:
        """For callers without a loop, and for processes."""
        ready, loop = threading.Event(), asyncio.new_event_loop()
        ended = asyncio.Event()

        async def serve() -> None:
            async with self.listening():
                ready.set()
                await ended.wait()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:  # cancels what is left
                runner.run(serve())

        thread = threading.Thread(target=run)
        thread.start()
        ready.wait(600)
        try:
            yield self.url
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join(600)

    @asynccontextmanager
    async def asked(self, **options: Any) -> AsyncIterator[RemoteJudge]:
        """A judge that asks it."""
        async with self.listening() as url:
            given = {"judge_url": url, "batch_timeout": 0.01, **options}
            judge = RemoteJudge(JudgeRewardSection.model_validate(given))
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(judge.aclose)
                yield judge
