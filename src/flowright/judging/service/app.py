"""The judge service: any judge behind HTTP, as a FastAPI app. It opens no model and no socket.

:func:`create_app` is all that others need; :mod:`flowright.judging.service.serve` runs it. A judge
that failed is an answer like any other, with a status and without a score (law 1).
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from flowright import __version__
from flowright.config.judge import JudgeServerSection
from flowright.core.errors import ConfigError, UserError, boundary
from flowright.core.off_loop import in_thread
from flowright.judging.payloads import CLIENT_HEADER
from flowright.judging.service.bodies import (
    NO_INSTRUCTION,
    BatchRequest,
    BatchResponse,
    ErrorBody,
    JudgeRequest,
    JudgeResponse,
    error_message,
    failed_response,
    raw_replies,
    read_member,
    response_of,
)
from flowright.judging.service.openrlhf import add_openrlhf
from flowright.judging.service.traffic import (
    CONTENT_TYPE,
    Admission,
    GuardMiddleware,
    Overloaded,
    ServiceMetrics,
    Slot,
    Traffic,
)
from flowright.judging.verdict import Judge, Verdict


class VerdictLog:
    """The log of one service. Raises ConfigError for a path that cannot be written, before the
    first verdict; a disk that fails later is told on stderr and costs no verdict, one that is slow
    slows verdicts down, but not the service's other answers. No file is held open between lines,
    so that others may take it away."""

    def __init__(self, path: Path, settings: JudgeServerSection) -> None:
        self._key = settings.api_key or None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _OwnersFile(
                path,
                maxBytes=settings.log_max_bytes,
                backupCount=settings.log_files,
                encoding="utf-8",
            )
            self._file.close()
            self._writer = ThreadPoolExecutor(1, "verdict-log")  # ends with the log, all written
        except OSError as error:
            raise ConfigError(f"server.log_file: {path}: {error.strerror}") from None

    async def keep(
        self, request: JudgeRequest, response: JudgeResponse, verdict: Verdict | None
    ) -> None:
        """Write a line; ``verdict`` is None where a judge broke down. Whoever is cancelled while it
        waits has its line all the same."""
        written = self._writer.submit(self._write, request, response, verdict)
        await asyncio.shield(asyncio.wrap_future(written))

    def _write(
        self, request: JudgeRequest, response: JudgeResponse, verdict: Verdict | None
    ) -> None:
        replies = () if verdict is None else raw_replies(verdict)
        kept: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": request.model_dump(mode="json", exclude_defaults=True),
            "response": response.model_dump(mode="json"),
            "raw_replies": [reply.model_dump(mode="json") for reply in replies],
        }
        kept["response"]["metadata"].pop("raw_replies", None)
        line = json.dumps(kept if self._key is None else _without(self._key, kept))
        self._file.emit(logging.makeLogRecord({"msg": line}))
        self._file.close()  # until the next line


def _without(key: str, value: Any) -> Any:
    """The value without the key, which a caller may have put into a text."""
    if isinstance(value, str):
        return value.replace(key, "[key]")
    if isinstance(value, list):
        return [_without(key, each) for each in value]
    if isinstance(value, dict):
        return {name: _without(key, each) for name, each in value.items()}
    return value


class _OwnersFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding)


Ready = Callable[[], Awaitable[Sequence[str]]]
"""What keeps the backend from answering, one line each; empty when all is well."""

_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 30.0  # seconds, for who was refused
PROBE_SECONDS = 5.0  # how long a probe of the backend counts
_LONGEST_CLIENT = 64  # characters of its name
SIMULATED_NOTICE = "simulated: no language model judges here"

_log = logging.getLogger(__name__)

_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "No key, or a wrong one."},
    413: {"model": ErrorBody, "description": "The body or the batch is too large."},
    422: {"model": ErrorBody, "description": "Not a request; says what is wrong."},
    429: {"model": ErrorBody, "description": "Too much at once; Retry-After says when to try."},
    503: {"model": ErrorBody, "description": "The server is shutting down."},
}


def create_app(
    judge: Judge,
    settings: JudgeServerSection,
    *,
    ready: Ready | None = None,
    simulated: bool = False,
    notes: Sequence[str] = (),
) -> FastAPI:
    """The service as an app of one event loop. ``ready`` asks the backend; None: always ready.
    ``notes``: what one has to know of its verdicts, which /health tells.

    ``app.state.traffic`` is its :class:`~flowright.judging.service.traffic.Traffic`, to drain it by.
    """
    app = FastAPI(
        title="Flowright judge",
        version=__version__,
        description=f"Judge: `{judge.name}`." + f" **{SIMULATED_NOTICE}**" * simulated,
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
        # Questions and answers are the callers' own: they do not go to a collector of traces.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        exception_handlers={
            StarletteHTTPException: _refused,
            RequestValidationError: _not_valid,
            Exception: _crashed,
        },
    )
    admission = Admission(settings.max_in_flight, settings.max_queue)
    metrics = ServiceMetrics(admission, judge.name, simulated)
    log = None if settings.log_file is None else VerdictLog(settings.log_file, settings)
    app.state.traffic = Traffic()
    app.add_middleware(
        GuardMiddleware, settings=settings, traffic=app.state.traffic, metrics=metrics
    )
    _add_judging(app, _Dispatcher(judge, admission, metrics, log), settings)
    _add_probes(app, _Health(judge, admission, settings, ready, simulated, notes), metrics)
    return app


class _Dispatcher:
    """Takes requests to the judge, within what the admission allows."""

    def __init__(
        self, judge: Judge, admission: Admission, metrics: ServiceMetrics, log: VerdictLog | None
    ) -> None:
        self._judge = judge
        self._admission = admission
        self._metrics = metrics
        self._log = log

    async def judge(
        self, members: Sequence[JudgeRequest | JudgeResponse], request: Request
    ) -> list[JudgeResponse]:
        """Judge the requests among ``members`` at once; what is a response already stays one. Who
        sent the HTTP ``request`` gets a fair share of the service.

        Raises HTTPException(429) where there is no room for all of them.
        """
        count = sum(isinstance(member, JudgeRequest) for member in members)
        client = _client(request)
        try:
            with self._admission.admit(count, client) as slot:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._respond(m, slot)) for m in members]
        except Overloaded:
            self._metrics.refused.inc()
            message = (
                "Request queue full: too many verdicts at once (server.max_in_flight, "
                "server.max_queue)"
            )
            raise HTTPException(429, message, self._when(client)) from None
        return [task.result() for task in tasks]

    def _when(self, client: str) -> dict[str, str]:
        """When to try again: in whole seconds, as the standard has it, and exactly."""
        seconds = self._admission.seconds_to_room(client)
        seconds = min(max(seconds, _SHORTEST_WAIT), _LONGEST_WAIT)
        return {"Retry-After": str(ceil(seconds)), "Retry-After-Ms": str(round(seconds * 1000))}

    async def _respond(self, member: JudgeRequest | JudgeResponse, slot: Slot) -> JudgeResponse:
        response = member
        if isinstance(response, JudgeRequest):
            async with slot():
                response = await self._ask(response)
        self._metrics.judged(response)
        return response

    async def _ask(self, request: JudgeRequest) -> JudgeResponse:
        began = time.monotonic()
        verdict: Verdict | None = None
        problem = ""
        try:
            with boundary("judge") as attribution:
                verdict = await self._judge.judge(request.query())
            problem = str(attribution.failure)
        except UserError as error:
            problem = str(error)
        seconds = time.monotonic() - began
        if verdict is None:
            _log.error("a judge raised: %s", problem)
            response = failed_response(request.id, self._judge.name, seconds)
        else:
            response = response_of(verdict, request.id, seconds, request.include_raw)
        if self._log is not None:
            await self._log.keep(request, response, verdict)
        return response


class _Health:
    """Whether verdicts can be had. One probe serves everybody who asks within its time."""

    def __init__(
        self,
        judge: Judge,
        admission: Admission,
        settings: JudgeServerSection,
        ready: Ready | None,
        simulated: bool,
        notes: Sequence[str],
    ) -> None:
        self._judge = judge
        self._admission = admission
        self._notes = list(notes)
        self._takes = settings.model_dump(
            include={"max_in_flight", "max_queue", "max_batch", "max_body_bytes"}
        )
        self._ready = ready
        self._simulated = simulated
        self._probing = asyncio.Lock()
        self._problems: Sequence[str] = ()
        self._probed: float | None = None

    async def state(self, draining: bool) -> tuple[int, dict[str, object]]:
        """HTTP code and body."""
        shown: dict[str, object] = {
            "judge": self._judge.name,
            "simulated": self._simulated,
            "in_flight": self._admission.running,
            "queued": self._admission.queued,
            **self._takes,
        }
        if self._simulated:
            shown["notice"] = SIMULATED_NOTICE
        if self._notes:
            shown["notes"] = self._notes
        if draining:
            return 503, {"status": "draining", "error": "draining", **shown}
        if problems := await self._probe():
            return 503, {"status": "unavailable", "error": "; ".join(problems), **shown}
        return 200, {"status": "ready", **shown}

    async def _probe(self) -> Sequence[str]:
        if self._ready is None:
            return ()
        async with self._probing:
            now = time.monotonic()
            if self._probed is None or now - self._probed >= PROBE_SECONDS:
                with boundary("probe") as attribution:
                    self._problems = await self._ready()
                if attribution.failure is not None:
                    _log.error("the probe of the backend raised: %s", attribution.failure)
                    self._problems = ("the backend cannot be probed; the server's log says how",)
                self._probed = time.monotonic()
            return self._problems


def _add_judging(app: FastAPI, dispatcher: _Dispatcher, settings: JudgeServerSection) -> None:
    # For the OpenAPI page only: the middleware checks the key before a body is read.
    schemes = [HTTPBearer(auto_error=False), APIKeyHeader(name="X-API-Key", auto_error=False)]
    guarded = [Depends(scheme) for scheme in schemes] if settings.api_key else []

    @app.post("/judge", responses=_ERRORS, dependencies=guarded)
    async def judge(asked: JudgeRequest, request: Request) -> JudgeResponse:
        """Judge one answer."""
        if asked.instruction and not settings.own_instructions:
            raise HTTPException(422, NO_INSTRUCTION)
        return (await dispatcher.judge([asked], request))[0]

    @app.post("/batch_judge", responses=_ERRORS, dependencies=guarded)
    async def batch_judge(
        batch: Annotated[BatchRequest, Body()], request: Request
    ) -> BatchResponse:
        """Judge many answers at once. A member that is no request gets a response of its own,
        with the status "invalid"."""
        count, limit = len(batch.requests), settings.max_batch
        if count > limit:
            message = f"{count} requests in one batch; at most {limit} (server.max_batch)"
            raise HTTPException(413, message)
        members = await in_thread(
            lambda: [read_member(m, settings.own_instructions) for m in batch.requests]
        )
        return BatchResponse(responses=await dispatcher.judge(members, request))

    add_openrlhf(app, dispatcher.judge, _ERRORS, guarded)


def _add_probes(app: FastAPI, health: _Health, metrics: ServiceMetrics) -> None:
    @app.get("/health", responses={503: {"description": "No verdicts now; says why."}})
    async def show_health() -> JSONResponse:
        """Whether verdicts can be had: the backend was asked within the last seconds."""
        code, body = await health.state(app.state.traffic.draining)
        return JSONResponse(body, code)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _client(request: Request) -> str:
    """Who asks: by the name that it gives itself, else by its address. No proof of anything, so
    it decides about turns alone."""
    named = request.headers.get(CLIENT_HEADER, "")[:_LONGEST_CLIENT]
    return named or (request.client.host if request.client else "")


async def _refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
    if "json" not in request.headers.get("content-type", "").lower():
        return JSONResponse({"error": "send JSON, as Content-Type: application/json"}, 415)
    return JSONResponse({"error": error_message(error.errors())}, 422)


async def _crashed(request: Request, error: Exception) -> JSONResponse:
    # The exception goes on to the server's log; its words are not for the caller.
    return JSONResponse({"error": "internal error"}, 500)
