"""What a server's status and words mean: can another attempt help, who is to blame, what to do."""

import email.utils
import json
import time
from collections.abc import Mapping

from flowright.llm.transport import RequestError, Response

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


def status_error(response: Response, url: str, file: str) -> RequestError:
    """The error that a status other than 200 means; ``file`` is where to mend it."""
    status = response.status
    said = f"{url} answered {status}: {message_of(response)}"
    if status in RETRIED_STATUS or status >= 500:
        pause = _retry_after(response.headers) if status in (429, 503) else None
        return RequestError(f"http_{status}", said, blames_server=status >= 500, retry_after=pause)
    hint = HINTS.get(status, "the server will not take this request")
    said = f"{said} ({hint}; {file})"
    return RequestError(f"http_{status}", said, final=True, blames_server=False)


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
