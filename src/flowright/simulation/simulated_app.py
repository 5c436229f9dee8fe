"""The simulator as a Starlette application, with its faults and its latency.

Chat completions (whole or streamed), the list of models, and a health check. Every response has the
header ``X-Simulated: true``, every completion ``"system_fingerprint": "simulated"``.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowright.config.llm import SimulatedSection
from flowright.core.errors import FailureError
from flowright.data.task import Problem
from flowright.sandbox import Sandbox
from flowright.simulation.assessor import Assessor, check_biases
from flowright.simulation.cues import JudgePrompt, TaskIndex, TaskPrompt, read_prompt
from flowright.simulation.draws import Draws, Fault, digest, drawn_fault, has_faults, unit
from flowright.simulation.protocol import (
    CHARS_PER_TOKEN,
    MODEL,
    ChatQuery,
    ReplyChoice,
    choice_of,
    error_of,
    formed,
    model_card,
    parse,
    reply_of,
    request_of,
)
from flowright.simulation.requested_format import Unfillable
from flowright.simulation.rubric_writer import RubricPrompt, write_rubric
from flowright.simulation.solver import Solver
from flowright.simulation.table import STEADY_TEMPERATURE, TABLE
from flowright.simulation.values import WrongSolutions

HANG_SECONDS = 600.0
_REMEMBERED = 1 << 18  # requests whose occurrences are counted, for faults
_LATENCY_CAP = 8.0  # times the mean


class SimulatedApp(Starlette):
    """The ASGI application. ``sandbox`` verifies wrong code; the caller opens and closes it.
    Requests to other ``hosts`` get 400."""

    def __init__(
        self,
        tasks: Sequence[Problem],
        section: SimulatedSection,
        sandbox: Sandbox,
        hosts: Sequence[str] = ("*",),
    ) -> None:
        super().__init__(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
            ],
            middleware=[
                Middleware(_Labelled),
                Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts]),
            ],
            exception_handlers={HTTPException: _refused, ClientDisconnect: _gone},
        )
        check_biases(section)
        self._section = section
        self._index = TaskIndex(tasks)
        popular = len(TABLE["code"].popularity)
        wrong_code = WrongSolutions(sandbox, section.seed, popular)
        skills = {MODEL: {}} | {name: one.skills for name, one in section.models.items()}
        self._solvers = {
            name: Solver(self._index.tasks, section.seed, wrong_code, section.world, some)
            for name, some in skills.items()
        }
        self._assessor = Assessor(section, self._solvers[MODEL])
        self._occurrences: dict[str, int] = {}

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [*map(model_card, self._solvers)]})

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "simulated": True, "tasks": len(self._index.tasks)})

    async def _chat(self, request: Request) -> Response:
        body = await request.body()
        query = parse(request_of(body), [*self._solvers])
        prompt = read_prompt(query.messages, self._index)
        name = digest(body)
        occurrence = self._count(name)
        role = "judge" if isinstance(prompt, JudgePrompt) else "executor"
        fault = drawn_fault(self._section, role, name, occurrence)
        await self._wait(name, occurrence)
        if fault == "hang":
            await _disconnected(request)
            return _gone()
        if fault == "error_500":
            return error_of(500, "injected fault: internal server error (simulated)")
        if fault == "error_429":
            wait = {"retry-after-ms": "100", "retry-after": "1"}
            return error_of(429, "injected fault: too many requests (simulated)", wait)
        try:
            choices = [await self._choice(query, prompt, i, fault) for i in range(query.choices)]
        except FailureError as error:  # the sandbox that verifies wrong code
            return error_of(500, str(error))
        except Unfillable as error:
            return error_of(400, f"response_format: the schema cannot be filled: {error}")
        return reply_of(query, choices, name, malformed=fault == "malformed")

    async def _choice(
        self,
        query: ChatQuery,
        prompt: TaskPrompt | JudgePrompt | RubricPrompt,
        index: int,
        fault: Fault | None,
    ) -> ReplyChoice:
        if fault == "empty":
            return ReplyChoice(None, "length", "(simulated: the budget was spent on reasoning)")
        judges = isinstance(prompt, JudgePrompt)
        is_drawn = query.temperature > (STEADY_TEMPERATURE if judges else 0)
        seed = (query.seed, index) if is_drawn else ("greedy",)
        if isinstance(prompt, JudgePrompt):
            graded = (prompt.judgement,) if prompt.judgement else ()
            key = (prompt.question, prompt.answer, prompt.rival, *graded, *prompt.listed[2:])
            draws = Draws(self._section.seed, "judge", *key, *seed)
            text = self._assessor.reply(prompt, draws, query.response_format)
        elif isinstance(prompt, RubricPrompt):
            text = write_rubric(prompt, query.response_format)
        else:
            messages = digest(repr(query.messages).encode("utf-8", "replace"))
            task_id = prompt.task.id if prompt.task else ""
            model = [query.model] if query.model != MODEL else []
            draws = Draws(self._section.seed, task_id, prompt.way, *seed, messages, *model)
            reply = await self._solvers[query.model].reply(prompt, draws)
            text = formed(reply, query.response_format)
        limit = len(text) // 2 if fault == "truncate" else len(text)
        if query.max_tokens is not None:
            limit = min(limit, query.max_tokens * CHARS_PER_TOKEN)
        return choice_of(text, limit, query.stop)

    def _count(self, name: str) -> int:
        """Count earlier arrivals of this very request; forgotten after many others."""
        if not has_faults(self._section.faults):
            return 0
        occurrence = self._occurrences.pop(name, 0)
        self._occurrences[name] = occurrence + 1
        if len(self._occurrences) > _REMEMBERED:
            del self._occurrences[next(iter(self._occurrences))]
        return occurrence

    async def _wait(self, name: str, occurrence: int) -> None:
        """Sleep for an exponentially distributed latency."""
        mean = self._section.latency_ms / 1000
        if mean > 0:
            drawn = -math.log(1.0 - unit(self._section.seed, "latency", name, occurrence))
            await asyncio.sleep(mean * min(drawn, _LATENCY_CAP))


class _Labelled:
    """ASGI middleware for the header of simulated responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Simulated"] = "true"
            await send(message)

        await self._app(scope, receive, labelled)


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects, ten minutes at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANG_SECONDS):
            while (await request.receive())["type"] != "http.disconnect":
                pass


def _gone(*_: object) -> Response:
    return Response(status_code=499)  # nginx's code; there is no receiver


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if message == HTTPStatus(error.status_code).phrase:  # the router's, without details
        message = f"{request.method} {request.url.path} is not served here"
    return error_of(error.status_code, message, error.headers)
