"""Chat templates, rendered in a process of their own within bounds of time, memory and length.

A template is a program that comes with a model, and may do otherwise on a later message: every
rendering is bounded. The process renders by transformers, has no secrets in its environment, and is
started once.
"""

import atexit
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowright.core.checkout import SOURCE
from flowright.core.errors import ConfigError, DataError, boundary
from flowright.core.files import read_bytes

CHAT_TEMPLATE = "chat_template.jinja"
"""Name of the file in a model's folder."""
CPU_SECONDS = 2.0
"""Computing time of one rendering: a template takes milliseconds."""
_MEMORY_BYTES = 1 << 30
_MOST_TEMPLATE = 1 << 20  # characters; those of published models have up to 40,000
_SPARE_TEXT = 1 << 22  # characters of a rendering beyond four times its request
_KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
_NEEDLESS = ", which no template needs; it is not used"
_SYNTAX = ("TemplateSyntaxError", "TemplateAssertionError")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of numpy, an arena each


def read_template(path: Path) -> str:
    """Return the Jinja text of a file. Raises ConfigError for a missing, unreadable or endless one,
    and for a mistake in its syntax."""
    try:
        text = read_bytes(path, most=4 * _MOST_TEMPLATE).decode()
    except OSError as error:
        why = error.strerror or "not a file"
        raise ConfigError(f"policy.chat_template: {path}: {why}; give a file of Jinja") from None
    except UnicodeDecodeError:
        raise ConfigError(f"policy.chat_template: {path}: not a text in UTF-8") from None
    problem = ""
    try:
        render_template(text, (), to_answer=True, variables={})
    except DataError as error:
        problem = str(error)
    except ValueError as error:  # it may well refuse to render no turns
        problem = str(error) * str(error).startswith(_SYNTAX)
    if problem or not text.strip():
        raise ConfigError(f"policy.chat_template: {path}: {problem or 'an empty file'}")
    return text


def template_id(template: str | None) -> str | None:
    """Return a hash of a configured template; None for a model's own."""
    return template and hashlib.sha256(template.encode()).hexdigest()[:16]


def render_template(
    template: str, turns: Sequence[Mapping[str, Any]], to_answer: bool, variables: Mapping[str, Any]
) -> str:
    """Render turns with a template as transformers does; ``variables`` are the tokenizer's special
    tokens. Raises ValueError if the template refuses the turns or has a mistake, DataError above a
    limit."""
    if len(template) > _MOST_TEMPLATE:
        raise DataError(f"the chat template has {len(template):,} characters{_NEEDLESS}")
    asked = {"template": template, "turns": turns, "to_answer": to_answer, "variables": variables}
    reply = _RENDERER.ask(json.dumps(asked, default=str).encode() + b"\n")
    if "refused" in reply:
        raise ValueError(reply["refused"])
    if "limit" in reply:
        raise DataError(f"the chat template {reply['limit']}{_NEEDLESS}")
    return reply["text"]


def start_renderer() -> None:
    """Start the process, so that it is ready while a model loads."""
    _RENDERER.start()


class _Renderer:
    """The process, shared by the threads of this one; a forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        with self._lock:
            self._running()

    def ask(self, request: bytes) -> dict[str, Any]:
        """Return the reply; after a death by other causes than a limit, such as a machine out of
        memory, the second one counts."""
        with self._lock:
            ended = 0
            for _ in range(2):
                process = self._running()
                assert process.stdin is not None and process.stdout is not None
                reply = b""
                with suppress(OSError):
                    process.stdin.write(request)
                    process.stdin.flush()
                    reply = process.stdout.readline(_longest(request) * 12 + 1000)
                with suppress(ValueError):
                    if reply.endswith(b"\n"):
                        return json.loads(reply)
                ended = self._stop()
                if ended == -signal.SIGPROF:
                    return {"limit": f"takes more than {CPU_SECONDS:g} s of computing"}
            return {"limit": f"ends the process that renders it (status {ended})"}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            paths = [str(SOURCE), *(path for path in sys.path if Path(path).is_absolute())]
            kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                env=kept | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._owner = os.getpid()
        return self._process

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return 0
        with suppress(OSError):
            process.kill()  # a no-op once it has ended
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        return process.wait()

    def close(self) -> None:
        with self._lock:
            self._stop()


_RENDERER = _Renderer()
atexit.register(_RENDERER.close)


def _longest(request: bytes) -> int:
    return 4 * len(request) + _SPARE_TEXT


# In the process.


def _serve() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))

    def rendered(request: bytes) -> dict[str, str]:
        asked, text = json.loads(request), ""
        with boundary("template") as caught:
            try:
                (text,), _ = render_jinja_template(
                    conversations=[asked["turns"]],
                    chat_template=asked["template"],
                    add_generation_prompt=asked["to_answer"],
                    **asked["variables"],
                )
            except MemoryError:
                return {"limit": f"needs more than {_MEMORY_BYTES >> 30} GiB of memory"}
        if caught.failure is not None:
            why = caught.failure.message.removeprefix("template: ")
            return {"refused": " ".join(why[:500].split())}
        if len(text) > _longest(request):
            return {"limit": f"writes {len(text):,} characters"}
        return {"text": text}

    for request in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        reply = json.dumps(rendered(request)).encode() + b"\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
