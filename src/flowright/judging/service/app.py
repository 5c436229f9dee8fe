"""The judge service: any judge behind HTTP, as a FastAPI app.

:mod:`flowright.judging.service.serve` opens judge and socket, and runs it. A failed judge is an
ordinary response, with a status and without a score (law 1).
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
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from flowright import __version__
from flowright.config.judge import JudgeServerSection
from flowright.core.errors import ConfigError, UserError, boundary
from flowright.core.off_loop import in_thread
from flowright.data.contamination import TrainedOn
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
    NOT_JSON,
    Admission,
    GuardMiddleware,
    Overloaded,
    ServiceMetrics,
    Slot,
    Traffic,
)
from flowright.judging.verdict import Judge, Verdict

Ready = Callable[[], Awaitable[Sequence[str]]]
"""Probe of the backend: returns its problems, one line each."""

_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 30.0  # seconds, of a Retry-After
PROBE_SECONDS = 5.0  # validity of a probe of the backend
_LONGEST_CLIENT = 64  # characters of its name
SIMULATED_NOTICE = "simulated: no language model judges here"

_log = logging.getLogger(__name__)

_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "No key, or a wrong one."},
    413: {"model": ErrorBody, "description": "The body or the batch is too large."},
    422: {"model": ErrorBody, "description": "Not a valid request, with the reason."},
    429: {"model": ErrorBody, "description": "Too many requests; try again after Retry-After."},
    503: {"model": ErrorBody, "description": "The server is shutting down."},
}


def create_app(
    judge: Judge,
    settings: JudgeServerSection,
    *,
    ready: Ready | None = None,
    simulated: bool = False,
    notes: Sequence[str] = (),
    trained_on: TrainedOn | None = None,
    hosts: Sequence[str] = ("*",),
) -> FastAPI:
    """Return the service as an app of one event loop. ``ready`` probes the backend; None: always
    ready. ``notes`` on its verdicts are shown by /health, the record of its training data by
    /trained_on. Requests to other ``hosts`` get 400.

    ``app.state.traffic`` is its :class:`~flowright.judging.service.traffic.Traffic`, for draining.
    """
    app = FastAPI(
        title="Flowright judge",
        version=__version__,
        description=f"Judge: `{judge.name}`." + f" **{SIMULATED_NOTICE}**" * simulated,
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
        # Questions and answers are the callers' own: keep them from collectors of traces.
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
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])
    _add_judging(app, _Dispatcher(judge, admission, metrics, log), settings)
    _add_record(app, trained_on)
    _add_probes(app, _Health(judge, admission, settings, ready, simulated, notes), metrics)
    return app


class VerdictLog:
    """Log of one service: every verdict as a line of JSON, in files rotated by size.

    A line has ``at`` (ISO 8601, UTC), ``request``, ``response`` and ``raw_replies``; no header and
    no key. Questions and references are in it, so only the owner can read the files. One thread
    writes, in the order of the verdicts, and a verdict is returned once its line is with the
    system: a crash of the service loses no line, a crash of the machine may lose the last ones.

    Raises ConfigError for a path that cannot be written, before the first verdict. A disk that
    fails later is reported on stderr and costs no verdict; a slow one delays verdicts, but not the
    service's other responses. Files are closed between lines, so that they can be moved.
    """

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
        """Write a line, even if the caller is cancelled meanwhile; ``verdict`` is None if the judge
        raised."""
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
    """Replace the key in all texts of a value: a caller may have put it into one."""
    if isinstance(value, str):
        return value.replace(key, "[key]")
    if isinstance(value, list):
        return [_without(key, each) for each in value]
    if isinstance(value, dict):
        return {name: _without(key, each) for name, each in value.items()}
    return value


class _OwnersFile(RotatingFileHandler):
    def shouldRollover(self, record: logging.LogRecord) -> bool:
        """False for a pipe or a terminal, of which Python 3.13 asks the position."""
        is_file = os.path.isfile(self.baseFilename)  # noqa: PTH113, a text of logging's
        return is_file and bool(super().shouldRollover(record))

    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding)


class _Dispatcher:
    """Passes requests to the judge, within the limits of admission."""

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
        """Judge the requests among ``members`` concurrently; responses stay as they are. The sender
        of the HTTP ``request`` gets a fair share of the service.

        Raises HTTPException(429) if there is no room for all of them.
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
        """Return headers with the time to try again, in the standard's whole seconds and
        exactly."""
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
    """Health of the service. One probe of the backend serves all requests within its validity."""

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
        """Return HTTP code and body."""
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
                    self._problems = ("the backend cannot be probed; see the server's log",)
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


def _add_record(app: FastAPI, trained_on: TrainedOn | None) -> None:
    @app.get("/trained_on", responses={404: {"model": ErrorBody, "description": "Not known."}})
    async def show_trained_on() -> JSONResponse:
        """Return names and hashes of the conversations that the judge was trained on."""
        if trained_on is None:
            raise HTTPException(404, "no record of training data")
        return JSONResponse(await in_thread(trained_on.table))


def _add_probes(app: FastAPI, health: _Health, metrics: ServiceMetrics) -> None:
    @app.get("/health", responses={503: {"description": "No verdicts now, with the reason."}})
    async def show_health() -> JSONResponse:
        """Return whether verdicts are available; the backend was probed within the last seconds."""
        code, body = await health.state(app.state.traffic.draining)
        return JSONResponse(body, code)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _client(request: Request) -> str:
    """Return the client's chosen name, or its address. It is not verified, and used for turns
    only."""
    named = request.headers.get(CLIENT_HEADER, "")[:_LONGEST_CLIENT]
    return named or (request.client.host if request.client else "")


async def _refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
    if "json" not in request.headers.get("content-type", "").lower():
        return JSONResponse({"error": NOT_JSON}, 415)
    return JSONResponse({"error": error_message(error.errors())}, 422)


async def _crashed(request: Request, error: Exception) -> JSONResponse:
    # The exception is in the server's log; its message is not for the caller.
    return JSONResponse({"error": "internal error"}, 500)
