"""Where a run's metrics and texts go beside ``metrics.jsonl``: TensorBoard's event files, and the
packages of ``run.loggers``. None of them is read again, and none can end a run: one that fails is
off from then on, which is told once. What a package is told is :mod:`flowright.runs.packages`'.
"""

import importlib
import importlib.util
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from flowright.config.root import Config
from flowright.config.run import RunSection
from flowright.core.errors import ConfigError, boundary
from flowright.core.files import write_json
from flowright.runs.events import Events
from flowright.runs.packages import PACKAGES, LoggedRun

IDENTITY = "loggers.json"
"""In the run directory: the name by which the packages know the run, so that a resumed one goes on
there."""

LAST_SECONDS = 60.0
"""So long the end of a run waits for a package to deliver what it has been given."""


class Logger(Protocol):
    """What takes a run's numbers. Any exception means that it has failed."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def text(self, step: int, name: str, markdown: str) -> None: ...

    def forget_after(self, step: int) -> None:
        """Later steps are done again."""

    def close(self, status: str) -> None:
        """``status``: as in ``state.json``."""


Act = Callable[[Logger], object]


def check_loggers(section: RunSection) -> str:
    """What ``run.loggers`` names, for people; nothing is imported. Raises ConfigError with a line
    for each package that is not installed."""
    # A folder of that name, such as W&B's own ./wandb, is a module without a file.
    missing = [
        f"run.loggers: {name} is not installed; pip install -r requirements-loggers.txt, or leave "
        "it out"
        for name in section.packages
        if (found := importlib.util.find_spec(name)) is None or found.origin is None
    ]
    if missing:
        raise ConfigError(*missing)
    return ", ".join(section.packages)


class Loggers:
    """All loggers of a run directory that its trainer has opened. :meth:`news` are the failures
    since it was last asked."""

    def __init__(
        self,
        path: Path,
        config: Config,
        resolved: Mapping[str, Any],
        last_seconds: float = LAST_SECONDS,
    ) -> None:
        section = config.run
        self._last_seconds = last_seconds
        self._all: list[_Inline | _Beside] = []
        self._late: list[str] = []
        if section.tensorboard:
            self._all.append(_Inline("tensorboard", lambda: Events(path / "tensorboard")))
        if section.packages:
            identity, resumed = _identity(path)
            run = LoggedRun(path, section.name, section.project, identity, resolved, resumed)
            self._all += [_Beside(name, PACKAGES[name], run) for name in section.packages]

    def do(self, act: Act) -> None:
        """Have each logger do something, unless it has failed."""
        for logger in self._all:
            logger.do(act)

    def close(self, status: str) -> None:
        """``status``: how the run ended. Waits until all is delivered, but not for ever."""
        for logger in self._all:
            logger.do(lambda one: one.close(status))
        end = time.monotonic() + self._last_seconds
        for logger in self._all:
            if not logger.end(max(0.0, end - time.monotonic())):
                late = f"not done {self._last_seconds:.0f} seconds after the run's end"
                self._late.append(_off(logger.name, late))

    def news(self) -> list[str]:
        late, self._late = self._late, []
        return [*(problem for logger in self._all for problem in logger.news()), *late]


def _identity(path: Path) -> tuple[str, bool]:
    """The run's name for packages, and whether it had one before."""
    file = path / IDENTITY
    try:
        known = json.loads(file.read_text(encoding="utf-8"))["id"]
        if isinstance(known, str) and known:
            return known, True
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or a damaged one: what was logged by it can't be found again
    identity = secrets.token_hex(4)
    write_json(file, {"id": identity})
    return identity, False


class _Inline:
    """A logger in the trainer's own thread."""

    def __init__(self, name: str, open_it: Callable[[], Logger]) -> None:
        self.name = name
        self._logger: Logger | None = None
        self._problems: list[str] = []
        with boundary(name) as caught:
            self._logger = open_it()
        if caught.failure is not None:
            self._fail(caught.failure.message)

    def do(self, act: Act) -> None:
        if self._logger is None:
            return
        with boundary(self.name) as caught:
            act(self._logger)
        if caught.failure is not None:
            self._fail(caught.failure.message)

    def end(self, seconds: float) -> bool:
        return True

    def news(self) -> list[str]:
        told, self._problems = self._problems, []
        return told

    def _fail(self, message: str) -> None:
        self._logger = None
        self._problems.append(_off(self.name, message))


class _Beside:
    """A package on a thread of its own: a server that is slow or gone holds up no step.

    It is imported in the trainer's thread, since imports in two threads at once can wait for each
    other.
    """

    def __init__(
        self, name: str, open_it: Callable[[Any, LoggedRun], Logger], run: LoggedRun
    ) -> None:
        self.name = name
        self._acts: queue.SimpleQueue[Act | None] = queue.SimpleQueue()
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        with boundary(name) as caught:
            package = importlib.import_module(name)
            work = threading.Thread(
                target=self._work, args=(lambda: open_it(package, run),), name=name, daemon=True
            )
            work.start()
            self._thread = work
        if caught.failure is not None:
            self._problems.put(_off(name, caught.failure.message))

    def _work(self, open_it: Callable[[], Logger]) -> None:
        try:
            with boundary(self.name) as caught:
                logger = open_it()
                while (act := self._acts.get()) is not None:
                    act(logger)
        except SystemExit as error:  # a package that would end its program ends itself
            self._problems.put(_off(self.name, f"it exits: {error}"))
        else:
            if caught.failure is not None:
                self._problems.put(_off(self.name, caught.failure.message))

    def do(self, act: Act) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._acts.put(act)

    def end(self, seconds: float) -> bool:
        """Whether everything was delivered within so many seconds."""
        if self._thread is None:
            return True
        self._acts.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def news(self) -> list[str]:
        told: list[str] = []
        while not self._problems.empty():
            told.append(self._problems.get())
        return told


def _off(name: str, message: str) -> str:
    line = " ".join(message.split())[:300]
    return f"run.loggers: {name} is off from here on ({line}); metrics.jsonl has every step"
