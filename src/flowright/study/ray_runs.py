"""Runs as processes on a Ray cluster: an actor for each, with the run's GPUs, starts the process on
whichever node has room. The nodes share the folder in which the study is, and this checkout.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowright.app.ray import joined
from flowright.study.cells import Run
from flowright.study.children import Child, Spawned, Start
from flowright.study.placing import Starts

_INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Ray's processes may block SIGINT or ignore it, and what they start inherits that; a run saves on
it."""


class RunProcess:
    """The actor: one process on its node. :meth:`wait` and :meth:`signal` are called at once."""

    def __init__(self, words: Sequence[str], log: str, folder: str) -> None:
        os.chdir(folder)
        self._process = Spawned([words[0], "-c", _INTERRUPTIBLE, *words], Path(log))

    def signal(self, number: int) -> None:
        self._process.signal(signal.Signals(number))

    def wait(self) -> int:
        return self._process.wait()


class RayChild:
    """A run's process behind its actor."""

    def __init__(self, ray: Any, actor: Any, words: Sequence[str], log: Path) -> None:
        self._ray = ray
        self._actor = actor.remote([*words], str(log.absolute()), str(Path.cwd()))
        self._over = self._actor.wait.remote()

    def signal(self, number: signal.Signals) -> None:
        self._actor.signal.remote(int(number))

    def wait(self) -> int:
        """1 where the node or the actor was lost: then nobody knows how the process ended."""
        try:
            return self._ray.get(self._over)
        except self._ray.exceptions.RayError:
            return 1
        finally:
            with suppress(ValueError):
                self._ray.kill(self._actor)


@contextmanager
def on_ray(gpus: int) -> Iterator[tuple[int, Starts]]:
    """How many runs of so many GPUs (0: of one core) the cluster of RAY_ADDRESS has room for, or
    one of this machine's own; and how they are started. Raises ConfigError where there is none."""
    with joined(None) as ray:
        found = ray.cluster_resources()
        room = int(found.get("GPU", 0)) // gpus if gpus else int(found.get("CPU", 0))
        made = ray.remote(num_cpus=1, num_gpus=gpus, max_concurrency=2)(RunProcess)

        def placed(words: Sequence[str], log: Path) -> Child:
            return RayChild(ray, made, words, log)

        def start(run: Run) -> Start:
            return placed

        yield room, start
