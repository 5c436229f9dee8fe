"""Counts and shares of followed instructions, with intervals; a comparison with others'
verdicts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, get_args

from flowright.core.statistics import RESAMPLES, SHARE, Resampler, mean, wilson
from flowright.criteria.constraints.checkers import Followed, Joined, ScoredPrompt, Verdicts
from flowright.criteria.constraints.table import KINDS, Kind

Reading = Literal["strict", "loose"]
Level = Literal["prompt", "instruction"]
READINGS: tuple[Reading, ...] = get_args(Reading)
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class InstructionFigure:
    """``followed`` of ``total``, at 95 % between ``low`` and ``high``: Wilson's interval for
    prompts; a bootstrap over prompts for instructions, which are not independent within one.
    ``fewest`` and ``most`` bound ``followed`` over seeds."""

    kind: Kind
    reading: Reading
    level: Level
    followed: int
    total: int
    low: float | None
    high: float | None
    fewest: int
    most: int

    @property
    def share(self) -> float | None:
        return self.followed / self.total if self.total else None


def figures_of(scored: Sequence[ScoredPrompt], seed: int = 0) -> list[InstructionFigure]:
    """Return the figures of every kind, reading and level."""
    resampler = Resampler([one.prompt.text for one in scored], RESAMPLES, seed)
    combinations = product(KINDS, READINGS, LEVELS)
    return [_figure(scored, resampler, *each) for each in combinations]


def _figure(
    scored: Sequence[ScoredPrompt], resampler: Resampler, kind: Kind, reading: Reading, level: Level
) -> InstructionFigure:
    found = [verdicts(one.followed[kind], reading) for one in scored]
    could = [_could(one.followed[kind], reading) for one in scored]
    if level == "prompt":
        found = [(all(each),) for each in found]
        could = [(_conjunction(each),) for each in could]
    followed, total = sum(map(sum, found)), sum(map(len, found))
    low, high = None, None
    if total and level == "prompt":
        low, high = wilson(followed, total)
    elif total:
        prompts = [one.prompt.text for one, each in zip(scored, found, strict=True) for _ in each]
        rows = [(float(flag), 1.0) for each in found for flag in each]
        estimate = resampler.estimate(prompts, rows, mean, SHARE)
        low, high = estimate.low, estimate.high
    fewest = sum(False not in flags for each in could for flags in each)
    most = sum(True in flags for each in could for flags in each)
    return InstructionFigure(kind, reading, level, followed, total, low, high, fewest, most)


def verdicts(followed: Followed, reading: Reading) -> tuple[bool, ...]:
    return followed.strict if reading == "strict" else followed.loose


def _could(followed: Followed, reading: Reading) -> tuple[frozenset[bool], ...]:
    return followed.could_strict if reading == "strict" else followed.could_loose


def _conjunction(each: Iterable[frozenset[bool]]) -> frozenset[bool]:
    """Possible values of ``all``."""
    flags = list(each)
    found = [False] * any(False in one for one in flags)
    found += [True] * all(True in one for one in flags)
    return frozenset(found)


def by_checker(scored: Sequence[ScoredPrompt]) -> list[dict[str, Any]]:
    """Return, for each id, its total, and how often it was followed by kind and reading."""
    total: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    for one in scored:
        for place, name in enumerate(one.prompt.ids):
            total[name] += 1
            for kind, reading in product(KINDS, READINGS):
                followed = verdicts(one.followed[kind], reading)[place]
                counts.setdefault(name, Counter())[f"{kind}_{reading}"] += followed
    return [{"id": name, "total": total[name], **counts[name]} for name in sorted(total)]


@dataclass(frozen=True, slots=True)
class VerdictDifference:
    """A prompt with other verdicts. ``is_drawn``: a draw decides each verdict that differs."""

    key: str
    ids: tuple[str, ...]
    reading: Reading
    ours: tuple[bool, ...]
    theirs: tuple[bool, ...]
    is_drawn: bool


@dataclass(frozen=True, slots=True)
class VerdictComparison:
    """``compared`` counts prompts with others' verdicts by reading, ``absent`` those without."""

    compared: Mapping[Reading, int]
    absent: int
    differences: tuple[VerdictDifference, ...]


def compare(scored: Sequence[ScoredPrompt], theirs: Mapping[str, Verdicts]) -> VerdictComparison:
    """Compare verdicts prompt by prompt; ours are those of the canonical checkers."""
    compared: Counter[Reading] = Counter()
    differences: list[VerdictDifference] = []
    for one in scored:
        other = theirs.get(one.prompt.text)
        if other is None:
            continue
        read: tuple[tuple[Reading, tuple[bool, ...] | None], ...]
        read = (("strict", other.strict), ("loose", other.loose))
        for reading, flags in read:
            if flags is None:
                continue
            compared[reading] += 1
            ours = verdicts(one.followed["canonical"], reading)
            if ours != flags:
                could = _could(one.followed["canonical"], reading)
                differences.append(_difference(one, reading, ours, flags, could))
    absent = sum(one.prompt.text not in theirs for one in scored)
    return VerdictComparison(dict(compared), absent, tuple(differences))


def _difference(
    one: ScoredPrompt,
    reading: Reading,
    ours: tuple[bool, ...],
    theirs: tuple[bool, ...],
    could: tuple[frozenset[bool], ...],
) -> VerdictDifference:
    places = [n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]]
    return VerdictDifference(
        one.prompt.key,
        tuple(one.prompt.ids[n] for n in places),
        reading,
        ours,
        theirs,
        len(ours) == len(theirs) and all(len(could[n]) == 2 for n in places),
    )


def record_of(
    about: Mapping[str, Any],
    joined: Joined,
    scored: Sequence[ScoredPrompt],
    comparison: VerdictComparison | None,
) -> dict[str, Any]:
    """Return the record of one benchmark as JSON."""
    figures = figures_of(scored)
    return {
        **about,
        "prompts": len(joined.answered) + len(joined.missing),
        "answered": len(joined.answered),
        "scored": len(scored),
        "missing": [prompt.key for prompt in joined.missing],
        "counts": {
            kind: {
                reading: {
                    f"{f.level}s": f.followed
                    for f in figures
                    if (f.kind, f.reading) == (kind, reading)
                }
                for reading in READINGS
            }
            for kind in KINDS
        },
        "figures": [{**asdict(figure), "share": figure.share} for figure in figures],
        "checkers": by_checker(scored),
        "compared": None if comparison is None else asdict(comparison),
    }


def rows_of(benchmark: str, scored: Sequence[ScoredPrompt]) -> list[dict[str, Any]]:
    """Return a row for each prompt: the canonical verdicts as others publish them, and the fixed
    ones."""
    return [
        {
            "benchmark": benchmark,
            "key": one.prompt.key,
            "prompt": one.prompt.text,
            "instruction_id_list": list(one.prompt.ids),
            "strict": list(one.followed["canonical"].strict),
            "loose": list(one.followed["canonical"].loose),
            "fixed_strict": list(one.followed["fixed"].strict),
            "fixed_loose": list(one.followed["fixed"].loose),
        }
        for one in scored
    ]
