"""Doubles for the judges' benchmarks: pairs, and contenders whose verdicts are known by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowright.data.task import Pair, Preferred
from flowright.judging.measuring.measured_judges import (
    AnswerChoice,
    Conversation,
    GameOutcome,
    Games,
    MeasuredJudge,
    Rating,
)
from flowright.judging.measuring.pair_figures import Judged
from flowright.llm.chat import Message


def pair(name: str, label: Preferred = "first", category: str = "", **more: object) -> Pair:
    asked = (Message("user", str(more.pop("question", f"Question {name}?"))),)
    return Pair(name, "mine", asked, f"one {name}", f"another {name}", label, category, **more)  # pyright: ignore[reportArgumentType]


def outcome(said: Preferred | None) -> GameOutcome:
    return GameOutcome(said) if said else GameOutcome(None, "unreadable", reason="no verdict")


def judged(of: Pair, straight: Preferred | None, swapped: Preferred | None) -> Judged:
    return Judged(of, Games(outcome(straight), outcome(swapped)))


@dataclass
class Rater(MeasuredJudge):
    """Rates answers by a table, or by a function of the answer; None is a failing server."""

    ratings: Callable[[str], float | None]
    name: str = "rater"
    asked: list[str] = field(default_factory=list)

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        self.asked.append(key)
        score = self.ratings(answer)
        return Rating(None, "failed", "no reply") if score is None else Rating(score)


@dataclass
class Chooser(Rater):
    """Names the answer that is ``best``; nothing readable where it is not shown."""

    best: str = ""
    chooses: bool = True

    async def choose(
        self, conversation: Conversation, answers: Sequence[str], key: str
    ) -> AnswerChoice:
        if self.best not in answers:
            return AnswerChoice(None, "unreadable", "none of them")
        return AnswerChoice(list(answers).index(self.best))
