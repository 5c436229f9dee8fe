"""What a judge said: of a pair in each of its two orders, of one answer, of several at once.

Nothing is asked and nothing counted here. A judge that failed has said nothing, which is neither a
wrong choice nor an unreadable one (law 1).
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any, Literal, Self, get_args

from flowright.data.preferences import PREFERRED, SWAPPED, Pair, Preferred, Turn
from flowright.judging.trained.calibration import Calibration

Status = Literal["ok", "unreadable", "failed"]
"""``unreadable``: the judge was up and gave no verdict that counts. ``failed``: it was down."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One game: the better of two answers, ``preferred`` in the pair's own terms whatever the order
    in which they were shown; None unless ``status`` is ok. ``scores`` are the two answers', where
    the judge has any, higher being better. ``replies`` are as they came."""

    preferred: Preferred | None
    status: Status = "ok"
    scores: tuple[float, float] | None = None
    reason: str = ""
    replies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.preferred in PREFERRED) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} with {self.preferred!r}")

    def turned(self) -> "Outcome":
        """What was said of the swapped pair, in the terms of the pair."""
        back = None if self.preferred is None else SWAPPED[self.preferred]
        scores = None if self.scores is None else self.scores[::-1]
        return replace(self, preferred=back, scores=scores)


@dataclass(frozen=True, slots=True)
class Games:
    """A pair judged twice: ``straight`` as it stands, ``swapped`` with its second answer shown
    first. Both outcomes are in the terms of the pair as it stands."""

    straight: Outcome
    swapped: Outcome

    @property
    def both(self) -> tuple[Outcome, Outcome]:
        return self.straight, self.swapped

    @property
    def failed(self) -> bool:
        """Whether a game could not be played: the pair is unscored."""
        return any(game.status == "failed" for game in self.both)

    def to_json(self) -> dict[str, Any]:
        return {"straight": plain(self.straight), "swapped": plain(self.swapped)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what :meth:`to_json` did not write."""
        return cls(_outcome(row["straight"]), _outcome(row["swapped"]))


@dataclass(frozen=True, slots=True)
class Rating:
    """What one answer is worth by itself; ``score`` is None unless ``status`` is ok."""

    score: float | None
    status: Status = "ok"
    reason: str = ""
    replies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.score is not None) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} with {self.score!r}")


@dataclass(frozen=True, slots=True)
class Choice:
    """The best of several answers by its place among those shown, from 0; None unless ok."""

    place: int | None
    status: Status = "ok"
    reason: str = ""
    replies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.place is not None) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} with {self.place!r}")


def worst(statuses: Sequence[Status]) -> Status:
    """Of several that only count together."""
    return max(statuses, key=get_args(Status).index)


def games_of_ratings(first: Rating, second: Rating) -> Games:
    """Both games of a judge that rates each answer by itself: the order cannot matter, and equal
    ratings are a tie."""
    replies = (*first.replies, *second.replies)
    reason = "; ".join(filter(None, (first.reason, second.reason)))
    if first.score is None or second.score is None:
        outcome = Outcome(None, worst((first.status, second.status)), None, reason, replies)
        return Games(outcome, outcome)
    above = first.score - second.score
    preferred: Preferred = "tie" if above == 0 else "first" if above > 0 else "second"
    outcome = Outcome(preferred, "ok", (first.score, second.score), reason, replies)
    return Games(outcome, outcome)


def plain(said: Outcome | Rating | Choice) -> dict[str, Any]:
    """As JSON; what is empty is left out."""
    told = {field.name: getattr(said, field.name) for field in fields(said)}
    return {name: value for name, value in told.items() if value not in (None, "", ())}


def rating_of(row: Mapping[str, Any]) -> Rating:
    """What :func:`plain` made of a rating. Raises KeyError, TypeError or ValueError."""
    return Rating(row.get("score"), row["status"], *_told(row))


def choice_of(row: Mapping[str, Any]) -> Choice:
    """As :func:`rating_of`, of a choice."""
    return Choice(row.get("place"), row["status"], *_told(row))


def _outcome(row: Mapping[str, Any]) -> Outcome:
    scores = row.get("scores")
    pair = None if scores is None else (float(scores[0]), float(scores[1]))
    return Outcome(row.get("preferred"), row["status"], pair, *_told(row))


def _told(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    return row.get("reason", ""), tuple(row.get("replies", ()))


Conversation = tuple[Turn, ...]


class MeasuredJudge(ABC):
    """A judge that is measured. Its methods do not raise for a failing backend: that is an outcome
    whose status says so. ``key`` names what is asked, so that draws can be derived from it.

    ``chooses``: whether it can be shown several answers at once. ``simulated``: whether what it
    says is the embedded server's. ``calibration``: of one whose ratings are Bradley-Terry scores.
    """

    name: str
    chooses: bool = False
    simulated: bool = False
    calibration: Calibration | None = None

    async def compare(self, pair: Pair) -> Games:
        """Which of two answers is better, asked in both orders; here by their ratings."""
        key = key_of(pair)
        first, second = await asyncio.gather(
            self.rate(pair.conversation, pair.first, key),
            self.rate(pair.conversation, pair.second, key),
        )
        return games_of_ratings(first, second)

    @abstractmethod
    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        """What one answer is worth."""

    async def choose(self, conversation: Conversation, answers: Sequence[str], key: str) -> Choice:
        """The best of several answers, in the order in which they are shown. Raises
        NotImplementedError unless it ``chooses``."""
        raise NotImplementedError(f"{self.name} rates answers one by one")


def key_of(pair: Pair) -> str:
    """A pair's name among all sources."""
    return f"{pair.source}/{pair.id}"


class LengthJudge(MeasuredJudge):
    """Prefers the longer answer, in characters: what any judge should beat."""

    name = "length"

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        return Rating(float(len(answer)))


class RandomJudge(MeasuredJudge):
    """Tosses a coin for each game, seeded by the pair's name: what no judge should lose to."""

    name = "random"
    chooses = True

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    async def compare(self, pair: Pair) -> Games:
        return Games(self._toss(key_of(pair), "straight"), self._toss(key_of(pair), "swapped"))

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        return Rating(self._draw(key, answer).random())

    async def choose(self, conversation: Conversation, answers: Sequence[str], key: str) -> Choice:
        return Choice(self._draw(key, "choice").randrange(len(answers)))

    def _toss(self, key: str, game: str) -> Outcome:
        is_first = self._draw(key, game).random() < 0.5
        return Outcome("first") if is_first else Outcome("second")

    def _draw(self, key: str, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{key}/{what}".encode("utf-8", "replace"))


class PanelJudge(MeasuredJudge):
    """Several judges as one: each is asked, and those with a verdict vote game by game. Without a
    majority it is a tie. Fewer than ``quorum`` verdicts are none: failed where a member failed."""

    def __init__(self, members: Sequence[MeasuredJudge], quorum: int = 1) -> None:
        self.name = " + ".join(member.name for member in members)
        self.chooses = all(member.chooses for member in members)
        self.simulated = any(member.simulated for member in members)
        self._members = members
        self._quorum = quorum

    async def compare(self, pair: Pair) -> Games:
        played = await asyncio.gather(*(member.compare(pair) for member in self._members))
        return Games(
            self._vote([games.straight for games in played]),
            self._vote([games.swapped for games in played]),
        )

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        """The mean of the members' ratings."""
        said = await asyncio.gather(*(m.rate(conversation, answer, key) for m in self._members))
        scores = [rating.score for rating in said if rating.score is not None]
        status = self._status([rating.status for rating in said])
        return Rating(fmean(scores) if status == "ok" else None, status, *_joined(said))

    async def choose(self, conversation: Conversation, answers: Sequence[str], key: str) -> Choice:
        """The place named most often, of equals the one that an earlier member named."""
        said = await asyncio.gather(*(m.choose(conversation, answers, key) for m in self._members))
        votes = Counter(choice.place for choice in said if choice.place is not None)
        status = self._status([choice.status for choice in said])
        return Choice(
            votes.most_common(1)[0][0] if status == "ok" else None, status, *_joined(said)
        )

    def _vote(self, said: Sequence[Outcome]) -> Outcome:
        status = self._status([outcome.status for outcome in said])
        if status != "ok":
            return Outcome(None, status, None, *_joined(said))
        votes: Counter[Preferred] = Counter(o.preferred for o in said if o.preferred is not None)
        (side, most), *others = votes.most_common()
        if others and others[0][1] == most:
            return Outcome("tie", "ok", None, *_joined(said))
        return Outcome(side, "ok", None, *_joined(said))

    def _status(self, statuses: Sequence[Status]) -> Status:
        if statuses.count("ok") >= self._quorum:
            return "ok"
        return "failed" if "failed" in statuses else "unreadable"


def _joined(said: Sequence[Outcome | Rating | Choice]) -> tuple[str, tuple[str, ...]]:
    reason = "; ".join(each.reason for each in said if each.reason)
    return reason, tuple(reply for each in said for reply in each.replies)
