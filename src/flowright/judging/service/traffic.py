"""Bounds of a service: admission, keys, body sizes, draining, and its Prometheus metrics.

Nothing waits without a bound: requests that fit neither into the slots nor into the queue are
refused at once.
"""

import asyncio
import hmac
import time
from base64 import b64decode
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import prometheus_client as prometheus
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowright.judging.service.bodies import JudgeResponse

Slot = Callable[[], AbstractAsyncContextManager[None]]

_PACE_WEIGHT = 0.05  # of the latest verdict in the moving mean
_WANTS_SECONDS = 35.0  # after a refusal: a little longer than a client may be asked to wait
_CANCEL_SECONDS = 1.0  # for cancelled requests to end, after a drain


class Overloaded(Exception):
    """Raised if neither a slot nor room in the queue is left."""


class Admission:
    """Slots for ``max_in_flight`` verdicts and a queue of ``max_queue``, in fair shares.

    Clients take turns: a free slot goes to the next waiting client, whatever the order of arrival
    and the length of the others' queues. While a client is refused for lack of room, others that
    hold more than their share of it get no more, so that room becomes free.

    ``pace`` is the moving mean of the seconds that a slot is held; 0 at first.
    """

    def __init__(
        self, max_in_flight: int, max_queue: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._room = max_in_flight + max_queue
        self._slot_count = max_in_flight
        self._clock = clock
        self._running = 0
        self._held: Counter[str] = Counter()
        self._refused: dict[str, float] = {}  # who wants room, until when
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.pace = 0.0

    @property
    def running(self) -> int:
        return self._running

    @property
    def queued(self) -> int:
        return self._held.total() - self._running

    def seconds_to_room(self, client: str = "") -> float:
        """Estimate the seconds until there is room for a client: half of the queue, or one verdict
        for a client without requests, which comes before the others."""
        rounds = self.queued / 2 / self._slot_count if self._held[client] else 0.0
        return self.pace * max(1.0, rounds)

    @contextmanager
    def admit(self, count: int, client: str = "") -> Iterator[Slot]:
        """Reserve room for ``count`` verdicts of a client, and yield the context manager of a slot
        for each of them. Raises Overloaded."""
        if self._is_too_much(count, client):
            self._refused[client] = self._clock() + _WANTS_SECONDS
            raise Overloaded
        self._refused.pop(client, None)
        self._held[client] += count
        left = count

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            nonlocal left
            await self._turn(client)
            left -= 1
            began = time.monotonic()
            try:
                yield
            finally:
                took = time.monotonic() - began
                self.pace += (took - self.pace) * (_PACE_WEIGHT if self.pace else 1.0)
                self._give_back(client, 1)
                self._next_turn()

        try:
            yield slot
        finally:
            self._give_back(client, left)  # of verdicts that were cancelled before they began

    def _is_too_much(self, count: int, client: str) -> bool:
        if self._held.total() + count > self._room:
            return True
        now = self._clock()
        self._refused = {name: until for name, until in self._refused.items() if until > now}
        if not self._refused.keys() - {client}:
            return False
        share = self._room // len(self._held.keys() | self._refused.keys() | {client})
        return self._held[client] > 0 and self._held[client] + count > share

    def _give_back(self, client: str, count: int) -> None:
        self._held[client] -= count
        if not self._held[client]:
            del self._held[client]

    async def _turn(self, client: str) -> None:
        """Take a slot, waiting for one if necessary."""
        if self._running < self._slot_count:  # so the queue is empty
            self._running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(client, deque())
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got the slot in the same moment
                self._next_turn()
            raise

    def _next_turn(self) -> None:
        """Pass a slot to the next waiting client, or free it."""
        while self._waiting:
            client, turns = self._waiting.popitem(last=False)
            while turns and turns[0].done():  # cancelled
                turns.popleft()
            if turns:
                turns.popleft().set_result(None)
                if turns:
                    self._waiting[client] = turns  # behind the others
                return
        self._running -= 1


class Traffic:
    """Running requests. ``drain`` lets them finish and refuses new ones."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = False
        self._running: set[asyncio.Task[None]] = set()

    def add(self, task: "asyncio.Task[None]") -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self, seconds: float) -> int:
        """Wait for the running requests, ``seconds`` at most, then cancel the others and return
        their count."""
        self.draining = True
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        self.expired = True
        left = list(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CANCEL_SECONDS)
        return len(left)


# Seconds: rules answer in microseconds, a reasoning model in minutes.
_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ServiceMetrics:
    """Counters of one service. Labels have few values: unknown paths are all `other`."""

    def __init__(self, admission: Admission, judge: str, simulated: bool) -> None:
        self._registry = prometheus.CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "flowright_judge", "registry": self._registry}
        counter, gauge = partial(prometheus.Counter, **ours), partial(prometheus.Gauge, **ours)
        self.requests = counter(
            "requests",
            "Requests by endpoint and HTTP code; 499 is a client that disconnected.",
            ("endpoint", "code"),
        )
        self._verdicts = counter(
            "verdicts", "Verdicts by status and by who decided.", ("status", "source")
        )
        took = "Time of one verdict in the judge, queueing left out."
        self._seconds = prometheus.Histogram("verdict_seconds", took, buckets=_BUCKETS, **ours)
        self._tokens = counter("tokens", "Tokens that verdicts took.", ("kind",))
        self.refused = counter("refused", "Requests refused with 429 because the queue was full.")
        running = gauge("in_flight", "Verdicts in the making.")
        running.set_function(lambda: admission.running)
        queued = gauge("queued", "Verdicts that wait for a place.")
        queued.set_function(lambda: admission.queued)
        who = "Who judges, and whether the numbers are simulated."
        info = gauge("info", who, ("judge", "simulated"))
        info.labels(judge, str(simulated).lower()).set(1)

    def judged(self, response: JudgeResponse) -> None:
        """Count a verdict, or a member of a batch that got none."""
        self._verdicts.labels(response.status, response.source or "none").inc()
        if response.status == "invalid":
            return
        self._seconds.observe(response.metadata.latency)
        self._tokens.labels("prompt").inc(response.metadata.prompt_tokens)
        self._tokens.labels("completion").inc(response.metadata.completion_tokens)

    def text(self) -> bytes:
        return prometheus.generate_latest(self._registry)


OPEN = frozenset({"/health", "/metrics", "/docs", "/openapi.json"})
"""Paths without a key that also answer while draining: they show nothing of a caller's."""

ENDPOINTS = frozenset({"/judge", "/batch_judge", "/openrlhf", "/trained_on"}) | OPEN
CLIENT_GONE = 499  # nginx's code; no client receives it; it is for the metrics


NOT_JSON = "send JSON; with curl: --json '{...}', or -H 'Content-Type: application/json' -d '{...}'"
"""Answer to a body of another type, which a page of another site could send without being asked."""


class Guarded(Protocol):
    """Settings used by the middleware."""

    @property
    def api_key(self) -> str | None: ...

    @property
    def max_body_bytes(self) -> int: ...


def _error(error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class GuardMiddleware:
    """ASGI middleware for key, size and drain. It reads the whole body, so that the limit holds
    while reading, and then watches the connection: a client that disconnects takes its verdicts
    along. Refusals are counted in ``metrics`` like every answer; ``refusal`` renders one."""

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
        """Check and answer a request; False if the client disconnected. Raises HTTPException."""
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
            message = "draining: this server is shutting down"
            raise HTTPException(503, message, {"Connection": "close"})

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if the client disconnected before its end. Raises HTTPException."""
        too_large = f"the body is larger than {self._limit} bytes (server.max_body_bytes)"
        headers = dict(scope["headers"])
        if int(headers.get(b"content-length", b"0")) > self._limit:
            raise HTTPException(413, too_large)
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts += message.get("body", b"")
            if len(parts) > self._limit:
                raise HTTPException(413, too_large)
            if not message.get("more_body", False):
                return bytes(parts)

    async def _answered(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> bool:
        """Let the app answer while watching the connection; False if the client disconnected."""
        left = asyncio.create_task(_until_gone(receive))
        started = False

        async def replayed() -> Message:
            nonlocal started
            if started:
                await asyncio.wait({left})
                return {"type": "http.disconnect"}
            started = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def run() -> None:
            await self._app(scope, replayed, send)

        work = asyncio.create_task(run())
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


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _has_key(expected: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a header holds the key, in constant time, by its digest."""
    found = False
    for name, value in headers:
        given = value
        if name == b"authorization":
            scheme, _, given = value.partition(b" ")
            if scheme.lower() == b"basic":  # http://judge:KEY@host/..., of clients without headers
                try:
                    given = b64decode(given.strip(), validate=True).partition(b":")[2]
                except ValueError:
                    given = b""
            elif scheme.lower() != b"bearer":
                continue
        elif name != b"x-api-key":
            continue
        found |= hmac.compare_digest(sha256(given.strip()).digest(), expected)
    return found
