"""The log of a judge service: every verdict as a line of JSON, in files that take turns by size.

A line has what was asked and answered, and what the models said: ``at`` (ISO 8601, UTC),
``request``, ``response``, ``raw_replies``. No header and no key is in it, as none is in a request's
body. Questions and references are, so the files are readable by their owner alone. Off unless
``server.log_file`` names one. The program's own messages are not here.

Lines are written by one thread, in the order of the verdicts, and a verdict is answered when its
line is with the system: a crash of the service loses the line of no verdict that was answered. A
crash of the machine may lose the last lines; nothing is forced to the disk.
"""

import asyncio
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from flowright.config.judge import JudgeServerSection
from flowright.core.errors import ConfigError
from flowright.judging.service.raw import raw_replies
from flowright.judging.service.wire import JudgeRequest, JudgeResponse
from flowright.judging.verdict import Verdict


class VerdictLog:
    """The log of one service. Raises ConfigError for a path that cannot be written, before the
    first verdict; a disk that fails later is told on stderr and costs no verdict, one that is slow
    slows verdicts down, but not the service's other answers. No file is held open between lines,
    so that others may take it away."""

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
        """Write a line; ``verdict`` is None where a judge broke down. Whoever is cancelled while it
        waits has its line all the same."""
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
    """The value without the key, which a caller may have put into a text."""
    if isinstance(value, str):
        return value.replace(key, "[key]")
    if isinstance(value, list):
        return [_without(key, each) for each in value]
    if isinstance(value, dict):
        return {name: _without(key, each) for name, each in value.items()}
    return value


class _OwnersFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding)
