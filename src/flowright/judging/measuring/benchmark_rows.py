"""The benchmarks of judges: their measures and published figures, and their rows, which are asked,
kept as replies come, and counted. Pairs here; RewardBench 2 in
:mod:`flowright.judging.measuring.rewardbench2`.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from flowright.core.batch_calls import call_all
from flowright.core.errors import RunError
from flowright.core.journal import Journal
from flowright.data.task import Pair
from flowright.judging.measuring.measured_judges import (
    Games,
    MeasuredJudge,
    from_row,
    key_of,
    to_row,
)
from flowright.judging.measuring.pair_figures import (
    KAPPA,
    LENGTH_CONTROLLED,
    Figure,
    Figures,
    Judged,
    Macro,
    prompt_of,
    verdict_of,
)
from flowright.judging.trained.calibration import ScoredPair


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published share of a judge (``work``), and its source."""

    work: str
    measure: str
    value: float
    source: str
    group: str = "all"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark; its main measure comes first. ``parts`` are named groups of subsets."""

    title: str
    paper: str
    measures: tuple[str, ...]
    rule: str
    macros: tuple[Macro, ...] = ()
    published: tuple[PublishedFigure, ...] = ()
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_ORDER = ("consistency", "first_place", "longer")
_AGREEMENT = (
    "An unreadable reply agrees with no label; of a judge that rates each answer, equal or "
    "unreadable ratings of a pair with a better answer count half."
)

_JUDGEBENCH = "per-row outputs in the repository ScalerLab/JudgeBench at e2c52c2, counted anew"


def _judgebench() -> tuple[PublishedFigure, ...]:
    """Figures on the pairs by GPT-4o but for the last; categories in the order of :data:`_FOUR`."""
    found: list[PublishedFigure] = []
    for work, right, total, categories in (
        ("o1-mini, Arena-Hard prompt", 230, 350, (58.44, 62.24, 82.14, 78.57)),
        ("Skywork-Reward-Gemma-2-27B", 225, 350, (59.74, 66.33, 83.93, 50.00)),
        ("internlm2-20b-reward", 222, 350, ()),
        ("Skywork-Reward-Llama-3.1-8B", 218, 350, (59.09, 64.29, 76.79, 50.00)),
        ("internlm2-7b-reward", 208, 350, ()),
        ("GRM-Gemma-2B", 208, 350, (62.99, 53.06, 64.29, 54.76)),
        ("claude-3-haiku, on the pairs by Claude", 87, 270, ()),
    ):
        found.append(PublishedFigure(work, "two_games", right / total, _JUDGEBENCH))
        shares = zip(_FOUR, categories, strict=False)
        found += [
            PublishedFigure(work, "two_games", s / 100, _JUDGEBENCH, name) for name, s in shares
        ]
    skywork = "as its authors tabulate it, the mean of the four categories"
    found.append(
        PublishedFigure("Skywork-Reward-V2", "two_games", 0.83, skywork, MEAN_OF_SUBSETS.name)
    )
    return tuple(found)


_FOUR = ("knowledge", "reasoning", "math", "coding")
_ADVERSARIAL = ("gptinst", "gptout", "manual", "neighbor")
MEAN_OF_SUBSETS = Macro("mean of subsets")

BENCHMARKS: Mapping[str, Benchmark] = {
    "llmbar": Benchmark(
        "LLMBar",
        "Zeng et al. 2024, arXiv 2310.07641",
        ("agreement", "both_right", *_ORDER),
        _AGREEMENT,
        (Macro("mean of adversarial", _ADVERSARIAL),),
        parts={"adversarial": _ADVERSARIAL},
    ),
    "pandalm": Benchmark(
        "PandaLM test set",
        "Wang et al. 2024, arXiv 2306.05087",
        ("three_class", KAPPA, "agreement", "both_right", *_ORDER),
        "Two orders that contradict each other are a tie. " + _AGREEMENT,
    ),
    "autoj": Benchmark(
        "Auto-J pairwise",
        "Li et al. 2024, arXiv 2310.05470",
        ("agreement", "agreement_without_ties", "both_right", *_ORDER),
        _AGREEMENT,
    ),
    "hhh": Benchmark(
        "HHH alignment",
        "Askell et al. 2021, arXiv 2112.00861",
        ("agreement", "both_right", *_ORDER),
        _AGREEMENT,
        (MEAN_OF_SUBSETS,),
    ),
    "evalbiasbench": Benchmark(
        "EvalBiasBench",
        "Park et al. 2024, arXiv 2407.06551",
        ("agreement", "both_right", *_ORDER),
        _AGREEMENT,
        (MEAN_OF_SUBSETS,),
    ),
    "judgebench": Benchmark(
        "JudgeBench",
        "Tan et al. 2024, arXiv 2410.12784",
        ("two_games", "agreement", "both_right", *_ORDER),
        "Right where more of the two games agree with the label than contradict it; a tie or an "
        "unreadable reply is neither.",
        (MEAN_OF_SUBSETS,),
        _judgebench(),
    ),
}

_OWN = ("agreement", "two_games", "both_right", *_ORDER)
_OWN_TIES = ("agreement", "agreement_without_ties", "three_class", KAPPA, "both_right", *_ORDER)


def file_benchmark(has_ties: bool) -> Benchmark:
    """Return the benchmark for pairs of a user's file; ``has_ties``: some label is a tie."""
    measures = _OWN_TIES if has_ties else _OWN
    return Benchmark("Pairs of a file", "", measures, _AGREEMENT, (MEAN_OF_SUBSETS,))


def two_sets_benchmark(first: str, second: str, has_difficulty: bool) -> Benchmark:
    """Return the benchmark of one set of answers against another."""
    rule = (
        f"The share of questions that {first} wins, a tie being half; length-controlled, by a "
        "logistic regression on the difference in length"
        + (" and the question's difficulty." if has_difficulty else ".")
    )
    measures = ("win_rate", LENGTH_CONTROLLED, *_ORDER)
    return Benchmark(f"{first} against {second}", "", measures, rule)


REWARDBENCH2 = "rewardbench2"


class RowResult(Protocol):
    """A row's result. A ``failed`` row is unscored: the judge was down."""

    @property
    def failed(self) -> bool: ...

    @property
    def why(self) -> str: ...


R = TypeVar("R", bound=RowResult)
T = TypeVar("T")


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

    def decoded(self, decode: Callable[[Any], T], keys: Iterable[str]) -> dict[str, T]:
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
    result: type[R]

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
    def figures(self, results: Mapping[str, R]) -> list[Figure]:
        """Compute the figures of the rows that have a result and did not fail."""

    @abstractmethod
    def counts(self, results: Mapping[str, R]) -> dict[str, int]:
        """Count rows, replies, and what is in no figure."""

    def scored(self, results: Mapping[str, R]) -> list[ScoredPair]:
        """Return the pairs whose answers both have a score."""
        return []

    @abstractmethod
    def row(self, key: str, result: R) -> dict[str, Any]:
        """Return the fields of a row for the record: ``right`` if its result can be right or wrong,
        and a digest of its ``prompt``, by which rows are resampled."""


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
        if journal is not None and not result.failed:
            journal.put(key, to_row(result))

    def decode(row: Mapping[str, Any]) -> R:
        return from_row(rows.result, row)

    return await call_all(
        ((key, key) for key in rows.keys),
        lambda key: rows.ask(judge, key),
        concurrency=concurrency,
        outcome=lambda result: "down" if result.failed else "reached",
        why=lambda result: result.why,
        kept=None if journal is None else journal.decoded(decode, rows.keys),
        keep=keep,
        progress=progress,
        name=f"judge {judge.name!r}",
        remedy="start its server, or check its address in the LLM file; the same command continues",
    )


class PairRows(BenchmarkRows[Games]):
    """Pairs, each asked about in both orders. ``difficulty`` by prompt, possibly empty, is that of
    two sets of answers, whose pairs have no labels; None: labelled pairs."""

    result = Games

    def __init__(
        self,
        pairs: Sequence[Pair],
        benchmark: Benchmark,
        seed: int = 0,
        difficulty: Mapping[str, float] | None = None,
    ) -> None:
        self._difficulty = difficulty
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

    def figures(self, results: Mapping[str, Games]) -> list[Figure]:
        figures = Figures(self._judged(results), RESAMPLES, self._seed, self._difficulty or {})
        shares = figures.shares(self._benchmark.measures, self._benchmark.macros)
        return [*shares, *figures.annotators()]

    def counts(self, results: Mapping[str, Games]) -> dict[str, int]:
        judged = self._judged(results)
        games = [game for row in judged for game in row.games.both]
        labelled = sum(pair.label == "tie" for pair in self._pairs.values())
        return {
            "rows": len(self._pairs),
            "prompts": len({prompt_of(pair) for pair in self._pairs.values()}),
            "unscored": len(self._pairs) - len(judged),
            "questions": len(games),
            "unreadable": sum(game.status == "unreadable" for game in games),
            "ties": sum(game.preferred == "tie" for game in games),
            **({} if self._difficulty is not None else {"labelled_ties": labelled}),
        }

    def scored(self, results: Mapping[str, Games]) -> list[ScoredPair]:
        return [
            ScoredPair(*judged.games.straight.scores, judged.pair.label, prompt_of(judged.pair))
            for judged in self._judged(results)
            if judged.games.straight.scores is not None
        ]

    def row(self, key: str, result: Games) -> dict[str, Any]:
        pair = self._pairs[key]
        row: dict[str, Any] = {
            "id": pair.id,
            "source": pair.source,
            "prompt": digest_of(prompt_of(pair)),
        }
        if self._difficulty is None:
            row["label"] = pair.label
            if not result.failed:
                row["right"] = verdict_of(result) == pair.label
        return row | ({"category": pair.category} if pair.category else {})

    def _judged(self, results: Mapping[str, Games]) -> list[Judged]:
        return [
            Judged(pair, results[key])
            for key, pair in self._pairs.items()
            if key in results and not results[key].failed
        ]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def sha256_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of rows as JSON, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
