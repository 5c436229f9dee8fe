"""Serve a trained policy with OpenAI's chat protocol: settings, requests and replies, the ASGI app,
the server process."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from math import ceil
from typing import Any

import uvloop
from pydantic import Field, ValidationError
from rich.console import Console
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flowright.app.ask_policy import (
    DraftedAnswer,
    Event,
    PolicyDraws,
    ServedRun,
    Watch,
    WorkflowPolicy,
    blame_line,
    event_text,
    open_workflow_policy,
    question_of,
)
from flowright.config.section import (
    Name,
    NonNegative,
    NonNegativeFloat,
    Positive,
    Seconds,
    Section,
)
from flowright.core.command_line import say
from flowright.core.errors import Failure, Reason, UserError
from flowright.core.net import DrainingServer, allowed_hosts, listen, url_of
from flowright.core.off_loop import in_thread
from flowright.data.task import KINDS, Kind, Problem
from flowright.environments.workflow.config import WorkflowConfig
from flowright.judging.service.traffic import (
    NOT_JSON,
    Admission,
    GuardMiddleware,
    Overloaded,
    Traffic,
)
from flowright.simulation.protocol import parse, request_of


class PolicyServiceSettings(Section):
    """``name``: of the model; ``kind``: of its questions; ``samples``: workflows drawn for each;
    ``temperature`` and ``top_p``: defaults for requests."""

    name: Name
    kind: Kind = "qa"
    samples: Positive = 1
    temperature: NonNegativeFloat = 1.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    api_key: str | None = None
    max_body_bytes: Positive = 1 << 20
    max_question_bytes: Positive = 60_000
    """Bytes of question and context as UTF-8, at most what operators accept
    (``workflow.max_prompt_chars``)."""
    hosts: tuple[Name, ...] = ("*",)
    """Accepted Host headers."""
    max_in_flight: Positive = 64
    max_queue: NonNegative = 256
    seconds: Seconds = 600.0
    """Timeout of an answer, its time in the queue included."""
    drain_seconds: Seconds = 30.0


STATUS: Mapping[Reason, int] = {
    Reason.LLM_UNAVAILABLE: 503,
    Reason.WORKER_LOST: 503,
    Reason.SANDBOX_LOST: 503,
    Reason.INTERNAL: 500,
}
"""HTTP statuses of infrastructure failures."""

POLICY_FAILED = 422
"""HTTP status of the policy's failures: clients that repeat requests after 5xx do not repeat
these."""

REFUSED = ("tools", "functions", "logprobs", "top_logprobs", "audio")
"""Parameters that a workflow's answer cannot honour."""

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """A parsed request. ``temperature`` and ``top_p`` are the policy's, None for the defaults;
    ``seed`` decides all draws."""

    problem: Problem
    model: str
    seed: int
    temperature: float | None
    top_p: float | None
    stream: bool
    stream_usage: bool


def models_of(name: str) -> list[str]:
    """Listed models: the policy, and the policy for each kind of question."""
    return [name, *(f"{name}:{kind}" for kind in KINDS)]


def read(body: bytes, settings: PolicyServiceSettings) -> PolicyQuestion:
    """A chat request as a question: the last message, with those before it as its context.

    Raises HTTPException with what is wrong.
    """
    data, name = request_of(body), settings.name
    query = parse(data, models_of(name))
    _only_text(data["messages"])
    for key in REFUSED:
        if data.get(key):
            raise HTTPException(400, f"{key}: an answer is a workflow's; leave it out")
    if query.choices != 1:
        raise HTTPException(400, "n: one answer a request; send several requests")
    if query.stop:
        raise HTTPException(400, "stop: an answer is a workflow's; leave it out")
    if data.get("response_format") not in (None, {"type": "text"}):
        raise HTTPException(400, "response_format: an answer is plain text; leave it out")
    if data.get("stream") not in (None, True, False):
        raise HTTPException(400, "stream: must be true or false")
    temperature, top_p = _within(data, "temperature", 0, 2), _within(data, "top_p", 1e-6, 1)
    *before, (role, text) = query.messages
    if role != "user" or not text.strip():
        raise HTTPException(400, "messages: the last one must be the user's, with text")
    context = "\n\n".join(f"{role}: {content}" for role, content in before if content)
    model = str(data["model"])
    chosen = model.removeprefix(name).lstrip(":") or settings.kind
    _check_size(text, context, settings.max_question_bytes)
    problem = question_of(text, next(k for k in KINDS if k == chosen), context or None)
    seed = secrets.randbits(31) if query.seed is None else _place(query.seed)
    return PolicyQuestion(
        problem, model, seed, temperature, top_p, query.stream, query.stream_usage
    )


def _only_text(messages: Sequence[Mapping[str, Any]]) -> None:
    for place, message in enumerate(messages):
        parts = message.get("content")
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            if not isinstance(part, dict) or part.get("type", "text") != "text":
                where = f"messages[{place}].content[{number}]"
                raise HTTPException(400, f"{where}: a workflow reads text alone")


def _check_size(text: str, context: str, most: int) -> None:
    try:
        size = len(f"{context}\n\n{text}".encode())
    except UnicodeEncodeError:
        raise HTTPException(400, "messages: half of a surrogate pair is no text") from None
    if size > most:
        raise HTTPException(413, f"messages: {size:,} bytes of text, a workflow takes {most:,}")


def _within(data: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise HTTPException(400, f"{key}: must be a number from {least:g} to {most:g}")
    return float(value)


def _place(seed: int) -> int:
    """Fold an integer to 31 bits, which every sampler takes."""
    digest = blake2b(str(seed).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


class Reply:
    """The reply to a request; all its parts have one id."""

    def __init__(self, question: PolicyQuestion, simulated: bool) -> None:
        self._question = question
        self._simulated = simulated
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(
        self, outcome: DraftedAnswer, reasoning: str, about: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the reply as one object. ``about`` has fields beyond the protocol."""
        message = {
            "role": "assistant",
            "content": outcome.answer,
            "refusal": None,
            "reasoning_content": reasoning,
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return self._body(
            "chat.completion", [choice], usage=usage_of(outcome), flowright=dict(about)
        )

    def chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        """Return a server-sent event with a piece of the reply."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(self._body("chat.completion.chunk", [choice]))

    def usage_chunk(self, outcome: DraftedAnswer, about: Mapping[str, Any]) -> bytes:
        body = self._body("chat.completion.chunk", [], usage=usage_of(outcome))
        return event(body | {"flowright": dict(about)})

    def _body(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._question.model,
            "system_fingerprint": "simulated" if self._simulated else None,
            "choices": choices,
            **more,
        }


def event(body: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def usage_of(outcome: DraftedAnswer) -> dict[str, Any]:
    """Sum the tokens of policy and executor; ``details`` has each."""
    both = outcome.policy + outcome.executor
    return {
        "prompt_tokens": both.prompt_tokens,
        "completion_tokens": both.completion_tokens,
        "total_tokens": both.tokens,
        "completion_tokens_details": {"reasoning_tokens": outcome.policy.completion_tokens},
        "details": {"policy": asdict(outcome.policy), "executor": asdict(outcome.executor)},
    }


def failure_body(failure: Failure) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and body for a failed question; ``code`` is the reason."""
    status = STATUS.get(failure.reason, POLICY_FAILED)
    return status, error_body(status, blame_line(failure), failure.reason.value)


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    usual = "server_error" if status >= 500 else "invalid_request_error"
    kind = "workflow_error" if status == POLICY_FAILED else TYPES.get(status, usual)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refusal(error: HTTPException) -> Response:
    """Return an error of the service itself."""
    return JSONResponse(error_body(error.status_code, error.detail), error.status_code,
                        error.headers)  # fmt: skip


CHAT, MODELS, HEALTH = "/v1/chat/completions", "/v1/models", "/health"
KEEP_ALIVE_SECONDS = 15.0
"""Seconds between comments in a quiet stream, so that no proxy closes it."""


class PolicyApp(Starlette):
    """The app of one event loop. ``about`` is the policy's part of /health."""

    def __init__(
        self, answers: WorkflowPolicy, settings: PolicyServiceSettings, about: Mapping[str, Any]
    ) -> None:
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
        if kind_of_body != "application/json":
            raise HTTPException(415, NOT_JSON)
        body = await request.body()
        question = await in_thread(lambda: read(body, self._settings))
        reply = Reply(question, self._answers.simulated)
        if question.stream:
            # Before the stream begins, so that the status has it.
            self._refuse_if_full()
            return StreamingResponse(
                self._streamed(question, reply), media_type="text/event-stream"
            )
        texts: list[str] = []
        outcome = await self._answered(question, lambda event: texts.append(event_text(event)))
        if outcome.failure is not None:
            status, error = failure_body(outcome.failure)
            return JSONResponse({**error, "flowright": self._spent(outcome)}, status)
        return JSONResponse(reply.whole(outcome, "".join(texts), self._spent(outcome)))

    async def _answered(self, question: PolicyQuestion, watch: Watch) -> DraftedAnswer:
        """Answer a question. Raises HTTPException if the queue is full or time is up."""
        settings = self._settings
        temperature = settings.temperature if question.temperature is None else question.temperature
        top_p = settings.top_p if question.top_p is None else question.top_p
        ask = PolicyDraws(question.seed, settings.samples, temperature, top_p)
        try:
            with self._admission.admit(1) as slot:
                async with asyncio.timeout(settings.seconds), slot():
                    return await self._answers.answer(question.problem, ask, watch)
        except Overloaded:
            raise self._full() from None
        except TimeoutError:
            message = f"no answer within {settings.seconds:g} seconds (--seconds)"
            raise HTTPException(504, message) from None
        except UserError as error:
            raise HTTPException(500, "; ".join(error.problems)) from None

    def _refuse_if_full(self) -> None:
        settings, taken = self._settings, self._admission.running + self._admission.queued
        if taken >= settings.max_in_flight + settings.max_queue:
            raise self._full()

    def _full(self) -> HTTPException:
        wait = {"Retry-After": str(max(1, ceil(self._admission.seconds_to_room())))}
        return HTTPException(429, "too many questions at once (--in-flight, --queue)", wait)

    async def _streamed(self, question: PolicyQuestion, reply: Reply) -> AsyncIterator[bytes]:
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
                yield reply.chunk({"reasoning_content": event_text(one)})
            for part in self._end(work, question, reply):
                yield part
        finally:
            work.cancel()  # does nothing to work that is done
            await asyncio.wait({work})

    def _end(
        self, work: "asyncio.Task[DraftedAnswer]", question: PolicyQuestion, reply: Reply
    ) -> list[bytes]:
        """Return the events after the trace."""
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

    def _spent(self, outcome: DraftedAnswer) -> dict[str, Any]:
        """Fields beyond the protocol."""
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
        message = f"{request.method} {request.url.path} is not served here"
        error = HTTPException(error.status_code, message, error.headers)
    return refusal(error)


async def _crashed(request: Request, error: Exception) -> Response:
    # The exception goes on to the server's log; its words are not for the caller.
    return JSONResponse(error_body(500, "internal error"), 500)


SIMULATED_NOTICE = "simulated: the embedded server answers, and knows the run's problems alone"


def serve_policy(opening: ServedRun, host: str, port: int, **given: Any) -> int:
    """Serve until SIGTERM or SIGINT, draining; return the exit status. ``given`` are settings of
    the server, None for the default. Raises UserError if it cannot start."""
    config, console = opening.config, Console(stderr=True)
    usual = {
        "name": config.run.name,
        "temperature": config.evaluation.temperature,
        "top_p": config.policy.top_p,
        "max_question_bytes": config.own(WorkflowConfig).max_prompt_chars,
        "hosts": allowed_hosts(host),
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    try:
        settings = PolicyServiceSettings.model_validate(usual | chosen)
    except ValidationError as error:
        lines = [f"{one['loc'][0]}: {one['msg']}" for one in error.errors()]
        raise UserError(*lines) from None
    listener = listen(host, port)
    with contextlib.closing(listener):

        async def serve() -> None:
            async with open_workflow_policy(opening, console) as author:
                about: dict[str, Any] = {
                    "model": settings.name,
                    "policy": opening.name,
                    "executor": config.executor_name,
                    "simulated": author.simulated,
                }
                app = PolicyApp(author, settings, about)
                server = DrainingServer(
                    app,
                    app.state.traffic.drain,
                    settings.drain_seconds,
                    lambda line: print(line, flush=True),
                )
                url = url_of(host, listener.getsockname()[1])
                print(f"model `{settings.name}` at {url}/v1", flush=True)
                say(console, f"policy    {opening.words}")
                say(console, f"executor  {config.executor_name}")
                if author.simulated:
                    say(console, SIMULATED_NOTICE)
                if not settings.api_key:
                    say(console, "No API key is set: anyone who can reach this address can use it.")
                await server.serve(sockets=[listener])

        uvloop.run(serve())
    return 0
