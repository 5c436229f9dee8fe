"""Walk on a small grid: fetch a key, then reach a door, by what is seen from each cell."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from flowright.environments.games.tasks import GameRules, GameTask, Position

SIZE = 3
WALLS = 1
TURNS = 6
TRAIN, HELD_OUT = 400, 100
PROMPT = f"Fetch the key, then go to the door, in {TURNS} moves."
_SEED = "flowright/environments/games/grid"

Cell = tuple[int, int]
"""A row from the north and a column from the west."""

WAYS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
_SIDES = {"north": "up", "south": "down", "west": "left", "east": "right"}
_MOVES = {f"go {way} {_SIDES[way]}": step for way, step in WAYS.items()}


@dataclass(frozen=True, slots=True)
class WalledGrid:
    """A grid with its walls. The border is walled, too."""

    walls: frozenset[Cell]
    key: Cell
    door: Cell

    def is_open(self, cell: Cell) -> bool:
        return cell not in self.walls and all(0 <= place < SIZE for place in cell)


@dataclass(frozen=True, slots=True)
class Walk(Position):
    """A cell, with or without the key. A move into a wall stays; the door opens with the key
    alone."""

    layout: WalledGrid
    cell: Cell
    has_key: bool = False

    def after(self, move: str) -> "Walk":
        cell = _next(self.cell, _MOVES[move])
        if not self.layout.is_open(cell):
            return self
        return replace(self, cell=cell, has_key=self.has_key or cell == self.layout.key)

    @property
    def view(self) -> str:
        """The walls around the cell, and the direction of what is to be reached next."""
        walls = [w for w, step in WAYS.items() if not self.layout.is_open(_next(self.cell, step))]
        target, name = (self.layout.door, "door") if self.has_key else (self.layout.key, "key")
        (row, column), (to_row, to_column) = self.cell, target
        ways = ["north"] * (to_row < row) + ["south"] * (to_row > row)
        ways += ["west"] * (to_column < column) + ["east"] * (to_column > column)
        return " ".join([name, *(ways or ["here"]), "wall", *(walls or ["none"])])

    @property
    def name(self) -> str:
        return f"{self.cell} with key" if self.has_key else f"{self.cell}"

    @property
    def reward(self) -> float:
        return 0.5 * self.has_key + 0.5 * self.is_over

    @property
    def is_over(self) -> bool:
        return self.has_key and self.cell == self.layout.door


def _next(cell: Cell, step: Cell) -> Cell:
    return cell[0] + step[0], cell[1] + step[1]


def fewest_moves(start: Walk) -> int | None:
    """Return the moves of the shortest way to the key and then to the door; None without one."""
    seen, edge, count = {start}, [start], 0
    while edge:
        if any(walk.is_over for walk in edge):
            return count
        reached = dict.fromkeys(walk.after(move) for walk in edge for move in _MOVES)
        edge = [walk for walk in reached if walk not in seen]
        seen.update(edge)
        count += 1
    return None


def _starts() -> Iterator[Walk]:
    """Yield different grids on which the shortest way takes from 3 to ``TURNS`` moves."""
    rng, seen = random.Random(_SEED), set[Walk]()
    cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    while True:
        start, key, door, *walls = rng.sample(cells, 3 + WALLS)
        walk = Walk(WalledGrid(frozenset(walls), key, door), start)
        fewest = fewest_moves(walk)
        if walk not in seen and fewest is not None and 3 <= fewest <= TURNS:
            seen.add(walk)
            yield walk


def grid_game() -> GameRules:
    """Return the game, with other grids held out than those that are trained on. On every grid
    there is a way of at most ``turns`` moves, so that a player who knew the walls would earn 1."""
    tasks = [
        GameTask(f"grid/{n}", "grid", "games", f"{PROMPT} {walk.view}", "", walk)
        for n, walk in enumerate(islice(_starts(), HELD_OUT + TRAIN))
    ]
    return GameRules(
        TURNS,
        tuple(_MOVES),
        "write go, a direction and its side",
        tasks[HELD_OUT:],
        tasks[:HELD_OUT],
        1.0,
    )
