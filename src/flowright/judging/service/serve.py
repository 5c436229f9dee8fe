"""Running the judge service: servers opened, the judge built, a port taken, signals obeyed.

``scripts/serve_judge.py`` is its command line.
"""

import asyncio
import contextlib
import inspect
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

import uvicorn
import uvloop
from prometheus_client import disable_created_metrics
from starlette.applications import Starlette

from flowright.config.judge import JudgeServerSection
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import ConfigError
from flowright.core.plugins import load
from flowright.judging.build import OpenJudge, open_judge
from flowright.judging.payloads import read_verdict, shown_answer_type
from flowright.judging.reward.runtime import plain
from flowright.judging.service.app import SIMULATED_NOTICE, Ready, create_app
from flowright.judging.service.traffic import Traffic
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.simulation.opening import open_models
from flowright.simulation.process import listen, quiet_server

KIND = "judge model"


class JudgeModel(Protocol):
    """``score(prompt, completion, answer)``, or with ``answer_type`` as a fourth parameter, which
    is ``NUMBER``, ``MATH_EXPRESSIONS``, ``MULTIPLE_CHOICE``, ``CODE``, ``SPAN`` or ``FREE_TEXT``.

    It returns a score from 0 to 1, or a mapping with a ``score`` (None: it cannot tell) and, if it
    likes, ``explanation``, ``detailed_scores`` and ``confidence``. It may be a coroutine method.
    """

    @property
    def score(self) -> Callable[..., Any]: ...


class OwnModelJudge:
    """Asks the model: a plain method on ``threads`` threads of its own, as many at a time; a
    coroutine method on the loop. What the model raises goes to the service, which answers it."""

    def __init__(self, model: JudgeModel, threads: int = 1) -> None:
        self.name = type(model).__name__
        score: Callable[..., Any] | None = getattr(model, "score", None)
        if not callable(score):
            raise ConfigError(f"{KIND} {self.name}: it has no method score")
        self._score = score
        self._takes_type = _takes_type(score)
        self.is_async = inspect.iscoroutinefunction(score)
        self._threads = None if self.is_async else ThreadPoolExecutor(threads, "judge-model")

    async def judge(self, query: JudgeQuery) -> Verdict:
        given = (query.question, query.answer, query.reference)
        if self._takes_type:
            given = (*given, shown_answer_type(query.answer_type))
        if self._threads is None:
            told = await self._score(*given)
        else:
            loop = asyncio.get_running_loop()
            told = await loop.run_in_executor(self._threads, self._score, *given)
        return replace(read_verdict(plain(told), self.name), attempts=1)


def own_model(path: str, arguments: Mapping[str, Any], threads: int) -> OwnModelJudge:
    """The judge of the class at an import path, made with these arguments. Raises ConfigError."""
    found: Any = load(path, KIND)
    if not callable(found):
        raise ConfigError(f"{KIND} {path}: not a class")
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"server.judge_arguments: {path}: {error}") from None
    model: Any = found(**arguments)
    return OwnModelJudge(model, threads)


def served_settings(judge: OwnModelJudge, settings: JudgeServerSection) -> JudgeServerSection:
    """The settings with as many verdicts at once as the model really makes."""
    if judge.is_async:
        return settings
    at_once = min(settings.max_in_flight, settings.judge_threads)
    room = settings.max_in_flight + settings.max_queue
    return settings.model_copy(update={"max_in_flight": at_once, "max_queue": room - at_once})


def _takes_type(score: Callable[..., Any]) -> bool:
    parameters = inspect.signature(score).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = sum(parameter.kind in kinds for parameter in parameters)
    return positional > 3 or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


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
    settings = config.server
    model, mode = None, config.judge.mode
    if config.trained.folder is not None:  # of a room above, which loads torch
        backend = load("flowright.app.trained_judge:trained_judge", "judge")(config)
        return _serve(settings, backend(), mode, say)
    if settings.judge_class is not None:  # before the port: it may load for minutes, or fail
        model = own_model(settings.judge_class, settings.judge_arguments, settings.judge_threads)
        settings, mode = served_settings(model, settings), None
    return _serve(settings, _own(model) if model else open_backend(config), mode, say)


def serve_judge_model(
    model: JudgeModel, host: str = "127.0.0.1", port: int = 8888, threads: int = 1, **settings: Any
) -> int:
    """Serve a judge model of your own until SIGTERM or SIGINT; returns the exit status.

    ``model`` has a method ``score(prompt, completion, answer)``, or with ``answer_type`` as a
    fourth parameter, that returns a score from 0 to 1 or a mapping with one, ``explanation``,
    ``detailed_scores`` and ``confidence``. It is called on ``threads`` threads at a time.
    ``settings`` are further keys of `server`, such as ``api_key``. Raises UserError when it cannot
    start.
    """
    given = {"host": host, "port": port, "judge_threads": threads, **settings}
    judge = OwnModelJudge(model, threads)
    section = served_settings(judge, JudgeServerSection.model_validate(given))
    return _serve(section, _own(judge), None, lambda line: print(line, flush=True))


@asynccontextmanager
async def _own(judge: OwnModelJudge) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    async def ready() -> list[str]:
        return []

    yield OpenJudge(judge, None, ()), ready


def _serve(
    settings: JudgeServerSection,
    backend: AbstractAsyncContextManager[tuple[OpenJudge, Ready]],
    mode: str | None,
    say: Callable[[str], None],
) -> int:
    disable_created_metrics()  # a time for every series doubles the page, and nobody reads it
    listener = listen(settings.host, settings.port)
    with contextlib.closing(listener):

        async def serve() -> None:
            async with backend as (opened, ready):
                simulated = opened.simulated
                app = create_app(
                    opened.judge, settings, ready=ready, simulated=simulated, notes=opened.notes
                )
                server = DrainingServer(app, settings.drain_seconds, say)
                for line in _greeting(settings, opened, mode, listener.getsockname()[1]):
                    say(line)
                for problem in await ready():
                    say(f"not ready: {problem}")
                await server.serve(sockets=[listener])

        uvloop.run(serve())
    return 0


def _greeting(
    settings: JudgeServerSection, opened: OpenJudge, mode: str | None, port: int
) -> list[str]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    judge = f"Judge `{opened.judge.name}`" + f" (mode {mode})" * (mode is not None)
    lines = [f"{judge} at http://{host}:{port}, its API at http://{host}:{port}/docs"]
    if opened.simulated:
        lines.append(f"{SIMULATED_NOTICE}; its verdicts say nothing about any real judge.")
    lines += [f"note: {note}" for note in opened.notes]
    if not settings.api_key:
        lines.append("No API key is set: whoever reaches this address can use it.")
    return lines


class DrainingServer(uvicorn.Server):
    """uvicorn, but the first SIGTERM or SIGINT drains and the second does not wait.

    uvicorn itself would close its port at the first signal, so that nobody could be told.
    """

    def __init__(self, app: Starlette, drain_seconds: float, say: Callable[[str], None]) -> None:
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
