"""Connections to model servers: through which proxy, and a pool that stays cheap when it is large.

httpx2's own pool walks over all of its connections for every request: one call costs 0.9 ms of CPU
with 8 in flight, 1.6 ms with 64 and 3.2 ms with 256. Here each request in flight has a transport
of one connection to itself, kept on a stack while idle, and the cost stays at 0.9 ms.
"""

import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from typing import cast
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2

CONNECT_SECONDS = 10.0
# Below the 5 s after which vLLM (uvicorn) closes an idle connection, so that ours is never the one
# that finds out.
IDLE_SECONDS = 3.0


def proxy_for(url: str, no_proxy: str | None) -> str | None:
    """The proxy that the environment names for ``url``, or None for a direct connection.

    ``no_proxy`` is added to the environment's ``NO_PROXY``: host names, domain suffixes,
    addresses, and networks such as ``10.0.0.0/8``. This machine itself is always reached directly.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host == "localhost" or _within(host, "127.0.0.0/8") or _within(host, "::1/128"):
        return None
    excluded = f"{no_proxy or ''},{proxies.get('no', '')}".split(",")
    if any(_excludes(item.strip().lower(), host, parts.port) for item in excluded):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _excludes(item: str, host: str, port: int | None) -> bool:
    if item in ("", "*"):
        return item == "*"
    if "/" in item:
        return _within(host, item)
    name, colon, number = item.rpartition(":")
    if colon and number.isdigit() and ":" not in name:
        if str(port) != number:
            return False
        item = name
    item = item.lstrip("*").lstrip(".")
    return host == item or host.endswith(f".{item}")


def _within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def open_client(url: str, no_proxy: str | None) -> httpx2.AsyncClient:
    """An HTTP client for one server. It trusts no proxy variables but those read here."""
    proxy = proxy_for(url, no_proxy)
    secure = any(u.startswith("https:") for u in (url, proxy or ""))
    # Loading the certificates takes 50 ms. A context without any trusts nobody.
    verify = httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def lane() -> httpx2.AsyncBaseTransport:
        limits = httpx2.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS)
        return httpx2.AsyncHTTPTransport(verify=verify, limits=limits, proxy=proxy)

    return httpx2.AsyncClient(
        transport=Lanes(lane),
        trust_env=False,
        follow_redirects=False,  # a redirected POST becomes a GET
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
    )


class Lanes(httpx2.AsyncBaseTransport):
    """A stack of one-connection transports. The caller bounds how many are in use at once."""

    def __init__(self, make: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._make = make
        self._idle: list[httpx2.AsyncBaseTransport] = []
        self._all: list[httpx2.AsyncBaseTransport] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        lane = self._idle.pop() if self._idle else self._add()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._idle.append(lane)
            raise
        stream = cast(httpx2.AsyncByteStream, response.stream)
        response.stream = _Held(stream, lambda: self._idle.append(lane))
        return response

    async def aclose(self) -> None:
        for lane in self._all:
            await lane.aclose()

    def _add(self) -> httpx2.AsyncBaseTransport:
        lane = self._make()
        self._all.append(lane)
        return lane


class _Held(httpx2.AsyncByteStream):
    """A response body that gives its lane back when it is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, release: Callable[[], None]) -> None:
        self._stream = stream
        self._release: Callable[[], None] | None = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            release, self._release = self._release, None
            if release is not None:
                release()
