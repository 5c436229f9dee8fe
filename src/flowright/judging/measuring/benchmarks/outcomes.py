"""What a judge said: of a pair in each of its two orders, of one answer, of several at once.

Nothing is asked and nothing counted here. A judge that failed has said nothing, which is neither a
wrong choice nor an unreadable one (law 1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

from flowright.data.preferences import PREFERRED, SWAPPED, Preferred

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
