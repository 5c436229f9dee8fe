"""The keys of a terminal as they are pressed, without Enter and without an echo; none where nobody
is at the keyboard.
"""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any

_NAMED = {
    b"\x1b[A": "k",
    b"\x1b[B": "j",
    b"\x1bOA": "k",
    b"\x1bOB": "j",
    b"\x1b[5~": "b",
    b"\x1b[6~": " ",
    b"\x1b[H": "g",
    b"\x1b[F": "G",
    b"\x1b[1~": "g",
    b"\x1b[4~": "G",
    b"\x1b[C": "n",
    b"\x1b[D": "p",
}
"""Arrows, Page Up and Down, Home and End, by the letters that do the same."""


class Keys:
    """``with Keys() as keys``: the terminal is as it was afterwards."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> "Keys":
        if sys.stdin.isatty():
            self._fd = fd = sys.stdin.fileno()
            self._before = termios.tcgetattr(fd)
            tty.setcbreak(fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._fd is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> Sequence[str]:
        """The keys that are pressed next, or none where so much time goes by."""
        if self._fd is None:
            time.sleep(seconds)
            return ()
        if not select.select([self._fd], [], [], seconds)[0]:
            return ()
        pressed = os.read(self._fd, 64)
        if not pressed:  # the terminal has gone
            time.sleep(seconds)
            return ()
        return read_keys(pressed)


def read_keys(pressed: bytes) -> list[str]:
    """What was pressed, by letters. What means nothing here is left out."""
    found: list[str] = []
    while pressed:
        name = next((each for each in _NAMED if pressed.startswith(each)), None)
        if name is not None:
            found.append(_NAMED[name])
            pressed = pressed[len(name) :]
            continue
        if 32 <= pressed[0] < 127:
            found.append(chr(pressed[0]))
        pressed = pressed[1:]
    return found
