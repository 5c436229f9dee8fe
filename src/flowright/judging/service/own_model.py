"""A judge model of one's own as the judge of the service: an object with a ``score`` method.

    class CustomJudgeModel:
        def score(self, prompt, completion, answer, answer_type):
            return {"score": 0.9, "explanation": "..."}

    serve_judge_model(CustomJudgeModel(), port=8888)

What the object does to find a score is its own matter; how it is served is
:mod:`flowright.judging.service.serve`'s.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from flowright.config.judge import JudgeServerSection
from flowright.core.errors import ConfigError
from flowright.core.plugins import load
from flowright.judging.answer_types import shown_answer_type
from flowright.judging.remote_wire import read_verdict
from flowright.judging.reward.own_requests import plain
from flowright.judging.verdict import JudgeQuery, Verdict

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
