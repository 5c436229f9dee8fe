"""Games as an environment: each completion is a move, and is answered by the position after it."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from flowright.config.root import Config as RunConfig
from flowright.core.statistics import SHARE
from flowright.data.task import Task
from flowright.environments.base import Demonstration, Environment, TaskSets
from flowright.environments.episode import Episode, Observation
from flowright.environments.games.config import GamesSection
from flowright.environments.games.display import DISPLAY
from flowright.environments.games.grid import grid_game
from flowright.environments.games.number import number_game
from flowright.environments.games.tasks import GameTask
from flowright.environments.rollout import Reward, Rollout
from flowright.grading import Gold
from flowright.llm.chat import Message

GAMES = {"number": number_game, "grid": grid_game}


class GamesEnvironment(Environment):
    """The environment of ``environment: games``."""

    Config = GamesSection
    display = DISPLAY

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.game = GAMES[config.own(GamesSection).game]()

    def tasks(self) -> TaskSets:
        return TaskSets(self.game.train, self.game.held_out)

    @property
    def reward_bounds(self) -> tuple[float, float]:
        return SHARE

    @property
    def answers_at_once(self) -> bool:
        return True

    @property
    def max_turns(self) -> int:
        return self.game.turns

    async def respond(self, episode: Episode) -> Observation | None:
        """Return the view after the newest move, with what it has earned; None if the game is
        over."""
        *before, newest = _texts(episode)
        earlier = self.game.played(_task(episode.task).start, before)
        position = self.game.played(earlier, [newest])
        if position.is_over:
            return None
        failed = self.game.read(newest) is None
        text = f"{self.game.form}\n{position.view}".strip() if failed else position.view
        earned = position.reward - earlier.reward
        return Observation(text, reward=earned, state=position.name, failed=failed)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return [[self._rollout(episode) for episode in group] for group in groups]

    def _rollout(self, episode: Episode) -> Rollout:
        position = self.game.played(_task(episode.task).start, _texts(episode))
        reward = Reward(position.reward, {"game": position.reward})
        return Rollout(episode.task, episode.sample, reward, gold=Gold(position.is_over, "rules"))

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Return positions of games with evenly drawn moves, and further such moves."""
        rng, moves = random.Random(seed), self.game.moves
        drawn = []
        for _ in range(count):
            task = _task(rng.choice(tasks))
            position, messages = task.start, self.messages(task)
            for move in rng.choices(moves, k=rng.randrange(self.max_turns)):
                after = position.after(move)
                if after.is_over:
                    break
                position = after
                messages += [Message("assistant", move), Message("user", position.view)]
            drawn.append(Demonstration(messages, rng.choices(moves, k=completions)))
        return drawn

    def about(self) -> Mapping[str, Any]:
        chance = self.game.chance(self.game.held_out)
        return {"chance": round(chance, 3), "optimum": round(self.game.optimum, 3)}

    def introduction(self) -> Sequence[str]:
        chance, optimum = self.about().values()
        return [f"reward    {chance} for moves drawn evenly, {optimum} for the best player"]


def _texts(episode: Episode) -> list[str]:
    """The completions; one that was cut is no move."""
    samples = [turn.sample for turn in episode.turns]
    return ["" if sample.finish_reason == "length" else sample.text for sample in samples]


def _task(task: Task) -> GameTask:
    assert isinstance(task, GameTask)
    return task
