"""One measurement: rows read, the judge opened and asked, the record written.

``scripts/evaluate_judge.py`` is its command line.
"""

import datetime
import platform
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import flowright
from flowright.core.errors import DataError, UserError
from flowright.core.plugins import suggest
from flowright.data.contamination import TRAINED_ON, TrainedOn
from flowright.data.preference_sources import read_pairs
from flowright.data.preferences import Pair
from flowright.judging.measuring.benchmark_judges import JudgeName, OpenedJudge, open_measured_judge
from flowright.judging.measuring.benchmark_rows import BenchmarkRows, PairRows, R
from flowright.judging.measuring.benchmark_table import BENCHMARKS, REWARDBENCH2, Benchmark, own
from flowright.judging.measuring.benchmarks.asking import ask_all
from flowright.judging.measuring.benchmarks.ledger import Ledger, ledger_path
from flowright.judging.measuring.measured_judges import LengthJudge, MeasuredJudge
from flowright.judging.measuring.pair_figures import Figure, prompt_of
from flowright.judging.measuring.pair_files import read_outputs, read_pairs_file, read_rewardbench2
from flowright.judging.measuring.rewardbench2 import TOLD, Best, BestOfRows, Mode
from flowright.judging.trained.calibration import Calibration, ScoredPair, reliability_of
from flowright.runs import check_writable, disk_errors, write_json

BenchmarkProgress = Callable[[str, int], Callable[[], None]]
"""Given what is done and how many, something to call as each is done."""
Say = Callable[[str], None]

OUT = Path("outputs/judge_benchmarks")
T = TypeVar("T")

NAMES = (*BENCHMARKS, REWARDBENCH2)
_SHOWN = 10  # lines about rows that cannot be used


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """What the command line asks for: one of ``benchmark``, ``pairs`` and ``outputs``; ``named`` is
    None with the last. ``mode`` None is ranking for a judge that can be shown several answers.
    ``trained_on`` are folders that say what the judge was trained on, beside its own."""

    named: JudgeName | None
    benchmark: str | None = None
    pairs: Path | None = None
    outputs: Path | None = None
    folder: Path = Path("data/raw")
    out: Path | None = None
    mode: Mode | None = None
    limit: int | None = None
    seed: int = 0
    overwrite: bool = False
    trained_on: Sequence[Path] = ()
    allow_trained_on: bool = False


async def run_benchmark(asked: BenchmarkRequest, progress: BenchmarkProgress, say: Say) -> Path:
    """Measure and write the record; returns its path. What was said stands in a ledger beside it
    from the moment that it was said. Raises UserError, ServerDown."""
    check_writable((asked.out or OUT).parent)
    if asked.outputs is not None:
        return await _recount(asked, asked.outputs, say)
    assert asked.named is not None, "somebody judges"
    if asked.benchmark == REWARDBENCH2:
        best = read_rewardbench2(asked.folder / REWARDBENCH2)
        _told(best.problems, say)
        rows = _part(best.rows, lambda row: row.cluster, asked)
        async with open_measured_judge(asked.named) as opened:
            mode = _mode(asked, opened.contender)
            known = _known(asked, opened, as_pairs(rows))
            sheet = BestOfRows(rows, mode, asked.seed)
            return await _measured(asked, asked.named, opened, sheet, TOLD[mode], progress, known)
    benchmark, pairs = _pairs(asked, say)
    async with open_measured_judge(asked.named) as opened:
        known = _known(asked, opened, pairs)
        sheet = PairRows(pairs, benchmark, asked.seed)
        return await _measured(asked, asked.named, opened, sheet, benchmark, progress, known)


async def _measured(
    asked: BenchmarkRequest,
    named: JudgeName,
    opened: OpenedJudge,
    sheet: BenchmarkRows[R],
    benchmark: Benchmark,
    progress: BenchmarkProgress,
    known: Mapping[str, Any],
) -> Path:
    contender = opened.contender
    data = asked.pairs.name if asked.pairs is not None else str(asked.benchmark)
    out = asked.out or OUT / f"{_file_name(named.judge)}-{_file_name(Path(data).stem)}.json"
    about = {
        "judge": contender.name,
        "data": data,
        "sha256": sheet.sha256,
        "seed": asked.seed,
        "version": flowright.__version__,
        **opened.about,
        **sheet.about,
    }
    ledger = Ledger(ledger_path(out), about, asked.overwrite)
    try:
        done = progress("asking", len(sheet.keys))
        for _ in set(sheet.keys) & ledger.said.keys():
            done()
        began = time.monotonic()
        said = await ask_all(contender, sheet, ledger, opened.concurrency, done)
        about |= {"seconds": time.monotonic() - began, "simulated": contender.simulated, **known}
        more = _calibrated(contender.calibration, sheet.scored(said), data)
        await _write(out, about, sheet, said, benchmark, more)
    finally:
        ledger.close()
    return out


def _known(asked: BenchmarkRequest, opened: OpenedJudge, rows: Sequence[Pair]) -> dict[str, Any]:
    """What is known of the judge's training. Raises DataError where it was trained on the rows and
    that is not allowed."""
    if opened.folders is None and not asked.trained_on:
        return {}
    places = Places(asked.trained_on, opened.folders or (), asked.allow_trained_on)
    return {"trained_on": training_overlap(places, rows)}


async def _recount(asked: BenchmarkRequest, outputs: Path, say: Say) -> Path:
    read = read_outputs(outputs)
    _told(read.problems, say)
    benchmark = BENCHMARKS["judgebench"]
    sheet = PairRows(read.pairs, benchmark, asked.seed)
    out = asked.out or OUT / f"{_file_name(outputs.stem)}.json"
    about = {
        "judge": read.judge,
        "data": "judgebench",
        "outputs": outputs.name,
        "sha256": sheet.sha256,
        "seed": asked.seed,
        "version": flowright.__version__,
        "simulated": False,
    }
    await _write(out, about, sheet, read.said, benchmark)
    return out


async def _write(
    out: Path,
    about: Mapping[str, Any],
    sheet: BenchmarkRows[R],
    said: Mapping[str, R],
    told: Benchmark,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """The record: the figures of the judge and of the length of answers, on the same rows, and
    ``more``."""
    longest = await ask_all(LengthJudge(), sheet, None, 1)
    judged = {key: answer for key, answer in said.items() if not sheet.failed(answer)}
    record = {
        "about": {
            **about,
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
        },
        "benchmark": {
            "title": told.title,
            "paper": told.paper,
            "rule": told.rule,
            "measures": list(told.measures),
        },
        "counts": sheet.counts(said),
        "figures": [_figure(figure) for figure in sheet.figures(judged)],
        "length": [
            _figure(figure)
            for figure in sheet.figures({key: longest[key] for key in judged})
            if figure.reading == "published"
        ],
        "published": [asdict(one) for one in told.published],
        "rows": [{**sheet.row(key), **sheet.encode(said[key])} for key in sheet.keys],
        **more,
    }
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, record)


def _calibrated(
    calibration: Calibration | None, pairs: Sequence[ScoredPair], data: str
) -> dict[str, Any]:
    """What a judge's own calibration comes to on these pairs, none of which it was fitted on."""
    if calibration is None or not calibration.is_fitted:
        return {}
    if not any(pair.label != "tie" for pair in pairs):
        return {}
    measured = {
        "data": data,
        "measured": {"pairs": len(pairs)},
        "before": reliability_of(pairs, 1.0),
        "after": reliability_of(pairs, calibration.temperature),
    }
    return {"calibration": {**calibration.record, **measured}}


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "measure": figure.measure,
        "group": figure.group,
        "reading": figure.reading,
        "rows": figure.rows,
        **asdict(figure.estimate),
    }


def _pairs(asked: BenchmarkRequest, say: Say) -> tuple[Benchmark, tuple[Pair, ...]]:
    """What is measured on, a part of it where there is a limit."""
    if asked.pairs is not None:
        read = read_pairs_file(asked.pairs)
        _told(read.problems, say)
        benchmark = own(any(pair.label == "tie" for pair in read.rows))
        return benchmark, _part(read.rows, prompt_of, asked)
    name, _, subset = (asked.benchmark or "").partition("/")
    if name not in BENCHMARKS:
        known = ", ".join(NAMES)
        meant = suggest(name, NAMES)
        raise UserError(f"--benchmark {name}: there is no such one{meant}; there are {known}")
    benchmark, pairs = BENCHMARKS[name], tuple(read_pairs(name, asked.folder))
    if subset:
        benchmark = replace(benchmark, title=f"{benchmark.title}, {subset}")
        pairs = _of_subset(f"{name}/{subset}", benchmark.parts, pairs)
    return benchmark, _part(pairs, prompt_of, asked)


def _of_subset(
    name: str, parts: Mapping[str, tuple[str, ...]], pairs: tuple[Pair, ...]
) -> tuple[Pair, ...]:
    _, _, subset = name.partition("/")
    kept = parts.get(subset, (subset,))
    found = tuple(pair for pair in pairs if pair.category in kept)
    if not found:
        known = [*parts, *dict.fromkeys(pair.category for pair in pairs if pair.category)]
        there = f"; there are {', '.join(known)}" if known else "; it has none"
        raise UserError(f"--benchmark {name}: no such subset{suggest(subset, known)}{there}")
    return found


def _mode(asked: BenchmarkRequest, contender: MeasuredJudge) -> Mode:
    """How RewardBench 2 asks about its rows outside Ties."""
    if asked.mode == "ranking" and not contender.chooses:
        raise UserError(f"--mode ranking: {contender.name} rates answers one by one; use ratings")
    return asked.mode or ("ranking" if contender.chooses else "ratings")


def _part(
    rows: tuple[T, ...], prompt: Callable[[T], str], asked: BenchmarkRequest
) -> tuple[T, ...]:
    """All rows of ``limit`` prompts, drawn; in the order of the file."""
    prompts = list(dict.fromkeys(map(prompt, rows)))
    if asked.limit is None or asked.limit >= len(prompts):
        return rows
    kept = set(random.Random(f"{asked.seed}/prompts").sample(prompts, asked.limit))
    return tuple(row for row in rows if prompt(row) in kept)


def _told(problems: Sequence[str], say: Say) -> None:
    """What was left out, and how much."""
    if not problems:
        return
    for problem in problems[:_SHOWN]:
        say(problem)
    rows = "1 row" if len(problems) == 1 else f"{len(problems)} rows"
    more = len(problems) - _SHOWN
    say(f"{rows} cannot be used" + (f", {more} of them not shown" if more > 0 else ""))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:120] or "judge"


OPTION = "--allow-trained-on"


@dataclass(frozen=True, slots=True)
class Places:
    """Where it may stand what a judge was trained on: ``named`` by the user, who is told where
    nothing stands there, and ``own`` folders of the judge's."""

    named: Sequence[Path] = ()
    own: Sequence[Path] = ()
    allowed: bool = False


def training_overlap(places: Places, rows: Iterable[Pair]) -> dict[str, Any]:
    """What is known, as JSON: ``files``, and ``found``, a line for each subset that was trained on.
    Raises DataError where there is one and that is not allowed."""
    for folder in places.named:
        if not (folder / TRAINED_ON).is_file():
            raise DataError(f"--trained-on {folder}: no {TRAINED_ON} in it")
    files = [*dict.fromkeys(f for f in (*places.named, *places.own) if (f / TRAINED_ON).is_file())]
    known = TrainedOn.gathered(files)
    found = known.found(rows) if known else []
    if found and not places.allowed:
        raise DataError(
            *found,
            f"it would say nothing of other data; measure it on another benchmark, or go on with "
            f"{OPTION}, and the result says so",
        )
    return {"files": [f"{file.absolute().name}/{TRAINED_ON}" for file in files], "found": found}


def as_pairs(rows: Iterable[Best]) -> list[Pair]:
    """RewardBench 2's rows, each as the pair of a right and a wrong answer."""
    return [
        Pair(
            row.id, REWARDBENCH2, row.conversation, row.answers[0], row.answers[-1], "first",
            row.subset,
        )
        for row in rows
    ]  # fmt: skip


def overlap_lines(about: Mapping[str, Any]) -> Sequence[str]:
    """What a record's ``about`` says of it, in lines; the first of several is a warning. None for
    baselines."""
    said = about.get("trained_on")
    if said is None:
        return ()
    if said["found"]:
        return ("TRAINED ON WHAT IT IS MEASURED BY: it says nothing of other data.", *said["found"])
    if said["files"]:
        return (f"Trained on none of this, as {', '.join(said['files'])} says.",)
    return (f"Not known what it was trained on: no {TRAINED_ON} at hand (--trained-on).",)
