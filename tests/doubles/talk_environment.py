"""An environment of three turns, by the name `talk_environment:Talk`."""

from dataclasses import dataclass, field
from typing import ClassVar

from toy_run import Toy, configured

from flowright.config.root import Config
from flowright.environments.episode import Episode, Observation


@dataclass
class Talk(Toy):
    """Answers each turn but the last with what was written, as a whole."""

    config: Config = field(default_factory=configured)
    turns: ClassVar[int] = 3

    def __init__(self, config: Config) -> None:
        Toy.__init__(self)
        self.config = config

    @property
    def max_turns(self) -> int:
        return self.turns

    async def respond(self, episode: Episode) -> Observation | None:
        turn = len(episode.turns)
        return Observation(f"turn {turn}: {episode.sample.text}") if turn < self.turns else None
