"""The interface of a measured judge, its results, the two baselines, and a panel of judges.

A result of a judge that failed is neither a wrong choice nor an unreadable one (law 1).
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal, TypeVar, get_args

from pydantic import TypeAdapter

from flowright.data.task import PREFERRED, SWAPPED, Pair, Preferred
from flowright.judging.trained.calibration import Calibration
from flowright.llm.chat import Message

T = TypeVar("T")
Status = Literal["ok", "unreadable", "failed"]
"""``unreadable``: the judge was up and gave no usable verdict. ``failed``: it was down."""


@dataclass(frozen=True, slots=True)
class GameOutcome:
    """One game: the better of two answers, ``preferred`` by their place in the pair, whatever the
    order in which they were shown; None unless ``status`` is ok. ``scores`` of the two answers are
    optional, higher being better. ``replies`` are raw."""

    preferred: Preferred | None = None
    status: Status = "ok"
    scores: tuple[float, float] | None = None
    reason: str = ""
    replies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.preferred in PREFERRED) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} with {self.preferred!r}")

    def turned(self) -> "GameOutcome":
        """Return an outcome of the swapped pair as one of the pair."""
        back = None if self.preferred is None else SWAPPED[self.preferred]
        scores = None if self.scores is None else self.scores[::-1]
        return replace(self, preferred=back, scores=scores)


@dataclass(frozen=True, slots=True)
class Games:
    """A pair judged twice: ``straight`` in its own order, ``swapped`` with its second answer shown
    first. Both outcomes are those of the unswapped pair. ``rated``: the answers were rated one by
    one, so both are equal."""

    straight: GameOutcome
    swapped: GameOutcome
    rated: bool = False

    @property
    def both(self) -> tuple[GameOutcome, GameOutcome]:
        return self.straight, self.swapped

    @property
    def failed(self) -> bool:
        """True if a game failed: the pair is unscored."""
        return any(game.status == "failed" for game in self.both)

    @property
    def why(self) -> str:
        return next((game.reason for game in self.both if game.status == "failed"), "")


@dataclass(frozen=True, slots=True)
class Rating:
    """The score of a single answer, None unless ``status`` is ok."""

    score: float | None = None
    status: Status = "ok"
    reason: str = ""
    replies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.score is not None) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} with {self.score!r}")


@dataclass(frozen=True, slots=True)
class AnswerChoice:
    """The best of several answers by its place among those shown, from 0; None unless ``status`` is
    ok."""

    place: int | None = None
    status: Status = "ok"
    reason: str = ""
    replies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.place is not None) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} with {self.place!r}")


def worst(statuses: Sequence[Status]) -> Status:
    """Return the worst of several statuses."""
    return max(statuses, key=get_args(Status).index)


def games_of_ratings(first: Rating, second: Rating) -> Games:
    """Return both games of a judge that rates single answers: order is irrelevant, and equal
    ratings are a tie."""
    replies = (*first.replies, *second.replies)
    reason = "; ".join(filter(None, (first.reason, second.reason)))
    if first.score is None or second.score is None:
        outcome = GameOutcome(None, worst((first.status, second.status)), None, reason, replies)
        return Games(outcome, outcome, rated=True)
    above = first.score - second.score
    preferred: Preferred = "tie" if above == 0 else "first" if above > 0 else "second"
    outcome = GameOutcome(preferred, "ok", (first.score, second.score), reason, replies)
    return Games(outcome, outcome, rated=True)


def to_row(result: Any) -> dict[str, Any]:
    """Convert a result to JSON without empty fields."""
    return asdict(
        result,
        dict_factory=lambda items: {
            k: v for k, v in items if v is not False and v not in (None, "", ())
        },
    )


def from_row(kind: type[T], row: Mapping[str, Any]) -> T:
    """Read a result that :func:`to_row` wrote. Raises ValueError."""
    return TypeAdapter(kind).validate_python(row)


Conversation = tuple[Message, ...]


class MeasuredJudge(ABC):
    """A judge that is measured; one that rates answers one by one implements :meth:`rate` alone.

    Methods do not raise for a failing backend: the result has status ``failed``. ``key`` identifies
    the question and seeds draws. ``chooses``: can be shown several answers at once. ``simulated``:
    the embedded server. ``calibration``: for ratings that are Bradley-Terry scores.
    """

    name: str
    chooses: bool = False
    simulated: bool = False
    calibration: Calibration | None = None

    async def compare(self, pair: Pair) -> Games:
        """Compare two answers in both orders; by default by their ratings."""
        key = key_of(pair)
        first, second = await asyncio.gather(
            self.rate(pair.conversation, pair.first, key),
            self.rate(pair.conversation, pair.second, key),
        )
        return games_of_ratings(first, second)

    @abstractmethod
    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        """Rate an answer."""

    async def choose(
        self, conversation: Conversation, answers: Sequence[str], key: str
    ) -> AnswerChoice:
        """Choose the best of several answers. Raises NotImplementedError unless it ``chooses``."""
        raise NotImplementedError(f"{self.name} rates answers one by one")


def key_of(pair: Pair) -> str:
    """Return the key of a pair, unique among all sources."""
    return f"{pair.source}/{pair.id}"


class LengthJudge(MeasuredJudge):
    """Prefers the longer answer, in characters."""

    name = "length"

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        return Rating(float(len(answer)))


class RandomJudge(MeasuredJudge):
    """Tosses a coin for each game, seeded by the pair's key."""

    name = "random"
    chooses = True

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    async def compare(self, pair: Pair) -> Games:
        return Games(self._toss(key_of(pair), "straight"), self._toss(key_of(pair), "swapped"))

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        return Rating(self._draw(key, answer).random())

    async def choose(
        self, conversation: Conversation, answers: Sequence[str], key: str
    ) -> AnswerChoice:
        return AnswerChoice(self._draw(key, "choice").randrange(len(answers)))

    def _toss(self, key: str, game: str) -> GameOutcome:
        is_first = self._draw(key, game).random() < 0.5
        return GameOutcome("first") if is_first else GameOutcome("second")

    def _draw(self, key: str, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{key}/{what}".encode("utf-8", "replace"))


class PanelJudge(MeasuredJudge):
    """Several judges that vote game by game; without a majority it is a tie. With fewer than
    ``quorum`` verdicts there is none: failed if a member failed, else unreadable."""

    def __init__(self, members: Sequence[MeasuredJudge], quorum: int = 1) -> None:
        self.name = " + ".join(member.name for member in members)
        self.chooses = all(member.chooses for member in members)
        self.simulated = any(member.simulated for member in members)
        self._members = members
        self._quorum = quorum

    async def compare(self, pair: Pair) -> Games:
        played = await asyncio.gather(*(member.compare(pair) for member in self._members))
        return Games(
            vote([games.straight for games in played], self._quorum),
            vote([games.swapped for games in played], self._quorum),
            rated=all(games.rated for games in played),
        )

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        """Return the mean of the members' ratings."""
        results = await asyncio.gather(*(m.rate(conversation, answer, key) for m in self._members))
        scores = [rating.score for rating in results if rating.score is not None]
        status = _common_status([rating.status for rating in results], self._quorum)
        return Rating(fmean(scores) if status == "ok" else None, status, *_joined(results))

    async def choose(
        self, conversation: Conversation, answers: Sequence[str], key: str
    ) -> AnswerChoice:
        """Return the place chosen most often, of equals that of the earliest member."""
        results = await asyncio.gather(
            *(m.choose(conversation, answers, key) for m in self._members)
        )
        votes = Counter(choice.place for choice in results if choice.place is not None)
        status = _common_status([choice.status for choice in results], self._quorum)
        return AnswerChoice(
            votes.most_common(1)[0][0] if status == "ok" else None, status, *_joined(results)
        )


def vote(results: Sequence[GameOutcome], quorum: int = 1) -> GameOutcome:
    """Return the majority of games of one pair and order; without one it is a tie."""
    status = _common_status([outcome.status for outcome in results], quorum)
    if status != "ok":
        return GameOutcome(None, status, None, *_joined(results))
    votes: Counter[Preferred] = Counter(o.preferred for o in results if o.preferred is not None)
    (side, most), *others = votes.most_common()
    if others and others[0][1] == most:
        return GameOutcome("tie", "ok", None, *_joined(results))
    return GameOutcome(side, "ok", None, *_joined(results))


def _common_status(statuses: Sequence[Status], quorum: int) -> Status:
    if statuses.count("ok") >= quorum:
        return "ok"
    return "failed" if "failed" in statuses else "unreadable"


def _joined(results: Sequence[GameOutcome | Rating | AnswerChoice]) -> tuple[str, tuple[str, ...]]:
    reason = "; ".join(each.reason for each in results if each.reason)
    return reason, tuple(reply for each in results for reply in each.replies)
