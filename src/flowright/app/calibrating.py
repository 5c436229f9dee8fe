"""Fitting how sure a judge that scores may be: at the end of its run, for the checkpoint that is
served, and of any such judge on a file of pairs (scripts/calibrate_judge.py).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flowright.app.judge_folder import find_judge, load_judge
from flowright.app.scalar_judge import Scorer
from flowright.app.terminal import say
from flowright.core.errors import ConfigError, DataError
from flowright.core.files import check_writable, write_json
from flowright.core.formatting import format_value as said
from flowright.data.preferences import Pair
from flowright.data.task import Task
from flowright.environments.judging.files import read_rows
from flowright.environments.judging.loading import FORMS
from flowright.environments.judging.rows import PairRow
from flowright.environments.judging.tasks import JudgingTask
from flowright.grpo.batch import scalar_scores
from flowright.grpo.checkpoint import Saves, load_weights, portable_state, take_over
from flowright.grpo.fixed_data import FixedData
from flowright.judging.measuring.pair_figures import prompt_of
from flowright.judging.trained.calibration import (
    FILE,
    Calibration,
    ScoredPair,
    calibrate,
    write_calibration,
)
from flowright.llm.chat import Message
from flowright.policy.model_thread import on_model_thread
from flowright.runs.checkpoints import step_name


async def calibrate_run(saves: Saves, batches: FixedData, tasks: Sequence[Task], step: int) -> None:
    """Calibrate the judge of a run that is over on its held-out pairs: the best checkpoint, or else
    the last, as exporting and serving take it. Leaves calibration.json beside the weights, and a
    copy in the run directory for its report; says so where there are too few pairs. All ranks call
    it alike, and their policy has that checkpoint's weights then."""
    policy, ranks, root = saves.policy, saves.ranks, saves.run.checkpoints_path
    best = step if saves.best is None else saves.best.step
    if best != step:
        if ranks.is_first:
            load_weights(root / step_name(best), policy)
        if ranks.size > 1:
            state = portable_state(policy, saves.learner) if ranks.is_first else b""
            state = await ranks.broadcast(state)
            if not ranks.is_first:
                take_over(state, policy, saves.learner)
    pairs = [task for task in tasks if isinstance(task, JudgingTask) and isinstance(task.row, Pair)]
    groups = [group for task in pairs for group in batches.groups([task])]
    scores = await on_model_thread(scalar_scores, policy, groups, saves.config.grpo)
    if not ranks.is_first:
        return
    both = zip(scores[::2], scores[1::2], strict=True)
    scored = [
        ScoredPair(first, second, task.row.label, prompt_of(task.row))
        for task, (first, second) in zip(pairs, both, strict=True)
        if isinstance(task.row, Pair)
    ]
    try:
        found = calibrate(scored, "the run's held-out pairs")
    except DataError as error:
        saves.reporter.say(f"not calibrated: {error}")
        return
    path = write_calibration(root / step_name(best), found)
    write_json(saves.run.path / FILE, {**found.record, "checkpoint": step_name(best)})
    for line in calibration_lines(found):
        saves.reporter.say(line)
    saves.reporter.say(f"written   {path}")


def calibration_lines(found: Calibration) -> list[str]:
    """What a calibration found, for people."""
    record = found.record
    told = [
        f"calibrated to temperature {found.temperature:.3g} on {record['fitted']['pairs']:,} of "
        f"{record['data']}; error on the {record['measured']['pairs']:,} others, in "
        f"{record['bins']} bins: {_error(record['before'])} before, {_error(record['after'])} after"
    ]
    if record["at_bound"]:
        told.append(
            "  that is the bound of the search: these pairs are told apart wholly, or not at all, "
            "and such scores have no temperature"
        )
    return told


def _error(measured: dict[str, dict[str, float]]) -> str:
    return said(measured["error"]["value"], "{:.1%}".format)


async def _scored(scorer: Scorer, pairs: Sequence[Pair]) -> tuple[list[ScoredPair], list[str]]:
    """Pairs with their scores, and what is wrong with the others, a line each."""

    async def one(pair: Pair) -> ScoredPair:
        turns = [Message(turn.role, turn.content) for turn in pair.conversation]
        answers = (scorer.score(turns, answer) for answer in (pair.first, pair.second))
        (first, _), (second, _) = await asyncio.gather(*answers)
        return ScoredPair(first, second, pair.label, prompt_of(pair))

    found = await asyncio.gather(*map(one, pairs), return_exceptions=True)
    problems = []
    for pair, each in zip(pairs, found, strict=True):
        if isinstance(each, DataError):
            problems.append(f"{pair.id}: {each}")
        elif isinstance(each, BaseException):
            raise each
    return [each for each in found if isinstance(each, ScoredPair)], problems


def calibrate_folder(
    folder: Path, files: Sequence[Path], console: Console, device: str = "auto"
) -> int:
    """Calibrate the judge in a folder on the pairs of files, and leave calibration.json beside its
    weights. Raises UserError for what the user can mend."""
    found = find_judge(folder)
    check_writable(found.place)
    read = read_rows(files, FORMS["bradley_terry"])
    rows = [row.pair if isinstance(row, PairRow) else row for row in read.rows]
    pairs = [row for row in rows if isinstance(row, Pair)]
    for line in read.report.lines(3):
        say(console, line)
    judge = load_judge(found, device)
    if not judge.scores:
        raise ConfigError(f"{found.name}: it writes its verdicts; scores alone have a temperature")
    scored, problems = asyncio.run(_scored(Scorer(judge), pairs))
    for problem in problems:
        say(console, f"left out  {problem}")
    fitted = calibrate(scored, ", ".join(path.name for path in files))
    path = write_calibration(found.place, fitted)
    console.print(_table(fitted))
    for line in calibration_lines(fitted):
        say(console, line)
    say(console, f"written   {path}")
    return 0


def _table(found: Calibration) -> Table:
    table = Table("", "before", "after", box=None, pad_edge=False)
    before, after = found.record["before"], found.record["after"]
    for name, key in (("log loss a pair", "log_loss"), ("pairs ranked as labelled", "accuracy")):
        table.add_row(name, f"{before[key]:.3f}", f"{after[key]:.3f}")
    ends = [
        f"{_error(each)} ({said(each['error']['low'], '{:.1%}'.format)} to "
        f"{said(each['error']['high'], '{:.1%}'.format)})"
        for each in (before, after)
    ]
    table.add_row("expected calibration error", *ends)
    return table
