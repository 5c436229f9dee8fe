"""Measure a judge on a benchmark or on pairs of a file: read the rows, open the judge, ask it, and
write the record.
"""

import datetime
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import flowright
from flowright.core.errors import DataError, UserError
from flowright.core.files import check_writable, disk_errors, write_json
from flowright.core.plugins import suggest
from flowright.data.contamination import TRAINED_ON, TrainedOn
from flowright.data.sources.registry import read_pairs
from flowright.data.task import Pair
from flowright.judging.measuring.benchmark_judges import (
    JudgeName,
    JudgeOpener,
    OpenedJudge,
    open_measured_judge,
)
from flowright.judging.measuring.benchmark_report import compare_judges, read_record
from flowright.judging.measuring.benchmark_rows import (
    BENCHMARKS,
    REWARDBENCH2,
    Benchmark,
    BenchmarkRows,
    PairRows,
    R,
    RowJournal,
    ask_rows,
    file_benchmark,
    journal_path,
    two_sets_benchmark,
)
from flowright.judging.measuring.labelled_answers import sampled_groups
from flowright.judging.measuring.measured_judges import LengthJudge, MeasuredJudge, to_row
from flowright.judging.measuring.pair_figures import Figure, prompt_of
from flowright.judging.measuring.pair_files import (
    read_outputs,
    read_pairs_file,
    read_rewardbench2,
    read_two_sets,
)
from flowright.judging.measuring.rewardbench2 import MODES, BestOfPrompt, BestOfRows, Mode
from flowright.judging.trained.calibration import Calibration, ScoredPair, reliability_of

Progress = Callable[[str, int], Callable[[], None]]
"""Called with a name and a total; returns a function to call after each item."""
Say = Callable[[str], None]
T = TypeVar("T")

OUT = Path("outputs/judge_benchmarks")
NAMES = (*BENCHMARKS, REWARDBENCH2)
_SHOWN = 10  # lines about unusable rows


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """Settings of the command line: one of ``benchmark``, ``pairs``, ``answers`` (two files) and
    ``outputs``; ``judge`` is None with the last. ``against``: a second judge on the same rows, or
    the record of one. ``mode`` None is ranking for a judge that can choose among several answers.
    ``trained_on`` are folders with a record of the judge's training data, beside its own."""

    judge: JudgeName | None
    against: JudgeName | None = None
    benchmark: str | None = None
    pairs: Path | None = None
    answers: Sequence[Path] | None = None
    outputs: Path | None = None
    folder: Path = Path("data/raw")
    out: Path | None = None
    mode: Mode | None = None
    limit: int | None = None
    seed: int = 0
    overwrite: bool = False
    trained_on: Sequence[Path] = ()
    allow_trained_on: bool = False


async def run_benchmark(
    request: BenchmarkRequest, open_folder: JudgeOpener, progress: Progress, say: Say
) -> Path:
    """Measure, write the record and return its path. Replies are kept in a journal beside it as
    they come, and a later call resumes. The record of a second judge is ``OUT.against.json``.
    ``open_folder`` opens a trained judge. Raises UserError, ServerDown."""
    out = await _benchmark(request, open_folder, progress, say)
    if (against := request.against) is None:
        return out
    other = Path(against.judge)
    if other.suffix != ".json":
        second = replace(request, judge=against, out=out.with_name(f"{out.stem}.against.json"))
        other = await _benchmark(second, open_folder, progress, lambda line: None)
    record = read_record(out)
    with disk_errors(out):
        write_json(out, {**record, "against": compare_judges(record, read_record(other))})
    return out


async def _benchmark(
    request: BenchmarkRequest, open_folder: JudgeOpener, progress: Progress, say: Say
) -> Path:
    check_writable((request.out or OUT).parent)
    if request.outputs is not None:
        return await _count_outputs(request, request.outputs, say)
    assert request.judge is not None, "the command line requires --judge"
    name, _, subsets = (request.benchmark or "").partition("/")
    if name == REWARDBENCH2:
        best = read_rewardbench2(request.folder / REWARDBENCH2)
        _say_problems(best.problems, say)
        chosen = _subsets(best.rows, lambda row: row.subset, {}, name, subsets)
        kept, partial = _limited(chosen, lambda row: row.cluster, request)
        async with open_measured_judge(request.judge, open_folder) as opened:
            mode = _mode(request, opened.judge)
            overlap = _overlap(request, opened, as_pairs(kept))
            rows = BestOfRows(kept, mode, request.seed)
            partial += rows.missing
            return await _measure(request, opened, rows, MODES[mode], overlap, partial, progress)
    difficulty = None
    if request.answers is not None:
        sets = read_two_sets(request.answers)
        benchmark = two_sets_benchmark(*sets.names, bool(sets.difficulty))
        pairs, partial = _limited(sets.pairs, prompt_of, request)
        partial, difficulty = [*sets.partial, *partial], sets.difficulty
    else:
        benchmark, pairs, partial = labelled_pairs(request, say)
    async with open_measured_judge(request.judge, open_folder) as opened:
        overlap = _overlap(request, opened, pairs)
        rows = PairRows(pairs, benchmark, request.seed, difficulty)
        return await _measure(request, opened, rows, benchmark, overlap, partial, progress)


async def _measure(
    request: BenchmarkRequest,
    opened: OpenedJudge,
    rows: BenchmarkRows[R],
    benchmark: Benchmark,
    overlap: Mapping[str, Any],
    partial: Sequence[str],
    progress: Progress,
) -> Path:
    judge = opened.judge
    data = request.pairs.name if request.pairs is not None else request.benchmark or benchmark.title
    named = request.judge.judge if request.judge else judge.name
    out = request.out or OUT / f"{_file_name(named)}-{_file_name(Path(data).stem)}.json"
    about = {
        "judge": judge.name,
        "data": data,
        "sha256": rows.sha256,
        "seed": request.seed,
        "version": flowright.__version__,
        **opened.about,
        **rows.about,
    }
    with RowJournal(journal_path(out), about, request.overwrite) as journal:
        done = progress("asking", len(rows.keys))
        for _ in set(rows.keys) & journal.kept.keys():
            done()
        began = time.monotonic()
        results = await ask_rows(judge, rows, journal, opened.concurrency, done)
        about |= {"seconds": time.monotonic() - began, "simulated": judge.simulated, **overlap}
        calibrated = _calibrated(judge.calibration, rows.scored(results), data)
        await _write(out, about, rows, results, benchmark, {"partial": partial, **calibrated})
    return out


async def _count_outputs(request: BenchmarkRequest, outputs: Path, say: Say) -> Path:
    """Measure published outputs: no judge is asked."""
    read = read_outputs(outputs)
    _say_problems(read.problems, say)
    benchmark = BENCHMARKS["judgebench"]
    rows = PairRows(read.pairs, benchmark, request.seed)
    out = request.out or OUT / f"{_file_name(outputs.stem)}.json"
    about = {
        "judge": read.judge,
        "data": "judgebench",
        "outputs": outputs.name,
        "sha256": rows.sha256,
        "seed": request.seed,
        "version": flowright.__version__,
        "simulated": False,
    }
    await _write(out, about, rows, read.games, benchmark)
    return out


async def _write(
    out: Path,
    about: Mapping[str, Any],
    rows: BenchmarkRows[R],
    results: Mapping[str, R],
    benchmark: Benchmark,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write the record: figures of the judge and of the length of answers on the same rows."""
    by_length = await ask_rows(LengthJudge(), rows, None, 1)
    judged = {key: result for key, result in results.items() if not result.failed}
    record = {
        "about": {
            **about,
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
        },
        "benchmark": {
            "title": benchmark.title,
            "paper": benchmark.paper,
            "rule": benchmark.rule,
            "measures": list(benchmark.measures),
        },
        "counts": rows.counts(results),
        "figures": [_figure_row(figure) for figure in rows.figures(judged)],
        "length": [
            _figure_row(figure)
            for figure in rows.figures({key: by_length[key] for key in judged})
            if figure.reading == "published"
        ],
        "published": [asdict(figure) for figure in benchmark.published],
        "rows": [{**rows.row(key, results[key]), **to_row(results[key])} for key in rows.keys],
        **more,
    }
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, record)


def _figure_row(figure: Figure) -> dict[str, Any]:
    return {
        "measure": figure.measure,
        "group": figure.group,
        "reading": figure.reading,
        "rows": figure.rows,
        **asdict(figure.estimate),
    }


def _calibrated(
    calibration: Calibration | None, pairs: Sequence[ScoredPair], data: str
) -> dict[str, Any]:
    """A judge's own calibration on these pairs, none of which it was fitted on."""
    decided = any(pair.label != "tie" for pair in pairs)
    if calibration is None or not calibration.is_fitted or not decided:
        return {}
    measured = {
        "data": data,
        "measured": {"pairs": len(pairs)},
        "before": reliability_of(pairs, 1.0),
        "after": reliability_of(pairs, calibration.temperature),
    }
    return {"calibration": {**calibration.record, **measured}}


# Rows.


def labelled_pairs(
    request: BenchmarkRequest, say: Say
) -> tuple[Benchmark, tuple[Pair, ...], list[str]]:
    """The benchmark, its pairs, and in which way they are not all."""
    if request.pairs is not None:
        read = read_pairs_file(request.pairs)
        _say_problems(read.problems, say)
        benchmark = file_benchmark(has_ties=any(pair.label == "tie" for pair in read.rows))
        return benchmark, *_limited(read.rows, prompt_of, request)
    name, _, subsets = (request.benchmark or "").partition("/")
    if name not in BENCHMARKS:
        meant = suggest(name, NAMES)
        raise UserError(f"--benchmark {name}: not one of {', '.join(NAMES)}{meant}")
    benchmark, pairs = BENCHMARKS[name], tuple(read_pairs(name, request.folder))
    if subsets:
        pairs = _subsets(pairs, lambda pair: pair.category, benchmark.parts, name, subsets)
        benchmark = replace(benchmark, title=f"{benchmark.title}, {subsets}")
    return benchmark, *_limited(pairs, prompt_of, request)


def _subsets(
    rows: tuple[T, ...],
    subset_of: Callable[[T], str],
    parts: Mapping[str, Sequence[str]],
    name: str,
    subsets: str,
) -> tuple[T, ...]:
    """The rows of the named subsets (separated by commas), or all rows. ``parts`` are named groups
    of subsets."""
    if not subsets:
        return rows
    there = {subset.casefold(): subset for row in rows if (subset := subset_of(row))}
    taken: set[str] = set()
    for asked in (each.strip() for each in subsets.split(",")):
        found = parts.get(asked) or [there.get(asked.casefold(), "")]
        if not {*found} & {*there.values()}:
            known = [*parts, *there.values()]
            listed = f"; there are {', '.join(known)}" if known else "; it has none"
            meant = suggest(asked, known)
            raise UserError(f"--benchmark {name}/{asked}: no such subset{meant}{listed}")
        taken |= {*found}
    return tuple(row for row in rows if subset_of(row) in taken)


def _mode(request: BenchmarkRequest, judge: MeasuredJudge) -> Mode:
    """The mode of RewardBench 2 for its rows outside Ties."""
    if request.mode == "ranking" and not judge.chooses:
        raise UserError(f"--mode ranking: {judge.name} rates answers one by one; use ratings")
    return request.mode or ("ranking" if judge.chooses else "ratings")


def _limited(
    rows: tuple[T, ...], prompt: Callable[[T], str], request: BenchmarkRequest
) -> tuple[tuple[T, ...], list[str]]:
    """All rows of ``limit`` randomly drawn prompts, in the order of the file, and a line about them
    if they are not all."""
    kept = sampled_groups(rows, prompt, request.limit, f"{request.seed}/prompts")
    drawn, prompts = (len({*map(prompt, some)}) for some in (kept, rows))
    return kept, [f"{drawn:,} of {prompts:,} prompts (--limit)"] if drawn < prompts else []


def _say_problems(problems: Sequence[str], say: Say) -> None:
    for problem in problems[:_SHOWN]:
        say(problem)
    if problems:
        rows = "1 row" if len(problems) == 1 else f"{len(problems)} rows"
        more = len(problems) - _SHOWN
        say(f"{rows} cannot be used" + (f", {more} of them not shown" if more > 0 else ""))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:120] or "judge"


# Overlap of the rows with the judge's training data.


def _overlap(
    request: BenchmarkRequest, opened: OpenedJudge, rows: Sequence[Pair]
) -> dict[str, Any]:
    if opened.folders is None and not request.trained_on:
        return {}
    own = {judge.judge: opened.trained_on} if (judge := request.judge) and opened.trained_on else {}
    found = training_overlap(
        rows, request.trained_on, opened.folders or (), request.allow_trained_on, own
    )
    return {"trained_on": found}


def training_overlap(
    rows: Iterable[Pair],
    named: Sequence[Path],
    own: Sequence[Path] = (),
    allowed: bool = False,
    served: Mapping[str, TrainedOn] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return, as JSON, the ``files`` that record the judge's training data, and ``found``, a line
    for each subset of ``rows`` that it was trained on.

    ``named`` folders must have such a file, the judge's ``own`` may have one; ``served`` are
    records by the address of a service. Raises DataError for an overlap, unless ``allowed``.
    """
    for folder in named:
        if not (folder / TRAINED_ON).is_file():
            raise DataError(f"--trained-on {folder}: no {TRAINED_ON} in it")
    files = [*dict.fromkeys(f for f in (*named, *own) if (f / TRAINED_ON).is_file())]
    known = reduce(or_, served.values(), TrainedOn.gathered(files) or TrainedOn())
    found = known.found(rows)
    if found and not allowed:
        raise DataError(
            *found,
            "such figures do not hold for other data; measure on another benchmark, or add "
            "--allow-trained-on, and the result carries a warning",
        )
    names = [f"{file.absolute().name}/{TRAINED_ON}" for file in files]
    return {"files": [*names, *(f"{url}/trained_on" for url in served)], "found": found}


def as_pairs(rows: Iterable[BestOfPrompt]) -> list[Pair]:
    """Convert RewardBench 2's rows to pairs of a right and a wrong answer."""
    return [
        Pair(
            row.id, REWARDBENCH2, row.conversation, row.answers[0], row.answers[-1], "first",
            row.subset,
        )
        for row in rows
    ]  # fmt: skip
