"""What a judge is measured on, and pairs as such: who is asked what, and what the replies come to.

RewardBench 2, whose rows are no pairs, is :mod:`flowright.judging.measuring.rewardbench2`'s.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from flowright.data.preferences import Pair
from flowright.judging.measuring.benchmark_table import Benchmark
from flowright.judging.measuring.measured_judges import Games, MeasuredJudge, key_of
from flowright.judging.measuring.pair_figures import Figure, Figures, Judged, prompt_of
from flowright.judging.trained.calibration import ScoredPair

R = TypeVar("R")

RESAMPLES = 4000


class BenchmarkRows(ABC, Generic[R]):
    """Rows by name, what is asked about each, and the figures of what was said."""

    keys: Sequence[str]

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Of all rows: what tells these from others."""

    @property
    def about(self) -> dict[str, str]:
        """What else tells how its rows are asked about."""
        return {}

    @abstractmethod
    async def ask(self, contender: MeasuredJudge, key: str) -> R:
        """What the contender says of a row."""

    @abstractmethod
    def failed(self, said: R) -> bool:
        """Whether the row is unscored, because the judge was down."""

    @abstractmethod
    def why(self, said: R) -> str:
        """What the judge's failure says of itself."""

    @abstractmethod
    def encode(self, said: R) -> dict[str, Any]:
        """As JSON."""

    @abstractmethod
    def decode(self, row: Mapping[str, Any]) -> R:
        """What :meth:`encode` wrote. Raises KeyError, TypeError or ValueError for anything else."""

    @abstractmethod
    def figures(self, said: Mapping[str, R]) -> list[Figure]:
        """Of the rows that have an answer and did not fail."""

    @abstractmethod
    def counts(self, said: Mapping[str, R]) -> dict[str, int]:
        """What the figures are of, and what they are not of."""

    def scored(self, said: Mapping[str, R]) -> list[ScoredPair]:
        """The pairs among the rows, as far as both answers have a score."""
        return []

    @abstractmethod
    def row(self, key: str) -> dict[str, Any]:
        """What a record tells of a row beside what was said of it."""


class PairRows(BenchmarkRows[Games]):
    """Pairs, each asked about in both orders."""

    def __init__(self, pairs: Sequence[Pair], benchmark: Benchmark, seed: int = 0) -> None:
        self._pairs = {key_of(pair): pair for pair in pairs}
        if len(self._pairs) < len(pairs):
            raise ValueError("two pairs of one source have the same id")
        self.keys = tuple(self._pairs)
        self._benchmark = benchmark
        self._seed = seed

    @property
    def sha256(self) -> str:
        return sha256_of([asdict(pair) for pair in self._pairs.values()])

    async def ask(self, contender: MeasuredJudge, key: str) -> Games:
        return await contender.compare(self._pairs[key])

    def failed(self, said: Games) -> bool:
        return said.failed

    def why(self, said: Games) -> str:
        return next((g.reason for g in said.both if g.status == "failed"), "")

    def encode(self, said: Games) -> dict[str, Any]:
        return said.to_json()

    def decode(self, row: Mapping[str, Any]) -> Games:
        return Games.from_json(row)

    def figures(self, said: Mapping[str, Games]) -> list[Figure]:
        figures = Figures(self._judged(said), RESAMPLES, self._seed)
        shares = figures.shares(self._benchmark.measures, self._benchmark.macros)
        return [*shares, *figures.annotators()]

    def counts(self, said: Mapping[str, Games]) -> dict[str, int]:
        judged = self._judged(said)
        games = [game for row in judged for game in row.games.both]
        return {
            "rows": len(self._pairs),
            "prompts": len({prompt_of(pair) for pair in self._pairs.values()}),
            "unscored": len(self._pairs) - len(judged),
            "questions": len(games),
            "unreadable": sum(game.status == "unreadable" for game in games),
            "ties": sum(game.preferred == "tie" for game in games),
            "labelled_ties": sum(pair.label == "tie" for pair in self._pairs.values()),
        }

    def scored(self, said: Mapping[str, Games]) -> list[ScoredPair]:
        return [
            ScoredPair(*judged.games.straight.scores, judged.pair.label, prompt_of(judged.pair))
            for judged in self._judged(said)
            if judged.games.straight.scores is not None
        ]

    def row(self, key: str) -> dict[str, Any]:
        pair = self._pairs[key]
        told: dict[str, Any] = {"id": pair.id, "source": pair.source, "label": pair.label}
        return told | ({"category": pair.category} if pair.category else {})

    def _judged(self, said: Mapping[str, Games]) -> list[Judged]:
        return [
            Judged(pair, said[key])
            for key, pair in self._pairs.items()
            if key in said and not said[key].failed
        ]


def sha256_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of rows as JSON, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
