"""The rows of a judge's benchmark: asked, kept as replies come, and counted. Pairs here; the rows of
RewardBench 2 in :mod:`flowright.judging.measuring.rewardbench2`.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from flowright.core.batch_calls import call_all
from flowright.core.errors import RunError
from flowright.core.journal import Journal
from flowright.data.preferences import Pair
from flowright.judging.measuring.benchmark_table import Benchmark
from flowright.judging.measuring.measured_judges import Games, MeasuredJudge, key_of
from flowright.judging.measuring.pair_figures import Figure, Figures, Judged, prompt_of
from flowright.judging.trained.calibration import ScoredPair

R = TypeVar("R")

RESAMPLES = 4000


class RowJournal(Journal):
    """Results by row, kept as they come; a call with the same settings (``about``) resumes."""

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        overwrite: bool = False,
        remedy: str = "give another --json or --out, or --overwrite to start again",
    ) -> None:
        super().__init__(path, about, overwrite=overwrite, remedy=remedy)
        self.kept = {row: record.get("said") for row, record in self.latest("row").items()}

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep the result of a row. Raises RunError (a full disk)."""
        self.append({"row": key, "said": dict(result)})
        self.kept[key] = dict(result)

    def decoded(self, decode: Callable[[Any], R], keys: Iterable[str]) -> dict[str, R]:
        """Return the kept results of some rows. Raises RunError for results that ``decode`` cannot
        read."""
        try:
            return {key: decode(self.kept[key]) for key in keys if key in self.kept}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{self.path}: a result cannot be read ({type(error).__name__}: {error}); "
                "--overwrite starts again"
            ) from None


def journal_path(record: Path) -> Path:
    """Return the journal beside a record: ``judged.json`` has ``judged.outcomes.jsonl``."""
    return record.with_name(f"{record.stem}.outcomes.jsonl")


class BenchmarkRows(ABC, Generic[R]):
    """Rows by key, how a judge is asked about each, and the figures of the results."""

    keys: Sequence[str]

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Digest of all rows."""

    @property
    def about(self) -> dict[str, str]:
        """Settings that the results depend on."""
        return {}

    @abstractmethod
    async def ask(self, judge: MeasuredJudge, key: str) -> R:
        """Ask the judge about a row."""

    @abstractmethod
    def failed(self, result: R) -> bool:
        """Return True for an unscored row: the judge was down."""

    @abstractmethod
    def why(self, result: R) -> str:
        """Return the reason of a failure."""

    @abstractmethod
    def encode(self, result: R) -> dict[str, Any]:
        """Convert a result to JSON."""

    @abstractmethod
    def decode(self, row: Mapping[str, Any]) -> R:
        """Read what :meth:`encode` wrote. Raises KeyError, TypeError or ValueError for anything
        else."""

    @abstractmethod
    def figures(self, results: Mapping[str, R]) -> list[Figure]:
        """Compute the figures of the rows that have a result and did not fail."""

    @abstractmethod
    def counts(self, results: Mapping[str, R]) -> dict[str, int]:
        """Count rows, replies, and what is in no figure."""

    def scored(self, results: Mapping[str, R]) -> list[ScoredPair]:
        """Return the pairs whose answers both have a score."""
        return []

    @abstractmethod
    def row(self, key: str) -> dict[str, Any]:
        """Return the fields of a row for the record."""


async def ask_rows(
    judge: MeasuredJudge,
    rows: BenchmarkRows[R],
    journal: RowJournal | None,
    concurrency: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, R]:
    """Return the results of all rows by key. Kept rows are not asked again; failed rows are not
    kept, so that the next call asks about them.

    Raises ServerDown, and RunError for a journal that cannot be read.
    """

    def keep(key: str, result: R) -> None:
        if journal is not None and not rows.failed(result):
            journal.put(key, rows.encode(result))

    return await call_all(
        ((key, key) for key in rows.keys),
        lambda key: rows.ask(judge, key),
        concurrency=concurrency,
        outcome=lambda result: "down" if rows.failed(result) else "reached",
        why=rows.why,
        kept=None if journal is None else journal.decoded(rows.decode, rows.keys),
        keep=keep,
        progress=progress,
        name=f"judge {judge.name!r}",
        remedy="start its server, or check its address in the LLM file; the same command continues",
    )


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

    async def ask(self, judge: MeasuredJudge, key: str) -> Games:
        return await judge.compare(self._pairs[key])

    def failed(self, result: Games) -> bool:
        return result.failed

    def why(self, result: Games) -> str:
        return next((g.reason for g in result.both if g.status == "failed"), "")

    def encode(self, result: Games) -> dict[str, Any]:
        return result.to_json()

    def decode(self, row: Mapping[str, Any]) -> Games:
        return Games.from_json(row)

    def figures(self, results: Mapping[str, Games]) -> list[Figure]:
        figures = Figures(self._judged(results), RESAMPLES, self._seed)
        shares = figures.shares(self._benchmark.measures, self._benchmark.macros)
        return [*shares, *figures.annotators()]

    def counts(self, results: Mapping[str, Games]) -> dict[str, int]:
        judged = self._judged(results)
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

    def scored(self, results: Mapping[str, Games]) -> list[ScoredPair]:
        return [
            ScoredPair(*judged.games.straight.scores, judged.pair.label, prompt_of(judged.pair))
            for judged in self._judged(results)
            if judged.games.straight.scores is not None
        ]

    def row(self, key: str) -> dict[str, Any]:
        pair = self._pairs[key]
        row: dict[str, Any] = {"id": pair.id, "source": pair.source, "label": pair.label}
        return row | ({"category": pair.category} if pair.category else {})

    def _judged(self, results: Mapping[str, Games]) -> list[Judged]:
        return [
            Judged(pair, results[key])
            for key, pair in self._pairs.items()
            if key in results and not results[key].failed
        ]


def sha256_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of rows as JSON, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
