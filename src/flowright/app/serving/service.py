"""A policy at work behind OpenAI's chat protocol, as an ASGI app. It opens no model and no socket;
:mod:`flowright.app.serving.serve` runs it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from math import ceil
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flowright.app.serving.author import Ask, Event, Outcome, Watch
from flowright.app.serving.settings import PolicyServer
from flowright.app.serving.wire import (
    DONE,
    Question,
    Reply,
    error_body,
    event,
    failure_body,
    models_of,
    read,
    refusal,
)
from flowright.app.serving.words import words_of
from flowright.core.errors import UserError
from flowright.core.off_loop import in_thread
from flowright.data.task import Problem
from flowright.judging.service.traffic import Admission, GuardMiddleware, Overloaded, Traffic

CHAT, MODELS, HEALTH = "/v1/chat/completions", "/v1/models", "/health"
KEEP_ALIVE_SECONDS = 15.0
"""Between two comments in a stream that has nothing to say, so that nobody on the way closes it."""


class Answers(Protocol):
    """What the service serves: :class:`flowright.app.serving.author.Author`, or a test's double."""

    @property
    def simulated(self) -> bool: ...

    async def answer(self, problem: Problem, ask: Ask, watch: Watch = ...) -> Outcome: ...


class PolicyApp(Starlette):
    """The app of one event loop. ``about`` is what /health says of the policy."""

    def __init__(self, answers: Answers, settings: PolicyServer, about: Mapping[str, Any]) -> None:
        super().__init__(
            routes=[
                Route(CHAT, self._chat, methods=["POST"]),
                Route(MODELS, self._models),
                Route(HEALTH, self._health),
            ],
            exception_handlers={HTTPException: _refused, Exception: _crashed},
        )
        self._answers = answers
        self._settings = settings
        self._about = about
        self._admission = Admission(settings.max_in_flight, settings.max_queue)
        self.state.traffic = Traffic()
        self.add_middleware(TrustedHostMiddleware, allowed_hosts=[*settings.hosts])
        self.add_middleware(
            GuardMiddleware,
            settings=settings,
            traffic=self.state.traffic,
            open_paths=frozenset({HEALTH}),
            refusal=refusal,
        )

    async def _models(self, request: Request) -> Response:
        cards = [
            {"id": name, "object": "model", "created": 0, "owned_by": "flowright"}
            for name in models_of(self._settings.name)
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def _health(self, request: Request) -> Response:
        draining = self.state.traffic.draining
        counts = {"in_flight": self._admission.running, "queued": self._admission.queued}
        status = {"status": "draining" if draining else "ready"}
        return JSONResponse({**status, **self._about, **counts}, 503 if draining else 200)

    async def _chat(self, request: Request) -> Response:
        kind_of_body = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind_of_body != "application/json":  # what a page of another site cannot send unasked
            raise HTTPException(415, "send JSON, with Content-Type: application/json")
        body = await request.body()
        question = await in_thread(lambda: read(body, self._settings))
        reply = Reply(question, self._answers.simulated)
        if question.stream:
            # What keeps it from starting is told by a status, before the stream begins.
            self._refuse_if_full()
            return StreamingResponse(
                self._streamed(question, reply), media_type="text/event-stream"
            )
        told: list[str] = []
        outcome = await self._answered(question, lambda event: told.append(words_of(event)))
        if outcome.failure is not None:
            status, error = failure_body(outcome.failure)
            return JSONResponse({**error, "flowright": self._spent(outcome)}, status)
        return JSONResponse(reply.whole(outcome, "".join(told), self._spent(outcome)))

    async def _answered(self, question: Question, watch: Watch) -> Outcome:
        """Raises HTTPException where there is no room or no time."""
        settings = self._settings
        temperature = settings.temperature if question.temperature is None else question.temperature
        top_p = settings.top_p if question.top_p is None else question.top_p
        ask = Ask(question.seed, settings.samples, temperature, top_p)
        try:
            with self._admission.admit(1) as slot:
                async with asyncio.timeout(settings.seconds), slot():
                    return await self._answers.answer(question.problem, ask, watch)
        except Overloaded:
            raise self._full() from None
        except TimeoutError:
            said = f"no answer within {settings.seconds:g} seconds (--seconds)"
            raise HTTPException(504, said) from None
        except UserError as error:
            raise HTTPException(500, "; ".join(error.problems)) from None

    def _refuse_if_full(self) -> None:
        settings, taken = self._settings, self._admission.running + self._admission.queued
        if taken >= settings.max_in_flight + settings.max_queue:
            raise self._full()

    def _full(self) -> HTTPException:
        wait = {"Retry-After": str(max(1, ceil(self._admission.seconds_to_room())))}
        return HTTPException(429, "too many questions at once (--in-flight, --queue)", wait)

    async def _streamed(self, question: Question, reply: Reply) -> AsyncIterator[bytes]:
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        work = asyncio.create_task(self._answered(question, events.put_nowait))
        work.add_done_callback(lambda _: events.put_nowait(None))
        yield reply.chunk({"role": "assistant", "content": ""})
        try:
            while True:
                try:
                    one = await asyncio.wait_for(events.get(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield b": still at work\n\n"
                    continue
                if one is None:
                    break
                yield reply.chunk({"reasoning_content": words_of(one)})
            for part in self._end(work, question, reply):
                yield part
        finally:
            work.cancel()  # does nothing to work that is done
            await asyncio.wait({work})

    def _end(self, work: "asyncio.Task[Outcome]", question: Question, reply: Reply) -> list[bytes]:
        """The events after the trace."""
        try:
            outcome = work.result()
        except HTTPException as error:
            return [event(error_body(error.status_code, error.detail))]
        if outcome.failure is not None:
            return [event({**failure_body(outcome.failure)[1], "flowright": self._spent(outcome)})]
        parts = [reply.chunk({"content": outcome.answer}), reply.chunk({}, "stop")]
        if question.stream_usage:
            parts.append(reply.usage_chunk(outcome, self._spent(outcome)))
        return [*parts, DONE]

    def _spent(self, outcome: Outcome) -> dict[str, Any]:
        """What the protocol has no field for."""
        last = outcome.last
        return {
            "policy": self._about.get("policy"),
            "executor": self._about.get("executor"),
            "simulated": self._answers.simulated,
            "program": last.workflow.source if last and last.workflow else None,
            "workflows": len(outcome.attempts),
            "seconds": round(outcome.seconds, 3),
            "question_cut_for_policy": outcome.truncated,
        }


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405) and error.detail in ("Not Found", "Method Not Allowed"):
        said = f"{request.method} {request.url.path} is not served here"
        error = HTTPException(error.status_code, said, error.headers)
    return refusal(error)


async def _crashed(request: Request, error: Exception) -> Response:
    # The exception goes on to the server's log; its words are not for the caller.
    return JSONResponse(error_body(500, "internal error"), 500)
