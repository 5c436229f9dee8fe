"""Ports, loopback addresses, and uvicorn that drains at a signal."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn

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


def quiet_server(app: Any, date_header: bool = True) -> uvicorn.Config:
    """Return the uvicorn settings for an ASGI app on an existing socket and event loop."""
    return uvicorn.Config(
        app,
        http="h11",
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
    """uvicorn that drains at the first SIGTERM or SIGINT and stops at the second.

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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
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
