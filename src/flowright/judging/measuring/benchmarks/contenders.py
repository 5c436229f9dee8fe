"""Who is measured: one interface for every judge, the two baselines, and several judges as one.

A judge that rates answers one by one needs :meth:`Contender.rate` alone. No model is asked here.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from flowright.data.preferences import Pair, Preferred, Turn
from flowright.judging.measuring.benchmarks.calibration import Calibration
from flowright.judging.measuring.benchmarks.outcomes import (
    Choice,
    Games,
    Outcome,
    Rating,
    Status,
    games_of_ratings,
)

Conversation = tuple[Turn, ...]


class Contender(ABC):
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


class Length(Contender):
    """Prefers the longer answer, in characters: what any judge should beat."""

    name = "length"

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        return Rating(float(len(answer)))


class Chance(Contender):
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


class Several(Contender):
    """Several judges as one: each is asked, and those with a verdict vote game by game. Without a
    majority it is a tie. Fewer than ``quorum`` verdicts are none: failed where a member failed."""

    def __init__(self, members: Sequence[Contender], quorum: int = 1) -> None:
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
        return Rating(fmean(scores) if status == "ok" else None, status, *_told(said))

    async def choose(self, conversation: Conversation, answers: Sequence[str], key: str) -> Choice:
        """The place named most often, of equals the one that an earlier member named."""
        said = await asyncio.gather(*(m.choose(conversation, answers, key) for m in self._members))
        votes = Counter(choice.place for choice in said if choice.place is not None)
        status = self._status([choice.status for choice in said])
        return Choice(votes.most_common(1)[0][0] if status == "ok" else None, status, *_told(said))

    def _vote(self, said: Sequence[Outcome]) -> Outcome:
        status = self._status([outcome.status for outcome in said])
        if status != "ok":
            return Outcome(None, status, None, *_told(said))
        votes: Counter[Preferred] = Counter(o.preferred for o in said if o.preferred is not None)
        (side, most), *others = votes.most_common()
        if others and others[0][1] == most:
            return Outcome("tie", "ok", None, *_told(said))
        return Outcome(side, "ok", None, *_told(said))

    def _status(self, statuses: Sequence[Status]) -> Status:
        if statuses.count("ok") >= self._quorum:
            return "ok"
        return "failed" if "failed" in statuses else "unreadable"


def _told(said: Sequence[Outcome | Rating | Choice]) -> tuple[str, tuple[str, ...]]:
    reason = "; ".join(each.reason for each in said if each.reason)
    return reason, tuple(reply for each in said for reply in each.replies)
