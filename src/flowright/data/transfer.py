"""A resumable HTTP download with the standard library. Which files, and whence, is not known here.

A transfer goes to ``<target>.part``, beside it ``<target>.part.tag`` with the server's validator
(a strong ETag, else Last-Modified); ``target`` appears when all bytes are there. A later call goes
on where the last one stopped if the server confirms by the validator that the file is the same.
"""

import errno
import socket
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import flowright
from flowright.errors import UserError

_CHUNK = 1 << 18
_AGENT = f"flowright/{flowright.__version__}"
_TEMPORARY = frozenset({408, 416, 425, 429, 500, 502, 503, 504})
_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM})


class FetchError(UserError):
    """A file could not be fetched from an address; another address may have it."""


class Progress(Protocol):
    """Told how many bytes of a file are there, and of how many, where the server says so."""

    def __call__(self, done: int, total: int | None) -> None: ...


class _BrokenError(Exception):
    """A transfer that ended early and is worth another try."""


class Web:
    """Downloads. ``seconds`` is the longest silence of a server that is borne; a broken transfer is
    taken up again until ``attempts`` are used, after pauses that double from ``pause`` seconds. A
    host that can't be reached at all is not asked again."""

    def __init__(self, *, seconds: float = 30.0, attempts: int = 4, pause: float = 1.0) -> None:
        self._seconds = seconds
        self._attempts = attempts
        self._pause = pause
        self._unreachable: dict[str, str] = {}

    def fetch(self, url: str, target: Path, show: Progress) -> bool:
        """Bring ``url`` to ``target``; True if a transfer of an earlier call was taken up.

        Raises FetchError, in which case the bytes that came stay for the next call.
        """
        host = urlsplit(url).netloc
        if host in self._unreachable:
            raise FetchError(f"{url}: {self._unreachable[host]}")
        part = target.with_name(target.name + ".part")
        problem = ""
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            resumed = part.exists() and _tag(part).exists()
            for attempt in range(self._attempts):
                if attempt:
                    time.sleep(self._pause * 2 ** (attempt - 1))
                try:
                    self._transfer(url, part, show)
                except _BrokenError as broken:
                    problem = str(broken)
                else:
                    part.replace(target)
                    _tag(part).unlink(missing_ok=True)
                    return resumed
        except _UnreachableError as error:
            self._unreachable[host] = f"{host} can't be reached: {error}"
            raise FetchError(f"{url}: {self._unreachable[host]}") from None
        except OSError as error:
            raise FetchError(f"{error.filename or part}: {error.strerror or error}") from None
        except ValueError as error:
            raise FetchError(f"{url}: {error}") from None
        raise FetchError(f"{url}: {problem}, {self._attempts} times; call again to go on")

    def _transfer(self, url: str, part: Path, show: Progress) -> None:
        """One request that begins where ``part`` ends; returns when ``part`` is complete."""
        start = part.stat().st_size if part.exists() and _tag(part).exists() else 0
        request = Request(url, headers={"User-Agent": _AGENT, "Accept-Encoding": "identity"})
        if start:
            request.add_header("Range", f"bytes={start}-")
            request.add_header("If-Range", _tag(part).read_text(encoding="utf-8"))
        try:
            with urlopen(request, timeout=self._seconds) as response:
                headers: HTTPMessage = response.headers
                if headers.get_content_type() == "text/html":
                    raise FetchError(f"{url}: the server sent a web page instead of the file")
                if response.status != 206:
                    start = 0
                    part.unlink(missing_ok=True)  # before its tag changes: we may be killed here
                    _remember(headers, part)
                elif not headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    part.unlink()
                    raise _BrokenError("the server sent another range than it was asked for")
                length = headers.get("Content-Length")
                total = start + int(length) if length and length.isdigit() else None
                done = _copy(response.read, part, start, total, show)
        except HTTPError as error:
            error.close()
            if error.code == 416:  # the part is not a beginning of the file
                part.unlink(missing_ok=True)
            if error.code in _TEMPORARY:
                raise _BrokenError(f"HTTP {error.code} {error.reason}") from None
            raise FetchError(f"{url}: HTTP {error.code} {error.reason}") from None
        except URLError as error:
            raise _connection_error(error.reason) from None
        except HTTPException as error:
            raise _BrokenError(f"the transfer broke off ({type(error).__name__})") from None
        except OSError as error:
            if error.errno in _LOCAL:
                raise
            raise _BrokenError(f"the transfer broke off ({error})") from None
        if total is not None and done != total:
            raise _BrokenError(f"the transfer broke off after {done:,} of {total:,} bytes")


class _UnreachableError(Exception):
    """The host does not answer: trying again at once is no use."""


def _connection_error(reason: object) -> Exception:
    if isinstance(reason, TimeoutError | socket.gaierror | ConnectionRefusedError):
        return _UnreachableError(str(reason))
    return _BrokenError(f"no connection ({reason})")


def _copy(
    read: Callable[[int], bytes], part: Path, start: int, total: int | None, show: Progress
) -> int:
    done = start
    with part.open("ab" if start else "wb") as out:
        show(done, total)
        while chunk := read(_CHUNK):
            out.write(chunk)
            done += len(chunk)
            show(done, total)
    return done


def _tag(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _remember(headers: HTTPMessage, part: Path) -> None:
    """Keep what If-Range wants. Without it a part is useless, and the next try starts afresh."""
    etag = headers.get("ETag", "")
    validator = etag if etag.startswith('"') else headers.get("Last-Modified")
    if validator:
        _tag(part).write_text(validator, encoding="utf-8")
    else:
        _tag(part).unlink(missing_ok=True)
