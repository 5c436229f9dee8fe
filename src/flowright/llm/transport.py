"""HTTP connections to servers, and errors by status.

Built on ``aiohttp``: benchmarks/http_client.py compares its cost in the trainer's event loop with
that of the ``openai`` package.
"""

import asyncio
import email.utils
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from flowright.core.network_faults import (
    NO_TLS,
    TLS,
    network_fault,
    proxy_for,
    proxy_named,
    speaks_tls,
)

CONNECT_SECONDS = 10.0
# Below the 5 s after which vLLM (uvicorn) closes an idle connection, so that ours is never the one
# that finds out.
IDLE_SECONDS = 3.0
MOST_BYTES = 64 << 20
"""Longest body of a response, decompressed; a streamed reply of 131,072 tokens has about 40 MB."""
_LARGE_BODY = 1 << 20  # written in pieces, so that the loop goes on meanwhile


@dataclass(eq=False)
class RequestError(Exception):
    """A failed attempt. ``kind`` is ``unreachable`` (connection refused), ``connection``,
    ``timeout``, ``http_503`` and the like, or a name of the reply's reader. A ``final`` one is not
    repeated; ``blames_server`` counts against its health; ``retry_after`` (seconds) is the server's
    wish. ``elsewhere``: another key takes the next attempt at once."""

    kind: str
    message: str
    final: bool = False
    blames_server: bool = True
    retry_after: float | None = None
    elsewhere: bool = False

    @property
    def is_overload(self) -> bool:
        """True for a server that is up and has no room (RFC 6585, 4; RFC 9110, 15.6.4)."""
        asks_to_wait = self.kind == "http_503" and self.retry_after is not None
        return self.kind == "http_429" or asks_to_wait


_UNLIKE_REFUSALS = frozenset({"http_408", "http_425", "http_429"})


def is_refusal(kind: str) -> bool:
    """Return whether a failure is that of a server that is up, has room, and does not reply with
    what it was asked for: the request may be the cause."""
    is_status = kind.startswith(("http_2", "http_3", "http_4")) and kind not in _UNLIKE_REFUSALS
    return is_status or kind in ("http_500", "malformed", "oversized")


@dataclass(frozen=True, slots=True)
class Response:
    """A whole HTTP response; names of headers are matched in any case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Connection:
    """Pooled connections to one server, for one event loop.

    The caller bounds the requests in flight. Reads no proxy variables but those of
    :func:`proxy_for`, follows no redirect (a redirected POST becomes a GET), retries nothing.
    Returns a response of any status; raises RequestError without one.
    """

    def __init__(
        self, url: str, no_proxy: str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self._may_expect_tls = url.startswith("http://")  # until its first reply
        self._headers = {"Content-Type": "application/json", "User-Agent": "flowright"}
        self._headers |= headers or {}
        self._proxy = proxy_for(url, no_proxy)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(self, path: str, key: str, seconds: float, body: bytes | None = None) -> Response:
        """Send a GET, or a POST of a JSON ``body``, and return the response within ``seconds``.
        Raises RequestError."""
        if self._session is None:  # it needs the running loop
            self._session = self._open()
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    "GET" if body is None else "POST",
                    self._url + path,
                    data=body if body is None or len(body) < _LARGE_BODY else io.BytesIO(body),
                    headers={"Authorization": f"Bearer {key}"},
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as response,
            ):
                if response.status == 407 and self._proxy is not None:
                    asks = f"{proxy_named(self._url, self._proxy)} asks for a user and a password"
                    raise RequestError("unreachable", f"{self._url}: {asks}", final=True)
                self._may_expect_tls = False
                return Response(response.status, response.headers, await self._body(response))
        except aiohttp.ConnectionTimeoutError:  # before TimeoutError, which it also is
            kind, what = "timeout", f"no connection within {CONNECT_SECONDS:g} s"
        except TimeoutError:
            kind, what = "timeout", f"no reply within {round(seconds, 3):g} s"
        except aiohttp.ClientError as error:
            away = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError)
            kind = "unreachable" if away else "connection"
            what = self._fault(error)
            if not away and self._may_expect_tls:
                self._may_expect_tls = False
                what = TLS if await asyncio.to_thread(speaks_tls, self._url) else what
            lasts = isinstance(error, aiohttp.ClientConnectorCertificateError)
            lasts = lasts or what in (NO_TLS, TLS)
            raise RequestError(kind, f"{self._url}: {what}", final=lasts) from None
        raise RequestError(kind, f"{self._url}: {what}")

    def _fault(self, error: aiohttp.ClientError) -> str:
        if self._proxy is not None:
            proxy = proxy_named(self._url, self._proxy)
            if isinstance(error, aiohttp.ClientHttpProxyError):
                return f"{proxy} answers {error.status} {error.message}".rstrip()
            if isinstance(error, aiohttp.InvalidURL):
                return f"{proxy} has no valid address"
        # Some of aiohttp's are an ssl.SSLError by name alone.
        found = network_fault(error.__cause__ or error.__context__ or error, self._url, self._proxy)
        return found or str(error) or type(error).__name__

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > MOST_BYTES:
                what = f"a body above {MOST_BYTES >> 20} MiB, which no API sends; check the address"
                raise RequestError("oversized", f"{self._url}: {what}")
        return bytes(body)

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


async def misplaced(
    url: str, no_proxy: str | None, key: str, ends: Mapping[str, str]
) -> tuple[str, Response] | None:
    """Return the first of other addresses that answers 200, and its response. ``ends``: addresses
    with the path to ask there."""
    for other, path in ends.items():
        connection = Connection(other, no_proxy)
        try:
            response = await connection.ask(path, key, CONNECT_SECONDS)
        except RequestError:
            continue
        finally:
            await connection.aclose()
        if response.status == 200:
            return other, response
    return None


RETRIED_STATUS = frozenset({408, 409, 425, 429})  # and every 5xx
_MALFORMED_REQUEST = "the server refused the request itself; its message names the part"
_MOVED = "the server redirects; put the address that it points to into base_url or judge_url"
HINTS = {
    301: _MOVED,
    302: _MOVED,
    307: _MOVED,
    308: _MOVED,
    400: _MALFORMED_REQUEST,
    401: "check api_key",
    402: "the account has no credit left",
    403: "check that api_key may use this model",
    404: "check model_name and the address; an OpenAI API's base_url ends in /v1",
    413: "the prompt is larger than the server takes",
    422: _MALFORMED_REQUEST,
    503: "it may still be loading; try again when it serves",
}


def status_error(response: Response, url: str, file: str) -> RequestError:
    """Return the error for a status other than 200; ``file`` holds the setting to mend."""
    status = response.status
    message = f"{url} answered {status}: {message_of(response)}"
    if status in RETRIED_STATUS or status >= 500:
        pause = _retry_after(response.headers) if status in (429, 503) else None
        error = RequestError(f"http_{status}", message, retry_after=pause)
        error.blames_server = status >= 500 and not error.is_overload
        return error
    hint = HINTS.get(status, "the server will not take this request")
    if status in (400, 422) and all(word in message.lower() for word in ("only support", "stream")):
        hint = "set stream: true for this model"
    message = f"{message} ({hint}; {file})"
    return RequestError(f"http_{status}", message, final=True, blames_server=False)


def message_of(response: Response) -> str:
    """Return the server's message on one line, from an OpenAI error object if there is one."""
    if "location" in response.headers:
        return f"see {response.headers['location']}"
    text = response.content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
        error = body.get("error", body)
        text = str(error.get("message", text) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        pass
    return " ".join(text.split())[:300] or "(no message)"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``retry-after-ms`` or ``Retry-After``, which are seconds or a date
    (RFC 9110, section 10.2.3)."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after")
        if value is None:
            return None
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
