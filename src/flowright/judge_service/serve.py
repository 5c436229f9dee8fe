"""Running the judge service: servers opened, the judge built, a port taken, signals obeyed.

``scripts/serve_judge.py`` is its command line.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
import uvloop
from fastapi import FastAPI
from prometheus_client import disable_created_metrics

from flowright.config import SIMULATED, JudgeServerConfig, load_entries
from flowright.judge.build import build_judge
from flowright.judge.remote import RemoteJudge
from flowright.judge.verdict import Judge
from flowright.judge_service.app import SIMULATED_NOTICE, Ready, create_app
from flowright.judge_service.traffic import Traffic
from flowright.llm.client import ChatClient
from flowright.simulation.process import SimulatedServer, listen, quiet_server


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge whose servers are open. ``ready`` is None where no server is needed."""

    judge: Judge
    ready: Ready | None
    simulated: bool


@asynccontextmanager
async def open_judge(config: JudgeServerConfig) -> AsyncIterator[OpenJudge]:
    """Open the judge's models, the embedded server among them if it is named.

    A server that does not answer is no error here: the service starts and says so on /health.
    Raises ConfigError for names that the LLM file lacks.
    """
    async with AsyncExitStack() as stack:
        entries = load_entries(config.llm.file, config.models)
        if SIMULATED in config.models:
            # It knows no tasks: a judge is shown question and reference.
            server = await stack.enter_async_context(SimulatedServer([], config.simulated))
            entries[SIMULATED] = server.entry()
        clients: dict[str, ChatClient] = {}
        for name in sorted(config.models):
            clients[name] = ChatClient(name, entries[name], config.llm)
            stack.push_async_callback(clients[name].aclose)

        backends: list[ChatClient | RemoteJudge] = [*clients.values()]
        service: RemoteJudge | None = None
        if config.judge.service is not None:
            service = RemoteJudge(config.judge.service)
            stack.push_async_callback(service.aclose)
            backends.append(service)

        async def ready() -> Sequence[str]:
            found = await asyncio.gather(*(backend.check() for backend in backends))
            return [problem for problems in found for problem in problems]

        asked = service or clients.get(config.judge.model or "")
        panel = [clients[name] for name in config.judge.panel] if clients else []
        judge = build_judge(config.judge, asked, panel)
        if service is not None:
            await service.check()  # which also tells whether it is simulated
        simulated = SIMULATED in clients or (service is not None and service.simulated)
        yield OpenJudge(judge, ready if backends else None, simulated)


def run(config: JudgeServerConfig, say: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, drained; returns the exit status. ``say`` shows a line.

    Raises UserError when it cannot start.
    """
    disable_created_metrics()  # a time for every series doubles the page, and nobody reads it
    listener = listen(config.server.host, config.server.port)
    with contextlib.closing(listener):

        async def serve() -> None:
            async with open_judge(config) as opened:
                app = create_app(
                    opened.judge, config.server, ready=opened.ready, simulated=opened.simulated
                )
                server = DrainingServer(app, config.server.drain_seconds, say)
                for line in await _greeting(config, opened, listener.getsockname()[1]):
                    say(line)
                await server.serve(sockets=[listener])

        uvloop.run(serve())
    return 0


async def _greeting(config: JudgeServerConfig, opened: OpenJudge, port: int) -> list[str]:
    host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
    lines = [
        f"Judge `{opened.judge.name}` (mode {config.judge.mode}) at http://{host}:{port}, "
        f"its API at http://{host}:{port}/docs"
    ]
    if opened.simulated:
        lines.append(f"{SIMULATED_NOTICE}; its verdicts say nothing about any real judge.")
    if not config.server.api_key:
        lines.append("No API key is set: whoever reaches this address can use it.")
    if opened.ready is not None:
        lines += [f"not ready: {problem}" for problem in await opened.ready()]
    return lines


class DrainingServer(uvicorn.Server):
    """uvicorn, but the first SIGTERM or SIGINT drains and the second does not wait.

    uvicorn itself would close its port at the first signal, so that nobody could be told.
    """

    def __init__(self, app: FastAPI, drain_seconds: float, say: Callable[[str], None]) -> None:
        super().__init__(quiet_server(app))
        self._traffic: Traffic = app.state.traffic
        self._drain_seconds = drain_seconds
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._drains: list[asyncio.Task[None]] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A signal's handler runs between any two instructions: the loop does the work.
        self._loop.call_soon_threadsafe(self._obey, signal.Signals(sig).name)

    def _obey(self, name: str) -> None:
        seconds = 0.0 if self._drains else self._drain_seconds
        self._drains.append(self._loop.create_task(self._finish(name, seconds)))

    async def _finish(self, name: str, seconds: float) -> None:
        self._say(f"{name}: draining, {seconds:g} s at most")
        cancelled = await self._traffic.drain(seconds)
        self._say(f"drained; requests cancelled: {cancelled}")
        self.should_exit = True
