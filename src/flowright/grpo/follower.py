"""What a rank other than the first has in the place of a run directory and of a terminal: nothing
is written twice and nothing is said twice."""

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

    def _mute(self, *_: Any, **__: Any) -> None:
        """The first rank writes it, and says it."""

    state = keep_rollouts = record = text = truncate = close = step = say = _mute
