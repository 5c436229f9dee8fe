"""Running the judge service: servers opened, the judge built, a port taken, signals obeyed.

``scripts/serve_judge.py`` is its command line.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType

import uvicorn
import uvloop
from fastapi import FastAPI
from prometheus_client import disable_created_metrics

from flowright.config import JudgeServerConfig
from flowright.judge.build import OpenJudge, open_judge
from flowright.judge_service.app import SIMULATED_NOTICE, Ready, create_app
from flowright.judge_service.traffic import Traffic
from flowright.simulation.opening import open_models
from flowright.simulation.process import listen, quiet_server


@asynccontextmanager
async def open_backend(config: JudgeServerConfig) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    """The configured judge with its models, and what asks whether they can be used.

    A server that does not answer is no error here: the service starts and says so on /health.
    Raises ConfigError for names that the LLM file lacks.
    """
    async with (
        open_models(config.models, config.llm, config.simulated, None, ()) as models,
        open_judge(config.judge, config.judge.model, models.clients) as opened,
    ):

        async def ready() -> list[str]:
            found = await asyncio.gather(models.check(), opened.check())
            return [problem for problems in found for problem in problems]

        await opened.check()  # a service also tells whether it is simulated
        yield opened, ready


def run(config: JudgeServerConfig, say: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, drained; returns the exit status. ``say`` shows a line.

    Raises UserError when it cannot start.
    """
    disable_created_metrics()  # a time for every series doubles the page, and nobody reads it
    listener = listen(config.server.host, config.server.port)
    with contextlib.closing(listener):

        async def serve() -> None:
            async with open_backend(config) as (opened, ready):
                simulated = opened.simulated
                app = create_app(opened.judge, config.server, ready=ready, simulated=simulated)
                server = DrainingServer(app, config.server.drain_seconds, say)
                for line in _greeting(config, opened, listener.getsockname()[1]):
                    say(line)
                for problem in await ready():
                    say(f"not ready: {problem}")
                await server.serve(sockets=[listener])

        uvloop.run(serve())
    return 0


def _greeting(config: JudgeServerConfig, opened: OpenJudge, port: int) -> list[str]:
    host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
    lines = [
        f"Judge `{opened.judge.name}` (mode {config.judge.mode}) at http://{host}:{port}, "
        f"its API at http://{host}:{port}/docs"
    ]
    if opened.simulated:
        lines.append(f"{SIMULATED_NOTICE}; its verdicts say nothing about any real judge.")
    if not config.server.api_key:
        lines.append("No API key is set: whoever reaches this address can use it.")
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
