"""Ports, loopback addresses, and uvicorn that bounds what connections may hold and drains at a
signal."""

import asyncio
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from flowright.core.command_line import leave_terminal, stop_signals
from flowright.core.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Host names accepted by a server for this machine alone, against DNS rebinding."""


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    return host in ("127.0.0.1", "::1", "localhost")


def allowed_hosts(host: str) -> tuple[str, ...]:
    """Return the host names that a server at this address accepts; ``*`` is any."""
    return LOOPBACK if is_loopback(host) else ("*",)


def url_of(host: str, port: int) -> str:
    """Return ``http://host:port``, with brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_port(port: int) -> None:
    """Raise UserError for a number that is no port."""
    if not 0 <= port <= 65535:
        raise UserError(f"port {port}: ports go to 65535; 0 is any free one")


def listen(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket; port 0 is any free one. Raises UserError if it is taken."""
    check_port(port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # IPPROTO_TCP is named: asyncio disables Nagle's algorithm only on sockets that state it, and a
    # reply in two writes would wait 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port"
        ) from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


class BoundedHttp(H11Protocol):
    """Connection whose requests must arrive in time, however slowly their bytes come.

    Where more than ``most`` connections are open, a third of the descriptors that the process may
    have, the oldest ones without a whole request, idle ones too, are closed, so that others are
    served.
    """

    head_seconds = 10.0
    body_seconds = 60.0
    grace_seconds = 0.5  # of a connection where there are too many
    most = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3)

    _made = 0.0
    _since: float | None = None  # the begin of the part that is waited for, head or body
    _part: Any = None
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._made = self.loop.time()
        self._wait_for(h11.IDLE)
        if len(self.connections) > self.most:
            self.loop.call_later(self.grace_seconds, self._close_oldest)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        self._wait_for(state if state in (h11.IDLE, h11.SEND_BODY) else None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        state = self.conn.their_state
        self._wait_for(state if state is h11.SEND_BODY else None)
        self._since = self.loop.time()  # idle, within uvicorn's own limit

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        super().connection_lost(exc)

    def _wait_for(self, part: Any) -> None:
        """Start the time limit of a part of a request, unless it runs already; None ends it."""
        if part is self._part and self._limit is not None:
            return
        if self._limit is not None:
            self._limit.cancel()
        self._part, self._limit, self._since = part, None, None
        if part is not None:
            seconds = self.head_seconds if part is h11.IDLE else self.body_seconds
            self._since = self.loop.time()
            self._limit = self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    def _close_oldest(self) -> None:
        excess = len(self.connections) - self.most
        before = self.loop.time() - self.grace_seconds / 2  # timers are early by a little
        waiting = [
            (each._since, id(each), each)
            for each in self.connections
            if isinstance(each, BoundedHttp) and each._since is not None and each._made <= before
        ]
        for _, _, each in sorted(waiting)[: max(0, excess)]:
            each._close()


def quiet_server(app: Any, date_header: bool = True) -> uvicorn.Config:
    """Return the uvicorn settings for an ASGI app on an existing socket and event loop."""
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=date_header,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )


class DrainingServer(uvicorn.Server):
    """uvicorn that drains at the first SIGTERM, SIGINT or SIGHUP and stops at the second.

    Its port stays open meanwhile, so that clients get an answer. ``drain`` waits for the running
    requests for a number of seconds, cancels the others and returns their count; ``say`` shows a
    line.
    """

    def __init__(
        self,
        app: Any,
        drain: Callable[[float], Awaitable[int]],
        drain_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(quiet_server(app))
        self._drain = drain
        self._drain_seconds = drain_seconds
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._drains: list[asyncio.Task[None]] = []

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear SIGHUP, too, unless it is ignored."""
        hears = current_thread() is main_thread() and signal.SIGHUP in stop_signals()
        before = signal.signal(signal.SIGHUP, self.handle_exit) if hears else None
        try:
            with super().capture_signals():
                yield
        finally:
            if hears:
                signal.signal(signal.SIGHUP, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        leave_terminal(sig)
        # A signal handler runs between any two instructions: the event loop does the work.
        self._loop.call_soon_threadsafe(self._start_drain, signal.Signals(sig).name)

    def _start_drain(self, name: str) -> None:
        seconds = 0.0 if self._drains else self._drain_seconds
        self._drains.append(self._loop.create_task(self._finish(name, seconds)))

    async def _finish(self, name: str, seconds: float) -> None:
        self._say(f"{name}: draining, {seconds:g} s at most")
        cancelled = await self._drain(seconds)
        self._say(f"drained; requests cancelled: {cancelled}")
        self.should_exit = True
