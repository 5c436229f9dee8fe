"""Games as positions and moves; the worth of playing at random."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from flowright.data.task import Task


class Position(ABC):
    """A state of play, equal to every other with the same future. ``view`` is the player's message
    after the move that led to it, ``name`` the state as far as the player can know it, ``reward``
    the sum that was earned so far."""

    __slots__ = ()

    @abstractmethod
    def after(self, move: str) -> Self:
        """Return the position after one of the game's moves."""

    @property
    @abstractmethod
    def view(self) -> str: ...

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def reward(self) -> float: ...

    @property
    @abstractmethod
    def is_over(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class GameTask(Task):
    """A position to play from."""

    start: Position


@dataclass(frozen=True, slots=True)
class GameRules:
    """A game of at most ``turns`` moves, each one of ``moves``. ``form``: shown after a text that
    is no move. ``optimum``: the mean reward of the best player over the tasks, each equally
    likely, train and held out alike."""

    turns: int
    moves: Sequence[str]
    form: str
    train: Sequence[GameTask]
    held_out: Sequence[GameTask]
    optimum: float

    def read(self, text: str) -> str | None:
        """Return the move of a completion; None if it is none."""
        move = text.strip()
        return move if move in self.moves else None

    def played(self, start: Position, texts: Iterable[str]) -> Position:
        """Return the position after completions; one that is no move changes nothing."""
        position = start
        for text in texts:
            move = self.read(text)
            if move is not None and not position.is_over:
                position = position.after(move)
        return position

    def chance(self, tasks: Sequence[GameTask]) -> float:
        """Return the expected reward, mean over the tasks, of moves drawn evenly."""

        @cache
        def value(position: Position, left: int) -> float:
            if position.is_over or not left:
                return position.reward
            return sum(value(position.after(m), left - 1) for m in self.moves) / len(self.moves)

        return sum(value(task.start, self.turns) for task in tasks) / len(tasks)
