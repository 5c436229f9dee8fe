"""The keys of `games`: small games of several turns."""

from typing import ClassVar, Literal

from flowright.config.root import Config, EnvironmentSection


class GamesSection(EnvironmentSection):
    """`environment: games`: small games of several turns, played without a large model; see
    docs/learner.md."""

    key: ClassVar[str] = "games"

    game: Literal["number", "grid"] = "grid"
    """`number`: find a number by higher and lower. `grid`: fetch a key and reach a door."""

    def problems_from(self, config: Config) -> str:
        return f"the game {self.game}, made on the spot"

    def judge_model(self, config: Config) -> str | None:
        return None

    def models(self, config: Config) -> frozenset[str]:
        return frozenset()


SECTION = GamesSection
