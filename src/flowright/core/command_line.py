"""Exit statuses and signals of commands: mistakes that the user can mend end with a line, never
with a traceback; a bug keeps its traceback.

Ctrl-C, SIGTERM and SIGHUP are answered at once, by a line on what is kept and how to resume
(:func:`on_signal`), and end the command by KeyboardInterrupt; the second one ends it for sure.
"""

import argparse
import asyncio
import errno
import inspect
import io
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from flowright.core.checkout import CHECKOUT, SOURCE
from flowright.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

LEAST_FILES = 128
AT_ONCE_SECONDS = 1.0
"""Supervisors such as torchrun send SIGTERM to the process and to its group: that is one request,
not a second one."""

SHOW_CURSOR = "\x1b[?25h"
CLEAR_LINE = "\r\x1b[2K"

_OF_DISK = {
    errno.ENOSPC: "the disk is full; free some space and start again",
    errno.EDQUOT: "the disk quota is used up; free some space and start again",
    errno.EROFS: "cannot write here (read-only file system)",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.ENOTDIR: "not a directory",
    errno.EISDIR: "is a directory",
    errno.EMFILE: "too many open files; raise their limit (ulimit -n 1024)",
    errno.ENFILE: "the machine has too many open files",
    errno.ENOENT: "no such file or directory",
}


@dataclass(slots=True)
class _Signal:
    """The signal that this process received, and the response to it."""

    number: int | None = None
    at: float = 0.0
    line: Callable[[], str] = lambda: ""
    last: Callable[[], None] = lambda: None
    task: "asyncio.Task[object] | None" = None


_received = _Signal()


def say(console: "Console", line: str) -> None:
    """Print a line unchanged: no markup, no wrapping."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bars() -> "Iterator[tuple[Progress, Callable[[str, int], Callable[[], None]]]]":
    """Bars on stderr, and a function that adds one and returns a callback that advances it."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True)

    def add(name: str, total: int) -> Callable[[], None]:
        bars.start()  # not before there is something to show
        bar = bars.add_task(name, total=total)
        return lambda: bars.advance(bar)

    try:
        yield bars, add
    finally:
        if bars.live.is_started:
            bars.stop()


def settings_of(options: argparse.Namespace, kind: type, **given: Any) -> Any:
    """Make a dataclass of ``given`` and, under the names of its other fields, of the options."""
    named = {f.name: getattr(options, f.name) for f in fields(kind) if hasattr(options, f.name)}
    return kind(**named | given)


def run_command(main: Callable[[], int], signals: bool = True) -> int:
    """Return the exit status of ``main``, or of how it ended: 2 for what the user can mend (a
    UserError's own status, the disk, a package that is not installed), 130 for Ctrl-C, 143 for
    SIGTERM, 129 for SIGHUP, 0 where the reader of a pipe has seen enough. ``signals``: False where
    ``main`` handles them itself."""
    _complete_streams()
    with _handled_signals() if signals else nullcontext():
        try:
            status = main()
            sys.stdout.flush()
        except UserError as error:
            return _exit_with(*error.problems, status=error.exit_code)
        except ModuleNotFoundError as error:
            if not _is_requirement(error):
                raise
            install = f"{sys.executable} -m pip install -e {CHECKOUT}"
            return _exit_with(f"{error}; install the requirements: {install}", status=2)
        except KeyboardInterrupt:
            if _received.number is None:
                return _exit_with("interrupted", status=130)
            return 128 + _received.number
        except asyncio.CancelledError:
            if _received.number is None:
                raise
            return 128 + _received.number
        except BrokenPipeError:
            _discard_output()
            return 0
        except OSError as error:
            if error.errno not in _OF_DISK:
                raise
            where = f"{error.filename}: " if error.filename else ""
            return _exit_with(f"{where}{_OF_DISK[error.errno]}", status=2)
        except SystemExit:  # of argparse, which has printed why
            _discard_output_if_broken()
            raise
    return status


def _is_requirement(error: ModuleNotFoundError) -> bool:
    """True if one of our own modules imports what is missing, and it is not one of them."""
    importing = error.__traceback__
    while importing and importing.tb_next:
        importing = importing.tb_next
    file = importing.tb_frame.f_code.co_filename if importing else ""
    ours = Path(file).is_relative_to(SOURCE / "flowright")
    return ours and not (error.name or "flowright").startswith("flowright")


def check_descriptors() -> None:
    """Raise the soft limit of open files to ``LEAST_FILES``. Raises UserError if it cannot be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_FILES:
        return
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        raise UserError(
            f"ulimit -n is {hard}: {LEAST_FILES} open files may be needed, 1024 with many servers; "
            "raise it, such as by ulimit -n 1024"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_FILES, hard))


def _complete_streams() -> None:
    """A closed stream would have its number given to the next file or socket, which libuv aborts
    at; and a name that the terminal cannot show is no reason to stop."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if not sys.stdout:  # Python leaves it out where it was closed
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def on_signal(line: Callable[[], str], last: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set the response to a signal within this context: its line, and the last action before a
    second signal ends the process. Within a task, that task is ended."""
    before = _received.line, _received.last, _received.task
    _received.line, _received.last, _received.task = line, last, _current_task()
    try:
        yield
    finally:
        _received.line, _received.last, _received.task = before


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop here
        return None


@contextmanager
def _handled_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _hear) for number in stop_signals()}
    _received.number = None
    try:
        yield
    finally:
        if _received.number is None:  # else this process is ending, and may be asked again
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def signals_as_interrupts() -> Iterator[Callable[[], int]]:
    """Answer SIGTERM and SIGHUP as Ctrl-C, where an event loop ends at that; yield the exit status
    of the signal that came."""
    received = signal.SIGINT

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal received
        leave_terminal(number)
        received = signal.Signals(number)
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        before = {n: signal.signal(n, interrupt) for n in stop_signals() if n != signal.SIGINT}
    else:
        before = {}
    try:
        yield lambda: 128 + received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a command: SIGHUP unless it is ignored, as under ``nohup``."""
    ends = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if ends else []))


def leave_terminal(number: int) -> None:
    """After SIGHUP write nowhere if the terminal is gone: any line would be an error."""
    if number != signal.SIGHUP:
        return
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)


def _hear(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _received.number is None:
        leave_terminal(number)
        _received.number, _received.at = number, now
        line = _received.line()
        kept = f"; {line}" if line else ""
        _write(f"{signal.Signals(number).name}: stopping{kept} (once more ends at once)")
        _end(frame)
    elif number == signal.SIGINT or now - _received.at > AT_ONCE_SECONDS:
        try:
            _received.last()
        finally:
            _write(SHOW_CURSOR if os.isatty(2) else "", end="")
            os._exit(128 + number)


def _end(frame: FrameType | None) -> None:
    """By KeyboardInterrupt in our own code, be it long at work without a pause. But what is raised
    in a callback of the event loop may end a connection and nothing else: from there, and where
    the loop waits, the task is cancelled."""
    task = _received.task
    if task is None or task.done() or _in_coroutine(frame):
        raise KeyboardInterrupt
    task.get_loop().call_soon_threadsafe(task.cancel)


def _in_coroutine(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_COROUTINE:
            return True
        frame = frame.f_back
    return False


def _write(text: str, end: str = "\n") -> None:
    """Straight to the terminal: Python's own stream may be in the middle of something. One of
    several processes speaks."""
    if os.environ.get("RANK", "0") == "0":
        clear = CLEAR_LINE if end and os.isatty(2) else ""
        with suppress(OSError):
            os.write(2, f"{clear}{text}{end}".encode(errors="replace"))


def _exit_with(*lines: str, status: int) -> int:
    _discard_output_if_broken()
    with suppress(OSError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)
    return status


def _discard_output_if_broken() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Discard the rest of the output: without this, Python complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
