"""From a file of prompts to a file with responses. ``scripts/generate_responses.py`` is its command
line."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import UserError
from flowright.core.files import check_writable
from flowright.evaluation.responses.asking import (
    Answered,
    Drawing,
    Progress,
    Rows,
    ask_missing,
    kept_answers,
)
from flowright.evaluation.responses.opening import Named, open_model
from flowright.evaluation.responses.questions import Question, read_questions
from flowright.evaluation.responses.responses import check_column, write_responses
from flowright.judging.measuring.benchmark_rows import RowJournal
from flowright.llm.chat import LENGTH_STOPS
from flowright.runs.checkpoints import sha256_of

CHOICE = "give another file to write, or --overwrite to start again"


@dataclass(frozen=True, slots=True)
class Generation:
    """What the command line asks for."""

    named: Named
    drawing: Drawing
    data: Path
    out: Path
    prompt_key: str = "prompt"
    response_key: str = "responses"
    start: int = 0
    limit: int | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Generated:
    """What became of it, and the seconds that it took."""

    found: Answered
    seconds: float

    def lines(self) -> list[str]:
        rows, answers = self.found.answers, [*self.found.flat]
        samples = sum(map(len, rows))
        cut = sum(answer.finish in LENGTH_STOPS for answer in answers)
        told = [
            f"{len(answers):,} of {samples:,} responses to {len(rows):,} prompts; "
            f"{cut:,} of them were cut at --max-tokens"
        ]
        if new := len(answers) - self.found.earlier:
            rate = self.found.tokens / self.seconds
            told.append(
                f"{new:,} are new: {self.found.tokens:,} tokens in {self.seconds:.0f} s, "
                f"{rate:.0f} a second"
            )
        if absent := samples - len(answers):
            whys = ", ".join(f"{n:,} {why}" for why, n in self.found.missing.items())
            told.append(f"{absent:,} are missing (null): {whys}; the same command asks again")
        return told


def ledger_of(out: Path) -> Path:
    """Where answers are kept as they come, beside the file that is made of them."""
    return out.with_name(f"{out.stem}.answers.jsonl")


async def answers_of(
    named: Named,
    drawing: Drawing,
    questions: Sequence[Question],
    about: Mapping[str, Any],
    out: Path,
    overwrite: bool,
    write: Callable[[Rows], None],
    progress: Progress,
) -> Generated:
    """Ask for what is missing. ``about`` is what answers depend on beside the model and how it is
    drawn from: answers to something else are never mixed with these. ``write`` is called with all
    there is, also where this is interrupted. Raises UserError."""
    check_writable(out.parent)
    how = asdict(drawing)
    del how["samples"]  # a call with more of them goes on
    async with open_model(named, drawing) as model:
        told = {**about, **model.about, "drawing": how}
        with closing(RowJournal(ledger_of(out), told, overwrite, CHOICE)) as ledger:
            there = sum(
                answer is not None
                for row in kept_answers(ledger, questions, drawing.samples)
                for answer in row
            )
            tell = progress(there, len(questions) * drawing.samples)
            began = time.monotonic()
            try:
                found = await ask_missing(model, questions, drawing.samples, ledger, tell)
            finally:
                write(kept_answers(ledger, questions, drawing.samples))
            return Generated(found, time.monotonic() - began)


async def generate(asked: Generation, progress: Progress) -> Generated:
    """Ask for what is missing, and write the file, which has all the rows whatever happens. Raises
    UserError."""
    if asked.out.suffix != ".parquet":
        raise UserError(f"--output-path {asked.out}: a .parquet file is written; name it so")
    table, questions = read_questions(asked.data, asked.prompt_key, asked.start, asked.limit)
    check_column(table, asked.response_key)

    def write(rows: Rows) -> None:
        texts = [[None if one is None else one.text for one in row] for row in rows]
        write_responses(table, asked.response_key, texts, asked.out)

    about = {"data": sha256_of(asked.data), "prompt_key": asked.prompt_key}
    return await answers_of(
        asked.named,
        asked.drawing,
        questions,
        about,
        asked.out,
        asked.overwrite,
        write,
        progress,
    )
