"""What every request to a service passes first: key, size, drain; and what it leaves by.

An ASGI middleware. It reads the whole body itself, so that the limit holds while reading, and then
watches the connection: a client that goes away takes its verdicts along.
"""

import asyncio
import hmac
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowright.judging.service.metrics import ServiceMetrics
from flowright.judging.service.traffic import Traffic

OPEN = frozenset({"/health", "/metrics", "/docs", "/openapi.json"})
"""Paths that ask for no key and answer while draining: what they show is no caller's own."""

ENDPOINTS = frozenset({"/judge", "/batch_judge", "/openrlhf"}) | OPEN
CLIENT_GONE = 499  # nginx's code; nobody receives it, only the metrics show it


class Guarded(Protocol):
    """What the middleware has to know of a service's settings."""

    @property
    def api_key(self) -> str | None: ...

    @property
    def max_body_bytes(self) -> int: ...


def _error(error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class GuardMiddleware:
    """Refusals are counted like every other answer, where there are ``metrics``. ``refusal`` makes
    a response of one."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Guarded,
        traffic: Traffic,
        metrics: ServiceMetrics | None = None,
        open_paths: Collection[str] = OPEN,
        refusal: Callable[[HTTPException], Response] = _error,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._refusal = refusal
        self._limit = settings.max_body_bytes
        self._key = sha256(settings.api_key.encode()).digest() if settings.api_key else None
        self._traffic = traffic
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        code = 0

        async def counted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        path = scope["path"]
        try:
            if path in self._open_paths:
                await self._app(scope, receive, counted)
            elif not await self._guarded(scope, receive, counted):
                code = code or CLIENT_GONE
        except HTTPException as error:
            await self._refusal(error)(scope, receive, counted)
        finally:
            if self._metrics is not None:
                endpoint = path if path in ENDPOINTS else "other"
                self._metrics.requests.labels(endpoint, str(code or 500)).inc()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Check and answer a request; False where its client left. Raises HTTPException."""
        self._refuse_if_draining()
        if self._key is not None and not _has_key(self._key, scope["headers"]):
            wanted = "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"
            raise HTTPException(401, wanted, {"WWW-Authenticate": 'Bearer realm="judge"'})
        body = await self._read(scope, receive)
        if body is None:
            return False
        self._refuse_if_draining()  # again: a body may take its time
        return await self._answered(scope, body, receive, send)

    def _refuse_if_draining(self) -> None:
        if self._traffic.draining:
            said = "draining: this server is shutting down"
            raise HTTPException(503, said, {"Connection": "close"})

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client left before its end. Raises HTTPException."""
        said = f"the body is larger than {self._limit} bytes (server.max_body_bytes)"
        headers = dict(scope["headers"])
        if int(headers.get(b"content-length", b"0")) > self._limit:
            raise HTTPException(413, said)
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts += message.get("body", b"")
            if len(parts) > self._limit:
                raise HTTPException(413, said)
            if not message.get("more_body", False):
                return bytes(parts)

    async def _answered(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> bool:
        """Let the app answer while the connection is watched; False where the client left."""
        left = asyncio.create_task(_until_gone(receive))
        started = False

        async def replayed() -> Message:
            nonlocal started
            if started:
                await asyncio.wait({left})
                return {"type": "http.disconnect"}
            started = True
            return {"type": "http.request", "body": body, "more_body": False}

        work = asyncio.create_task(_run(self._app, scope, replayed, send))
        self._traffic.add(work)
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()  # does nothing to work that is done
            gone = left.done()
            left.cancel()
        await asyncio.wait({work})
        if not work.cancelled():
            await work  # raises what the app raised
            return True
        if gone:
            return False
        if self._traffic.expired:
            raise HTTPException(503, "the server shut down before there was an answer")
        raise HTTPException(500, "the answer was given up")


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _has_key(expected: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a header holds the key. Digests are compared, in a time that tells nothing."""
    found = False
    for name, value in headers:
        given = value
        if name == b"authorization":
            scheme, _, given = value.partition(b" ")
            if scheme.lower() == b"basic":  # http://judge:KEY@host/..., of clients without headers
                given = _password(given)
            elif scheme.lower() != b"bearer":
                continue
        elif name != b"x-api-key":
            continue
        found |= hmac.compare_digest(sha256(given.strip()).digest(), expected)
    return found


def _password(given: bytes) -> bytes:
    try:
        return b64decode(given.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
