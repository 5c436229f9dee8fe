"""Calibrate a judge that scores: at the end of its run, for the checkpoint that is served, or on
the pairs of a file (scripts/calibrate_judge.py).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from flowright.core.errors import ConfigError, DataError
from flowright.core.files import check_writable, write_json
from flowright.data.preferences import Pair
from flowright.data.task import Task
from flowright.environments.judging.rows import PairRow, read_rows
from flowright.environments.judging.tasks import FORMS, JudgingTask
from flowright.evaluation.trained_judge import LocalScorer, find_judge, load_judge
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
    """Calibrate the judge of a finished run on its held-out pairs: the best checkpoint, else the
    last, as exporting and serving choose it. Writes calibration.json beside the weights, and a copy
    into the run directory for its report; reports too few pairs. All ranks call it alike, and have
    that checkpoint's weights afterwards."""
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
    for line in found.lines():
        saves.reporter.say(line)
    saves.reporter.say(f"written   {path}")


def calibrate_folder(
    folder: Path, files: Sequence[Path], device: str = "auto"
) -> tuple[Calibration, list[str]]:
    """Calibrate the judge in a folder on the pairs of files, and write calibration.json beside its
    weights. Returns it with lines for people. Raises UserError."""
    found = find_judge(folder)
    check_writable(found.place)
    read = read_rows(files, FORMS["bradley_terry"])
    rows = [row.pair if isinstance(row, PairRow) else row for row in read.rows]
    pairs = [row for row in rows if isinstance(row, Pair)]
    judge = load_judge(found, device)
    if not judge.scores:
        raise ConfigError(f"{found.name}: it writes its verdicts; scores alone have a temperature")
    scored, problems = asyncio.run(_score_pairs(LocalScorer(judge), pairs))
    calibration = calibrate(scored, ", ".join(path.name for path in files))
    path = write_calibration(found.place, calibration)
    lines = [*read.report.lines(3), *(f"left out  {problem}" for problem in problems)]
    return calibration, [*lines, *calibration.lines(), f"written   {path}"]


async def _score_pairs(
    scorer: LocalScorer, pairs: Sequence[Pair]
) -> tuple[list[ScoredPair], list[str]]:
    """Pairs with their scores, and a line for each pair without."""

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
