"""A user's environment as a monitor may meet it: how it shows its records, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from flowright.core.report import Block, Fact, Text
from flowright.environments.display import Curve, Display, Mix


class Moves(Display):
    """Shows a game by its moves; a record without any breaks it."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        return [Fact("Moves", " ".join(record["moves"])), Text("Board", record["board"])]


class Game:
    display = Moves(
        completion="move",
        kinds=("hard", "easy"),
        mixes=(Mix("Openings", "openings", "Share of the games."),),
        curves=(Curve("Moves of a game", "game/moves", "moves"),),
        seconds=("thinking",),
    )


class Wrong:
    display = "a word"
