"""Run the judge service: open servers and judge, take a port, drain at a signal.

A judge model of your own is an object with a ``score`` method:

    class CustomJudgeModel:
        def score(self, prompt, completion, answer, answer_type):
            return {"score": 0.9, "explanation": "..."}

    serve_judge_model(CustomJudgeModel(), port=8888)
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import uvloop
from prometheus_client import disable_created_metrics

from flowright.config.judge import JudgeServerSection
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import RequestBatcher
from flowright.core.errors import ConfigError
from flowright.core.net import DrainingServer, allowed_hosts, listen, url_of
from flowright.core.off_loop import call_user_function, plain_numbers
from flowright.core.plugins import load
from flowright.data.contamination import TrainedOn
from flowright.judging.build import OpenJudge, model_folders, open_judge, open_terms
from flowright.judging.payloads import read_verdict, shown_answer_type
from flowright.judging.service.app import SIMULATED_NOTICE, Ready, create_app
from flowright.judging.terms import RewardTerms
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.simulation.large_models import open_models

KIND = "judge model"

Backend = AbstractAsyncContextManager[tuple[OpenJudge, Ready]]
"""Opens a judge and its probe, on the service's event loop."""
OpenTrained = Callable[[JudgeServerConfig], Callable[[], Backend]]
"""Loads the trained judge of ``trained``
(:func:`flowright.evaluation.trained_judge.load_trained_judge`)."""


class JudgeModel(Protocol):
    """An object with ``score(prompt, completion, answer)``, or with ``answer_type`` as a fourth
    parameter: ``NUMBER``, ``MATH_EXPRESSIONS``, ``MULTIPLE_CHOICE``, ``CODE``, ``SPAN`` or
    ``FREE_TEXT``.

    Returns a score from 0 to 1, or a mapping with a ``score`` (None: undecided) and optionally
    ``explanation``, ``detailed_scores`` and ``confidence``. May be a coroutine method. One with
    ``score_batch(prompts, completions, answers)`` instead gets lists and returns one.
    """

    @property
    def score(self) -> Callable[..., Any]: ...


class OwnModelJudge:
    """Asks a judge model: a plain method on ``threads`` threads of its own, a coroutine method on
    the loop. ``score_batch`` gets up to ``max_batch_size`` waiting queries, one batch at a time;
    one that fails is scored one by one. The service handles the model's exceptions."""

    def __init__(self, model: JudgeModel, threads: int = 1, max_batch_size: int = 1) -> None:
        self.name = type(model).__name__
        batched: Callable[..., Any] | None = getattr(model, "score_batch", None)
        score: Callable[..., Any] | None = batched or getattr(model, "score", None)
        if not callable(score):
            raise ConfigError(f"{KIND} {self.name}: it has no method score or score_batch")
        self._takes_type = _takes_type(score)
        self.is_async = inspect.iscoroutinefunction(score)
        self.at_once = threads if batched is None else 2 * max_batch_size  # the next one waits
        pool = ThreadPoolExecutor(threads, "judge-model")  # starts no thread before it is used
        self._call = partial(call_user_function, score, lambda: pool)
        self._batcher = RequestBatcher(self._scores, max_batch_size) if batched else None

    async def judge(self, query: JudgeQuery) -> Verdict:
        arguments = (query.question, query.answer, query.reference)
        if self._takes_type:
            arguments = (*arguments, shown_answer_type(query.answer_type))
        if self._batcher is not None:
            value = await self._batcher.ask(arguments)
        else:
            value = await self._call(*arguments)
        return replace(read_verdict(plain_numbers(value), self.name), attempts=1)

    async def _scores(self, queries: Sequence[Sequence[str]]) -> list[Any]:
        return list(await self._call(*map(list, zip(*queries, strict=True))))


def _takes_type(score: Callable[..., Any]) -> bool:
    parameters = inspect.signature(score).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = sum(parameter.kind in kinds for parameter in parameters)
    return positional > 3 or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def own_model(path: str, settings: JudgeServerSection) -> OwnModelJudge:
    """Return the judge of the class at an import path, created with ``judge_arguments``. Raises
    ConfigError."""
    arguments = settings.judge_arguments
    found: Any = load(path, KIND)
    if not callable(found):
        raise ConfigError(f"{KIND} {path}: not a class")
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"server.judge_arguments: {path}: {error}") from None
    model: Any = found(**arguments)
    return OwnModelJudge(model, settings.judge_threads, settings.max_batch_size)


def served_settings(judge: OwnModelJudge, settings: JudgeServerSection) -> JudgeServerSection:
    """Limit the verdicts in flight to the model's threads or batches; the rest of the room is
    queue."""
    if judge.is_async:
        return settings
    at_once = min(settings.max_in_flight, judge.at_once)
    room = settings.max_in_flight + settings.max_queue
    return settings.model_copy(update={"max_in_flight": at_once, "max_queue": room - at_once})


@asynccontextmanager
async def open_backend(config: JudgeServerConfig) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    """Open the configured judge with its models, and return it with its probe. A server that does
    not answer is no error: the service starts, and /health reports it. Raises ConfigError for
    names that the LLM file lacks."""
    async with (
        open_models(config.models, config.llm, config.simulated, None, ()) as models,
        open_judge(
            config.judge, config.judge.model, models.clients, reward=config.reward
        ) as opened,
    ):

        async def ready() -> list[str]:
            found = await asyncio.gather(models.check(), opened.check())
            return [problem for problems in found for problem in problems]

        await ready()  # also finds out whether a server is simulated
        record = TrainedOn.gathered(model_folders(config.llm.file, config.models))
        yield replace(opened, trained_on=record), ready


def run(
    config: JudgeServerConfig, say: Callable[[str], None], open_trained: OpenTrained | None = None
) -> int:
    """Serve until SIGTERM or SIGINT, drained; returns the exit status. ``say`` shows a line;
    ``open_trained`` loads the judge of ``trained.folder``. Raises UserError if it cannot start."""
    settings = config.server
    model, mode = None, config.judge.mode
    if config.reward.judge_weight == 0:
        mode = None
    if config.trained.folder is not None:
        if open_trained is None:
            raise ConfigError("trained.folder: this command serves no trained judge")
        return _serve(settings, open_trained(config)(), mode, say, config.judge.right_from)
    if settings.judge_class is not None:  # before the port: it may load for minutes, or fail
        model = own_model(settings.judge_class, settings)
        settings, mode = served_settings(model, settings), None
    backend = open_backend(config)
    if model is not None:
        backend = _own(model, open_terms(config.reward, config.judge))
    return _serve(settings, backend, mode, say, config.judge.right_from)


def serve_judge_model(
    model: JudgeModel, host: str = "127.0.0.1", port: int = 8888, threads: int = 1, **settings: Any
) -> int:
    """Serve a judge model of your own until SIGTERM or SIGINT; returns the exit status.

    ``model`` is a :class:`JudgeModel`, called on ``threads`` threads at a time. ``settings`` are
    further keys of `server`, such as ``api_key``. Raises UserError if it cannot start.
    """
    keys = {"host": host, "port": port, "judge_threads": threads, **settings}
    section = JudgeServerSection.model_validate(keys)
    judge = OwnModelJudge(model, threads, section.max_batch_size)
    return _serve(
        served_settings(judge, section), _own(judge), None, lambda line: print(line, flush=True)
    )


@asynccontextmanager
async def _own(
    judge: OwnModelJudge, terms: RewardTerms | None = None
) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    async def ready() -> list[str]:
        return []

    yield OpenJudge(judge, None, (), terms=terms), ready


def _serve(
    settings: JudgeServerSection,
    backend: Backend,
    mode: str | None,
    say: Callable[[str], None],
    right_from: float = 0.5,
) -> int:
    disable_created_metrics()  # a time for every series would double the page
    listener = listen(settings.host, settings.port)
    with contextlib.closing(listener):

        async def serve() -> None:
            async with backend as (opened, ready):
                app = create_app(
                    opened.weighted(right_from),
                    settings,
                    ready=ready,
                    simulated=opened.simulated,
                    notes=opened.notes,
                    trained_on=opened.trained_on,
                    hosts=allowed_hosts(settings.host),
                )
                server = DrainingServer(app, app.state.traffic.drain, settings.drain_seconds, say)
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
    url = url_of(settings.host, port)
    judge = f"Judge `{opened.judge.name}`" + f" (mode {mode})" * (mode is not None)
    if opened.terms is not None:
        judge += f", scores {opened.terms.section.formula}"
    lines = [f"{judge} at {url}, its API at {url}/docs"]
    if opened.simulated:
        lines.append(f"{SIMULATED_NOTICE}; its verdicts say nothing about any real judge.")
    lines += [f"note: {note}" for note in opened.notes]
    if not settings.api_key:
        lines.append("No API key is set: everybody who reaches this address can use it.")
    return lines
