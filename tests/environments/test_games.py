"""The games against solvers of their own, and as an environment: moves in, answers and rewards
out."""

from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from judge_runs import run

from flowright.data.task import Task
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode, Turn
from flowright.environments.games.environment import GamesEnvironment
from flowright.environments.games.grid import SIZE, Walk, WalledGrid, fewest_moves
from flowright.environments.games.number import HIGHEST
from flowright.environments.games.tasks import GameTask
from flowright.environments.registry import load_config, make_config
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_metrics, read_state

NUMBER = {number: f"{number} {word}" for number, word in enumerate(
    ("one", "two", "three", "four", "five", "six", "seven", "eight"), start=1
)}  # fmt: skip
SIDES = {"north": "go north up", "south": "go south down"}
SIDES |= {"west": "go west left", "east": "go east right"}


def made(game: str) -> GamesEnvironment:
    found = make_environment(make_config(environment="games", games={"game": game}))
    assert isinstance(found, GamesEnvironment)
    return found


def walk_of(*rows: str) -> Walk:
    """Return the walk of a map: S start, K key, D door, # wall."""
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}
    (start,), (key,), (door,) = ([c for c, m in cells.items() if m == mark] for mark in "SKD")
    return Walk(WalledGrid(frozenset(c for c, m in cells.items() if m == "#"), key, door), start)


def distance(layout: WalledGrid, one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return the steps between two open cells, by relaxing all distances until none changes."""
    cells = [c for c in product(range(SIZE), repeat=2) if c not in layout.walls]
    far = {cell: 0 if cell == one else 99 for cell in cells}
    for _ in cells:
        for row, column in cells:
            for near in (
                (row + 1, column),
                (row - 1, column),
                (row, column + 1),
                (row, column - 1),
            ):
                if near in far:
                    far[row, column] = min(far[row, column], far[near] + 1)
    return far[other]


def walks(environment: GamesEnvironment) -> list[Walk]:
    both = environment.tasks()
    starts = [task.start for task in (*both.train, *both.val) if isinstance(task, GameTask)]
    return [start for start in starts if isinstance(start, Walk)]


def attempt(task: Task, *texts: str, reason: str = "stop") -> Episode:
    samples = [Sample((1,), (0.0,), text, reason, 0) for text in texts]  # type: ignore[arg-type]
    return Episode(task, "1/t/0", tuple(Turn((), sample) for sample in samples))


async def reward(environment: GamesEnvironment, episode: Episode) -> float | None:
    ((rollout,),) = await environment.rollout([[episode]])
    return rollout.reward.value


def test_the_shortest_way_is_to_the_key_and_then_to_the_door() -> None:
    environment = made("grid")
    starts = walks(environment)
    assert len({*starts}) == len(starts) == 500
    for start in starts:
        layout = start.layout
        least = distance(layout, start.cell, layout.key) + distance(layout, layout.key, layout.door)
        assert fewest_moves(start) == least <= environment.max_turns
    assert fewest_moves(walk_of("SD.", "##.", "K#.")) is None


async def test_a_walk_by_hand() -> None:
    start = walk_of("SD.", ".#.", "K..")
    task = GameTask("t", "grid", "games", "q", "", start)
    environment = made("grid")
    moves = [SIDES[way] for way in ("east", "west", "north", "south", "south")]
    seen = [start, *(environment.game.played(start, moves[:n]) for n in (1, 5))]
    assert [position.view for position in seen] == [
        "key south wall north west",
        "key south west wall north south",
        "door north east wall south west",
    ]
    assert await reward(environment, attempt(task, *moves)) == 0.5
    home = [SIDES[way] for way in ("north", "north", "east")]
    assert await reward(environment, attempt(task, *moves, *home)) == 1.0
    direct = [SIDES["south"]] * 2 + home
    assert await reward(environment, attempt(task, *direct, "anything")) == 1.0
    assert await environment.respond(attempt(task, *direct)) is None
    earned = [await environment.respond(attempt(task, *direct[:n])) for n in range(1, 5)]
    assert [seen and seen.reward for seen in earned] == [0.0, 0.5, 0.0, 0.0]
    assert [seen and seen.state for seen in earned[:2]] == ["(1, 0)", "(2, 0) with key"]


def test_walls_are_where_a_move_stays() -> None:
    for start in walks(made("grid"))[:50]:
        walls = start.view.split(" wall ")[1].split()
        for way, move in SIDES.items():
            assert (start.after(move).cell == start.cell) == (way in walls)


async def test_halving_finds_all_numbers_but_one() -> None:
    environment = made("number")
    found = 0
    for task in environment.tasks().train:
        low, high, texts = 1, HIGHEST, list[str]()
        for _ in range(environment.max_turns):
            texts.append(NUMBER[(low + high) // 2])
            if (seen := await environment.respond(attempt(task, *texts))) is None:
                found += 1
                break
            answer, *_ = seen.text.split()
            low, high = (int(seen.state.split()[i]) for i in (0, -1)) if seen.state else (0, 0)
            secret = int(task.reference)
            assert answer == ("higher" if secret > int(texts[-1][0]) else "lower")
            assert low <= secret <= high
    assert found / HIGHEST == environment.game.optimum


def test_nobody_finds_more_numbers() -> None:
    @cache
    def most(low: int, high: int, left: int) -> int:
        if low > high or not left:
            return 0
        guesses = range(low, high + 1)
        return max(1 + most(low, g - 1, left - 1) + most(g + 1, high, left - 1) for g in guesses)

    game = made("number").game
    assert most(1, HIGHEST, game.turns) / HIGHEST == game.optimum < 1


@pytest.mark.parametrize("name", ["number", "grid"])
def test_chance_is_the_mean_over_all_sequences_of_moves(name: str) -> None:
    game = made(name).game
    task = game.held_out[0]
    ends = [game.played(task.start, moves) for moves in product(game.moves, repeat=game.turns)]
    assert game.chance([task]) == pytest.approx(sum(end.reward for end in ends) / len(ends))
    assert game.chance(game.held_out) < 0.35 < 0.8 < game.optimum


@pytest.mark.parametrize(
    "text", ["", "9 nine", "5 six", "5", "5 five 6 six", "5 five!", "x" * 9999]
)
async def test_what_is_no_move_changes_nothing(text: str) -> None:
    environment = made("number")
    task = environment.tasks().train[6]
    seen = await environment.respond(attempt(task, "4 four", text))
    assert seen is not None and seen.failed and seen.state == "5 to 8" and seen.reward == 0.0
    assert seen.text == "write a number and its word\nhigher from 5 five to 8 eight"
    assert await reward(environment, attempt(task, "4 four", text, " 7 seven\n")) == 1.0


async def test_a_move_that_was_cut_is_none() -> None:
    environment = made("number")
    task = environment.tasks().train[6]
    cut = attempt(task, "7 seven", reason="length")
    seen = await environment.respond(cut)
    assert seen is not None and seen.failed
    assert await reward(environment, cut) == 0.0


async def test_answers_depend_on_the_episode_alone() -> None:
    environment = made("number")
    first, last = environment.tasks().train[0], environment.tasks().train[-1]
    episodes = [attempt(first, "4 four"), attempt(last, "4 four"), attempt(last, "4 four", "1 one")]
    once = [await environment.respond(episode) for episode in episodes]
    again = [await made("number").respond(episode) for episode in reversed(episodes)]
    assert once == again[::-1]


@pytest.mark.parametrize("name", ["number", "grid"])
def test_the_cold_start_prefers_no_move(name: str) -> None:
    environment = made(name)
    moves = environment.game.moves
    shown = environment.demonstrations(environment.tasks().train, 4000, 2, 0)
    by_view: dict[str, Counter[str]] = {}
    for one in shown:
        roles = [message.role for message in one.messages]
        assert roles == [("user", "assistant")[n % 2] for n in range(len(roles))]
        view = " ".join(one.messages[-1].content.split()[-6:-2])
        by_view.setdefault(view, Counter()).update(one.completions)
    often = [counts for counts in by_view.values() if counts.total() > 400]
    assert len(often) > 1
    for counts in often:
        for move in moves:
            share = 1 / len(moves)
            spread = (share * (1 - share) / counts.total()) ** 0.5
            assert abs(counts[move] / counts.total() - share) < 5 * spread


def test_two_steps_of_a_run(tmp_path: Path) -> None:
    small = ("hidden_size=64", "layers=1", "heads=2", "kv_heads=2", "examples=400", "steps=100")
    overrides = [
        *("games.game=number", f"run.output_dir={tmp_path}", "run.tensorboard=false"),
        *(f"policy.tiny.{each}" for each in (f"cache_dir={tmp_path}", *small)),
        *("grpo.steps=2", "evaluation.final_problems=4", "evaluation.final_samples=1"),
    ]
    log = tmp_path / "log"
    assert run(load_config("games", overrides), log) == [0], log.read_text()
    rows = [row for row in read_metrics(tmp_path / "games") if "turns/mean" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["tokens/trained_as_sampled"] == 1.0
        assert 1 < row["turns/mean"] <= row["turns/max"] == 3
    state = read_state(tmp_path / "games")
    assert (state["chance"], state["optimum"]) == (0.33, 0.875)
