"""What a rank other than the first has in the place of a run directory and of a terminal: nothing
is written twice and nothing is said twice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Reporter(Protocol):
    """Whoever shows progress to the person at the terminal."""

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None: ...

    def say(self, line: str) -> None: ...


class Follower:
    """As :class:`flowright.runs.RunDirectory` and :class:`Reporter`, but mute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints_path = path / "checkpoints"
        self.changes: list[str] = []

    def state(self, **changes: Any) -> None:
        """The first rank says where the run is."""

    def keep_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """The first rank has them, too."""

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """The first rank's are over all ranks."""

    def text(self, step: int, name: str, markdown: str) -> None:
        """As :meth:`record`."""

    def truncate(self, step: int) -> None:
        """The first rank does."""

    def close(self) -> None:
        """Nothing is open."""

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None:
        """As :meth:`record`."""

    def say(self, line: str) -> None:
        """As :meth:`record`."""
