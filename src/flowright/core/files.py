"""Files of unknown origin read within bounds, atomic files, errors of a full disk in one line, and
the lock of a run directory.
"""

import errno
import fcntl
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from flowright.core.errors import RunError

MOST_BYTES = 1 << 30
"""Bytes of a file that is read whole."""
DEEPEST = 200
"""Levels of lists and objects in a JSON value that is read."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a pipe or a device, which might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a whole file. Raises OSError, also for more than ``most`` bytes."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read()


def read_json(path: Path) -> Any:
    """Read a file of JSON. Raises OSError, and ValueError as :func:`parse_json`."""
    return parse_json(read_bytes(path).decode())


def read_object(path: Path) -> dict[str, Any]:
    """Read a file with a JSON object. Raises OSError, and ValueError for anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def parse_json(text: str) -> Any:
    """Parse standard JSON: NaN, infinities and numbers beyond a float become None. Raises
    ValueError for anything else, and for more than ``DEEPEST`` levels."""
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > DEEPEST and is_deeper(value, DEEPEST):
        raise ValueError("nested too deeply")
    return value


def is_deeper(value: object, levels: int) -> bool:
    """Return whether a JSON value has more than so many levels of lists and objects."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        lists = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for each in lists for inner in each if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a value's JSON. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once, in UTF-8; see :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file at once: a reader sees the old one or the new one. On a full disk the old one
    stays, and nothing beside it."""
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new file in the same folder, of a random name, that replaces ``path`` in the end, or
    is removed after an error. Links are replaced, never followed."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


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


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """One process at a time that makes ``path``; others wait. Who has waited looks again whether
    it is there. Beside it stays an empty ``.lock``."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("a")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_UNWRITABLE = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a full or read-only disk into one line with the remedy."""
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


LEAST_ROOM = 1 << 20
"""Bytes: less is a full disk, on which not even the settings of a run could be kept."""


def check_writable(path: Path) -> None:
    """Raise RunError unless files can be made in the directory ``path``, or in its parent while it
    does not exist; nothing is written."""
    with disk_errors(path):
        folder = nearest(path.absolute())
        usage = shutil.disk_usage(folder)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        # What has no room at all, as /proc has not, is no disk.
        if not os.access(folder, os.W_OK | os.X_OK) or not usage.total:
            code = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code), str(folder))
        if usage.free < LEAST_ROOM:
            raise RunError(f"{path}: the disk is full; free some space")


def nearest(path: Path) -> Path:
    """The path, or the first of the folders above it that is there. Raises OSError, also for a link
    that leads nowhere: no folder can be made in its place."""
    while True:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
            return path
        if path.is_symlink():
            raise OSError(errno.EEXIST, f"{path} is a link that leads nowhere")
        path = path.parent


TRAINING = ("trainer", "run directory", "run.name")


class Lock:
    """Owns a directory until it is released. Raises RunError where another process does.

    The kernel drops the lock with the process, even after ``kill -9``; a process id in a file would
    not do, since ids are used again. Taking it writes nothing: :meth:`sign` leaves the process id
    for others to read, and a file that was made for nothing goes with the release.
    """

    def __init__(self, folder: Path, words: tuple[str, str, str] = TRAINING) -> None:
        """``words``: who owns it, what it is, and the setting that names another."""
        owner, what, other = words
        self._path = folder / "lock"
        self._made = not self._path.exists()
        try:
            self._file = hold(self._path)
        except BlockingIOError:
            holder = self._path.read_text(encoding="utf-8", errors="replace").strip()
            known = holder.isdecimal() and Path(f"/proc/{holder}").exists()
            process = f" (process {holder})" if known else ""
            raise RunError(
                f"{folder}: another {owner}{process} is using this {what}; "
                f"wait for it or choose another {other}"
            ) from None

    def sign(self) -> None:
        """Say who holds it."""
        self._made = False
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())

    def release(self) -> None:
        if self._made and not self._file.closed:
            self._path.unlink(missing_ok=True)
        self._file.close()


def hold(path: Path) -> FileIO:
    """Open a file to append to, as its only owner; a missing one is made. Raises BlockingIOError
    where another process owns it, and OSError, also for a link."""
    while True:
        file = FileIO(path, "ab+", opener=lambda name, f: os.open(name, f | os.O_NOFOLLOW, 0o666))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its owner has just removed it


def is_held(run: Path) -> bool | None:
    """Return whether a trainer owns the directory now; None without a lock file (in a copy, say).

    Ask only about a run that looks alive: the check itself holds a free lock for some microseconds.
    """
    try:
        with open_regular(run / "lock") as lock:
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
