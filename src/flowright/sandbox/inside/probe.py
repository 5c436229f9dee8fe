"""The start-up self-test: a child that is isolated like any other tries to get out.

Part of the isolated side: standard library only, no import of the package.
"""

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable


def escapes(outside: str) -> list[str]:
    """Return the forbidden things that this process can do; ``outside`` is a file of the
    machine's."""
    attempts: dict[str, Callable[[], object]] = {
        "read a file outside": lambda: os.open(outside, os.O_RDONLY),
        "list a folder outside": lambda: os.listdir(os.path.dirname(outside)),
        "write to the standard library": lambda: os.open(os.__file__, os.O_RDWR),
        "write next to the standard library": lambda: os.mkdir(f"{os.path.dirname(os.__file__)}/x"),
        "change the mode of a file": lambda: os.chmod(outside, 0o600),
        "open an internet socket": lambda: socket.socket(socket.AF_INET),
        "open a unix socket": lambda: socket.socket(socket.AF_UNIX),
        "start a process": os.fork,
        "run a program": lambda: os.execv("/bin/true", ["true"]),
        "signal another process": lambda: os.kill(os.getppid(), 0),
        "raise a limit": lambda: resource.setrlimit(
            resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        ),
        "become root": lambda: os.setuid(0),
    }
    return [name for name, attempt in attempts.items() if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        result = attempt()
    except (OSError, ValueError):
        return False
    if attempt is os.fork and result == 0:
        os._exit(0)
    return True


def hindrances(tmp: str | None, sealed: bool) -> list[str]:
    """Return the things honest programs need and this process cannot do; ``tmp`` is its folder for
    temporary files, if any. With a ``sealed`` disk they have to do without it."""

    def write_file() -> None:
        with open(f"{tmp}/probe", "w") as file:
            file.write("x")
        os.unlink(f"{tmp}/probe")

    reading: dict[str, Callable[[], object]] = {
        "read the standard library": lambda: os.close(os.open(os.__file__, os.O_RDONLY)),
        "list the standard library": lambda: os.listdir(os.path.dirname(os.__file__)),
    }
    needs: dict[str, Callable[[], object]] = {
        **({} if sealed else reading),
        "see the state of a descriptor": lambda: os.fstat(0),
        "start a thread": lambda: threading.Thread(target=int).start(),
        "make a socket pair": lambda: [end.close() for end in socket.socketpair()],
    }
    if tmp is not None:
        needs["write a temporary file"] = write_file
    found = []
    for name, need in needs.items():
        try:
            need()
        except (OSError, RuntimeError) as error:
            number = getattr(error, "errno", None)
            found.append(f"{name} ({errno.errorcode.get(number or 0, error)})")
    return found
