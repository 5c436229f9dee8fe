"""Labelled rows in, judgements to learn from out: ``scripts/judge_training/make_transcripts.py`` is
the command line. Rows are split first, and what was tried is kept as it comes.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import RunError, UserError
from flowright.data.contamination import TrainedOn
from flowright.data.preference_files import write_training_file
from flowright.data.preferences import Pair
from flowright.environments.judging.config import JudgingSection
from flowright.environments.judging.frames import FrameWording, wording_of
from flowright.environments.judging.loading import JudgingRows, load_rows, trained_on
from flowright.environments.judging.rows import JudgedRow, SftRow
from flowright.environments.judging.transcripts import (
    Ask,
    Kept,
    Thinker,
    Transcripts,
    Tried,
    by_judge,
    by_model,
    labelled,
    transcribe,
)
from flowright.judging.build import build_judge, fingerprint
from flowright.judging.measuring.benchmark_rows import RowJournal, journal_path
from flowright.llm.chat import ChatModel, ChatRequest, Message
from flowright.simulation.large_models import open_models

By = Literal["model", "judge", "label"]
"""Who thinks: a model that is shown the trained judge's own prompt; a judge of the house, in its
own words; or nobody: a verdict without a thought, which is the row's label."""


@dataclass(frozen=True, slots=True)
class Making:
    """What the command line asks for. ``judge`` is a name of ``llm.file``, or None where nobody
    is asked; ``limit``: of the rows of each side."""

    rows: JudgingSection
    judge: str | None
    config: Path
    out: Path
    by: By = "model"
    kept_as: Literal["parquet", "jsonl"] = "parquet"
    tries: int = 4
    temperature: float = 0.7
    max_tokens: int = 2048
    seed: int = 0
    limit: int | None = None
    overwrite: bool = False
    overrides: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """By side (``train``, ``val``) the file and what became of its rows."""

    sides: Mapping[str, tuple[Path, Transcripts]]
    lines: Sequence[str]
    simulated: bool


async def make_transcripts(
    making: Making, progress: Callable[[str, int], Callable[[], None]]
) -> Made:
    """Write ``sft_train``, ``sft_val`` and ``trained_on.json``; a call that was cut off goes on.
    Raises UserError, ServerDown where nobody replies."""
    found = load_rows(making.rows, making.seed)
    limit = making.limit
    found = replace(found, train=found.train[:limit], held_out=found.held_out[:limit])
    if making.by == "label":
        sides = {side: labelled(rows, _words(making)) for side, rows in _sides(found).items()}
    else:
        sides = await _thought(making, found, progress)
    made: dict[str, tuple[Path, Transcripts]] = {}
    for side, done in sides.items():
        path = making.out / f"sft_{side}.{making.kept_as}"
        write_training_file(path, "sft", [_written(row) for row in done.rows])
        made[side] = path, done
    said = trained_on(found, making.rows)
    (said | (TrainedOn.read(making.out) or TrainedOn())).write(making.out)
    return Made(made, found.lines, making.judge == SIMULATED)


def _sides(found: JudgingRows[JudgedRow]) -> dict[str, Sequence[JudgedRow]]:
    return {"train": found.train, "val": found.held_out}


def _words(making: Making) -> FrameWording:
    return wording_of(making.rows.wording)


async def _thought(
    making: Making,
    found: JudgingRows[JudgedRow],
    progress: Callable[[str, int], Callable[[], None]],
) -> dict[str, Transcripts]:
    """By side, with what was tried kept beside the transcripts."""
    if making.judge is None:
        raise UserError("--judge: name who is asked, or give --by label")
    config = _configured(making)
    made: dict[str, Transcripts] = {}
    async with _thinker(making, making.judge, config) as think:
        ledger = RowJournal(
            journal_path(making.out / "transcripts.json"),
            _about(making, found, config),
            making.overwrite,
        )
        try:
            kept = Kept(_done(ledger), lambda id, tried: ledger.put(id, asdict(tried)))
            for side, rows in _sides(found).items():
                tell = progress(side, len(rows))
                for _ in {row.id for row in rows} & kept.done.keys():
                    tell()
                made[side] = await transcribe(
                    rows,
                    think,
                    _words(making),
                    making.tries,
                    making.seed,
                    config.llm.max_concurrency,
                    kept,
                    tell,
                )
        finally:
            ledger.close()
    return made


def _configured(making: Making) -> JudgeServerConfig:
    named = [f'judge.model="{making.judge}"', "judge.panel=[]"]
    return load_judge_server(making.config, [*named, *making.overrides])


def _about(
    making: Making, found: JudgingRows[JudgedRow], config: JudgeServerConfig
) -> dict[str, Any]:
    """What decides on the transcripts."""
    asked = {name: getattr(making, name) for name in ("judge", "by", "tries", "temperature")}
    asked |= {name: getattr(making, name) for name in ("max_tokens", "seed", "limit")}
    words = _words(making).model_dump()
    house = fingerprint(config.judge) if making.by == "judge" else None
    return {**asked, "rows": found.digest, "wording": words, "house": house}


def _done(ledger: RowJournal) -> dict[str, Tried]:
    try:
        return {id: Tried(said["thought"], tuple(said["ends"])) for id, said in ledger.kept.items()}
    except (KeyError, TypeError) as error:
        raise RunError(f"{ledger.path}: cannot be read ({error}); --overwrite") from None


def _written(row: SftRow) -> dict[str, Any]:
    messages = [{"role": turn.role, "content": turn.content} for turn in row.messages]
    return {"id": row.id, "source": row.source, "messages": messages}


@asynccontextmanager
async def _thinker(making: Making, judge: str, config: JudgeServerConfig) -> AsyncIterator[Thinker]:
    if making.by == "model" and judge == SIMULATED:
        raise UserError(
            "--judge simulated: the embedded server knows the prompts of the house's judges only; "
            "use --by judge"
        )
    async with open_models([judge], config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was written")
        model = models.clients[judge].as_role("judge")
        if making.by == "model":
            yield by_model(_ask(model, making), _words(making))
            return
        alone = {"panel": (), "quorum": 1, "cache_size": 0, "breaker_threshold": 0}
        section = config.judge.model_copy(
            update={**alone, "second_reading": False, "both_orders": False}
        )
        thinkers = {
            way: by_judge(build_judge(section.model_copy(update={"ask": way}), model))
            for way in ("pairwise", "pointwise")
        }

        async def think(row: JudgedRow, seed: int) -> str:
            return await thinkers["pairwise" if isinstance(row, Pair) else "pointwise"](row, seed)

        yield think


def _ask(model: ChatModel, making: Making) -> Ask:
    async def ask(messages: Sequence[Message], seed: int) -> str:
        reply = await model.chat(
            ChatRequest(
                messages,
                temperature=making.temperature,
                max_tokens=making.max_tokens,
                seed=seed % 2**31,
            )
        )
        if reply.reasoning and not reply.text.lstrip().startswith("<think>"):
            return f"<think>{reply.reasoning}</think>{reply.text}"
        return reply.text

    return ask
