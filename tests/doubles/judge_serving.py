"""A service's app behind a real socket, for tests."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.applications import Starlette

from flowright.core.net import DrainingServer, listen


@asynccontextmanager
async def served(
    app: Starlette, drain_seconds: float = 5.0, port: int = 0
) -> AsyncIterator[tuple[str, list[str]]]:
    """The app behind a real socket; its URL and what the server says."""
    said: list[str] = []
    listener = listen("127.0.0.1", port)
    server = DrainingServer(app, app.state.traffic.drain, drain_seconds, said.append)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", said
    finally:
        server.should_exit = True
        await serving
        listener.close()


@contextmanager
def served_beside(app: Starlette) -> Iterator[str]:
    """The app behind a real socket, on a thread beside callers without a loop; its URL."""
    ready, done = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with served(app) as (url, _):
            urls.append(url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(600)
        yield urls[0]
    finally:
        done.set()
        thread.join()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)
