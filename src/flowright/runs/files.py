"""Files that are there whole or not at all, a full disk in one line, and the lock that says whether
a trainer owns a directory. Nothing of what a run holds here.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from flowright.errors import RunError


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a value's JSON. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """As :func:`write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file at once: a reader sees the old one or the new one."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data)
    temporary.replace(path)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, renamed to ``path`` once everything in it is on the disk."""
    temporary = path.with_name(path.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with disk_errors(path):
            temporary.mkdir(parents=True)
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _fsync(file)
            _fsync(temporary)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            _fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_UNWRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"{path}: the disk is full; free some space and continue with --resume"
            ) from error
        if error.errno in _UNWRITABLE:
            raise RunError(f"{path}: cannot write here ({error.strerror})") from error
        raise


def check_writable(path: Path) -> None:
    """Whether files can be made in the directory ``path``, or it itself where it is not there yet;
    nothing is written. Raises RunError."""
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    with disk_errors(path):
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not os.access(folder, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code), str(folder))


def take_lock(run: Path) -> IO[str]:
    """Own the directory until the file is closed. Raises RunError where another trainer does.

    The kernel drops the lock with the process, even after ``kill -9``; a process id in a file would
    not do, since ids are used again.
    """
    lock = (run / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise RunError(
            f"{run}: another trainer (process {holder}) is using this run directory; "
            "wait for it or choose another run.name"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def is_held(run: Path) -> bool | None:
    """Whether a trainer owns the directory now; None where it has no lock file (a copy, say).

    Only to be asked about a run that looks alive: where no trainer holds the lock, asking takes it
    for some microseconds.
    """
    try:
        with (run / "lock").open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
