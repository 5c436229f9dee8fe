"""What a failed try means: whether another can help, who is to blame, how long to wait first."""

import email.utils
import json
import os
import time
from collections.abc import Mapping
from hashlib import blake2b

import aiohttp

from flowright.llm.transport import CONNECT_SECONDS, Response

LONGEST_PAUSE = 30.0  # seconds
RETRIED_STATUS = frozenset({408, 409, 425, 429})  # and every 5xx
_MALFORMED_REQUEST = "the server refused the request itself; its message says which part"
_MOVED = "the server redirects; put the address that it points to into base_url"
HINTS = {
    301: _MOVED,
    302: _MOVED,
    307: _MOVED,
    308: _MOVED,
    400: _MALFORMED_REQUEST,
    401: "check api_key",
    402: "the account has no credit left",
    403: "check that api_key may use this model",
    404: "check model_name, and that base_url ends in /v1",
    413: "the prompt is larger than the server takes",
    422: _MALFORMED_REQUEST,
}


class Trouble(Exception):
    """A failed try. A ``final`` one is not repeated; ``blames_server`` counts against its health;
    ``retry_after`` (seconds) is the server's own wish."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        final: bool = False,
        blames_server: bool = True,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.final = final
        self.blames_server = blames_server
        self.retry_after = retry_after

    @property
    def refuses_request(self) -> bool:
        """Whether the server objects to the request itself: asking for less may help."""
        return self.kind in ("http_400", "http_413", "http_422")


def trouble_of(error: aiohttp.ClientError, url: str) -> Trouble:
    """The trouble behind a request that got no response."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Trouble("timeout", f"{url}: no connection within {CONNECT_SECONDS:g} s")
    kind = "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "connection"
    return Trouble(kind, f"{url}: {words_of(error)}")


def words_of(error: aiohttp.ClientError) -> str:
    """Why there was no response; of a failed connection only what the system says of it."""
    number = error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    return os.strerror(number) if number else str(error) or type(error).__name__


def status_trouble(response: Response, url: str, file: str) -> Trouble:
    """The trouble that a status other than 200 means; ``file`` is where to mend it."""
    status = response.status
    said = f"{url} answered {status}: {message_of(response)}"
    if status in RETRIED_STATUS or status >= 500:
        pause = _retry_after(response.headers) if status in (429, 503) else None
        return Trouble(f"http_{status}", said, blames_server=status >= 500, retry_after=pause)
    hint = HINTS.get(status, "the server will not take this request")
    said = f"{said} ({hint}; {file})"
    return Trouble(f"http_{status}", said, final=True, blames_server=False)


def backoff(body: bytes, tries: int, first: float) -> float:
    """Seconds to pause after so many failed tries: ``first`` doubled each time, at most
    LONGEST_PAUSE, times a factor in [0.5, 1) that is a function of the body and the try."""
    full = min(first * 2.0 ** (tries - 1), LONGEST_PAUSE)
    digest = blake2b(body, digest_size=4, salt=tries.to_bytes(8, "little")).digest()
    return full * (0.5 + 0.5 * int.from_bytes(digest, "little") / 2**32)


def message_of(response: Response) -> str:
    """The server's own words, on one line: the OpenAI error object where there is one."""
    if "location" in response.headers:
        return f"see {response.headers['location']}"
    text = response.content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
        error = body.get("error", body)
        text = str(error.get("message", text) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:300] or "(no message)"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: ``retry-after-ms``, or ``Retry-After`` as seconds or
    as a date (RFC 9110, section 10.2.3)."""
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
