"""An environment of three turns, by the name `talk_environment:Talk`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from toy_run import Toy, configured

from flowright.config.root import Config
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout


@dataclass
class Talk(Toy):
    """Answers each turn but the last with what was written; ``seen`` are all attempts."""

    config: Config = field(default_factory=configured)
    turns: ClassVar[int] = 3

    def __init__(self, config: Config) -> None:
        Toy.__init__(self)
        self.config = config
        self.seen: list[Episode] = []

    @property
    def max_turns(self) -> int:
        return self.turns

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        self.seen += [episode for group in groups for episode in group]
        return await super().rollout(groups)

    async def respond(self, episode: Episode) -> Observation | None:
        turn = len(episode.turns)
        return Observation(f"turn {turn}: {episode.sample.text}") if turn < self.turns else None
