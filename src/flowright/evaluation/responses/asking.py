"""Asking a model all that is missing, and keeping what it says as it comes."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flowright.core.errors import RunError, UserError
from flowright.evaluation.responses.questions import Question
from flowright.judging.measuring.benchmark_rows import RowJournal

T = TypeVar("T")
Progress = Callable[[int, int], Callable[[], None]]
"""Given how many are done already and how many there are, something to call as each comes."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How answers are drawn: ``temperature`` 0 is greedy; ``top_k`` 0 draws from all tokens;
    ``samples`` are drawn of each question."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 4096
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, thinking included. ``text`` may be empty: an answer that says nothing is
    one. ``finish`` is "stop", or "length" where it was cut; ``tokens`` are the model's."""

    text: str
    finish: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A sample that has no answer, and why: a failure, which the next call asks again."""

    why: str


Tell = Callable[[Question, int, Answer | Missing], None]
"""Called with a question, a sample's number, and what came of it. From any thread."""


class AnsweringModel(Protocol):
    """Who answers. ``about`` is JSON: all that its answers depend on beside the question."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> Mapping[str, Any]: ...

    async def ask(self, wanted: Mapping[Question, Sequence[int]], tell: Tell) -> None:
        """Answer these samples of these questions, each told as it ends. Raises ModelDown where
        nothing more can be had."""
        ...


class ModelDown(UserError):
    """The model does not answer any more; what it said is kept."""

    exit_code = 1


async def in_turn(
    items: Collection[T], concurrency: int, work: Callable[[T], Awaitable[None]]
) -> None:
    """Work on every item, so many at once. Raises the first ModelDown, and stops the others."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(items))):
                group.create_task(worker())
    except* ModelDown as several:
        raise several.exceptions[0] from None


Rows = Sequence[tuple[Answer | None, ...]]
"""The answers of each question, None for a sample that has none."""


@dataclass(frozen=True, slots=True)
class Answered:
    """``answers`` by question, one for each sample, None where it is missing; ``missing`` says why,
    by reason how many; ``earlier`` of them were there before, ``tokens`` are those of the others.
    """

    answers: Rows
    missing: Mapping[str, int]
    earlier: int
    tokens: int

    @property
    def flat(self) -> Iterator[Answer]:
        return (one for row in self.answers for one in row if one is not None)


def key_of(question: Question, sample: int) -> str:
    return f"{question.place}/{sample}"


def kept_answers(ledger: RowJournal, questions: Sequence[Question], samples: int) -> Rows:
    """What the ledger has. Raises RunError where it cannot be read."""
    try:
        return [
            tuple(
                Answer(**ledger.kept[key]) if (key := key_of(question, i)) in ledger.kept else None
                for i in range(samples)
            )
            for question in questions
        ]
    except TypeError as error:
        raise RunError(
            f"{ledger.path}: what was said cannot be read ({error}); --overwrite starts again"
        ) from None


async def ask_missing(
    model: AnsweringModel,
    questions: Sequence[Question],
    samples: int,
    ledger: RowJournal,
    progress: Callable[[], None] = lambda: None,
) -> Answered:
    """All answers. What the ledger has is not asked again; a failure is not kept in it.
    ``progress`` is called for each sample that is told. Raises ModelDown and RunError (a full
    disk)."""
    before = kept_answers(ledger, questions, samples)
    wanted = {
        question: [i for i, answer in enumerate(row) if answer is None]
        for question, row in zip(questions, before, strict=True)
        if None in row
    }
    missing: dict[str, int] = {}
    tokens = 0

    def tell(question: Question, sample: int, said: Answer | Missing) -> None:
        nonlocal tokens
        if isinstance(said, Missing):
            missing[said.why] = missing.get(said.why, 0) + 1
        else:
            row = {"text": said.text, "finish": said.finish, "tokens": said.tokens}
            ledger.put(key_of(question, sample), row)
            tokens += said.tokens
        progress()

    if wanted:
        await model.ask(wanted, tell)
    earlier = sum(answer is not None for row in before for answer in row)
    return Answered(kept_answers(ledger, questions, samples), missing, earlier, tokens)
