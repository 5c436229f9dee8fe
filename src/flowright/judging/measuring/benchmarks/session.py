"""One measurement: rows read, the judge opened and asked, the record written.

``scripts/evaluate_judge.py`` is its command line.
"""

import datetime
import platform
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import flowright
from flowright.core.errors import UserError
from flowright.core.plugins import suggest
from flowright.data.preference_sources import read_pairs
from flowright.data.preferences import Pair
from flowright.judging.measuring.benchmarks.asking import ask_all
from flowright.judging.measuring.benchmarks.benchmarks import (
    BENCHMARKS,
    REWARDBENCH2,
    Benchmark,
    own,
)
from flowright.judging.measuring.benchmarks.calibration import (
    Calibration,
    ScoredPair,
    reliability_of,
)
from flowright.judging.measuring.benchmarks.contenders import Contender, Length
from flowright.judging.measuring.benchmarks.figures import Figure, prompt_of
from flowright.judging.measuring.benchmarks.files import read_pairs_file, read_rewardbench2
from flowright.judging.measuring.benchmarks.ledger import Ledger, ledger_path
from flowright.judging.measuring.benchmarks.opening import Named, Opened, open_contender
from flowright.judging.measuring.benchmarks.published_outputs import read_outputs
from flowright.judging.measuring.benchmarks.rewardbench2 import TOLD, BestSheet, Mode
from flowright.judging.measuring.benchmarks.sheet import PairSheet, R, Sheet
from flowright.judging.measuring.benchmarks.trained_on import Places, as_pairs, look
from flowright.runs import check_writable, disk_errors, write_json

Progress = Callable[[str, int], Callable[[], None]]
"""Given what is done and how many, something to call as each is done."""
Say = Callable[[str], None]

OUT = Path("outputs/judge_benchmarks")
T = TypeVar("T")

NAMES = (*BENCHMARKS, REWARDBENCH2)
_SHOWN = 10  # lines about rows that cannot be used


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the command line asks for: one of ``benchmark``, ``pairs`` and ``outputs``; ``named`` is
    None with the last. ``mode`` None is ranking for a judge that can be shown several answers.
    ``trained_on`` are folders that say what the judge was trained on, beside its own."""

    named: Named | None
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


async def measure(asked: Measurement, progress: Progress, say: Say) -> Path:
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
        async with open_contender(asked.named) as opened:
            mode = _mode(asked, opened.contender)
            known = _known(asked, opened, as_pairs(rows))
            sheet = BestSheet(rows, mode, asked.seed)
            return await _measured(asked, asked.named, opened, sheet, TOLD[mode], progress, known)
    benchmark, pairs = _pairs(asked, say)
    async with open_contender(asked.named) as opened:
        known = _known(asked, opened, pairs)
        sheet = PairSheet(pairs, benchmark, asked.seed)
        return await _measured(asked, asked.named, opened, sheet, benchmark, progress, known)


async def _measured(
    asked: Measurement,
    named: Named,
    opened: Opened,
    sheet: Sheet[R],
    benchmark: Benchmark,
    progress: Progress,
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


def _known(asked: Measurement, opened: Opened, rows: Sequence[Pair]) -> dict[str, Any]:
    """What is known of the judge's training. Raises DataError where it was trained on the rows and
    that is not allowed."""
    if opened.folders is None and not asked.trained_on:
        return {}
    places = Places(asked.trained_on, opened.folders or (), asked.allow_trained_on)
    return {"trained_on": look(places, rows)}


async def _recount(asked: Measurement, outputs: Path, say: Say) -> Path:
    read = read_outputs(outputs)
    _told(read.problems, say)
    benchmark = BENCHMARKS["judgebench"]
    sheet = PairSheet(read.pairs, benchmark, asked.seed)
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
    sheet: Sheet[R],
    said: Mapping[str, R],
    told: Benchmark,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """The record: the figures of the judge and of the length of answers, on the same rows, and
    ``more``."""
    longest = await ask_all(Length(), sheet, None, 1)
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


def _pairs(asked: Measurement, say: Say) -> tuple[Benchmark, tuple[Pair, ...]]:
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


def _mode(asked: Measurement, contender: Contender) -> Mode:
    """How RewardBench 2 asks about its rows outside Ties."""
    if asked.mode == "ranking" and not contender.chooses:
        raise UserError(f"--mode ranking: {contender.name} rates answers one by one; use ratings")
    return asked.mode or ("ranking" if contender.chooses else "ratings")


def _part(rows: tuple[T, ...], prompt: Callable[[T], str], asked: Measurement) -> tuple[T, ...]:
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
