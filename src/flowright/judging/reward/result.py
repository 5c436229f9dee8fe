"""What an answer was found to be worth, as a dict and as an object. It decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowright.core.errors import UserError
from flowright.judging.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A reward with where it comes from. ``score`` is in [0, 1], or None where the judge failed and
    nothing else decided (law 1).

    Can be added, averaged (``numpy.mean``) and formatted like the number that it holds; one without
    a score cannot: that raises UserError, since any number would be an invention.
    """

    score: float | None
    source: str | None
    status: str
    explanation: str
    detailed_scores: Mapping[str, float]
    request_id: str | None
    judge: str
    latency: float

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "RewardResult":
        """Of what :meth:`JudgeRewardSystem.reward` returns."""
        names = cls.__slots__
        return cls(told["reward"], **{name: told[name] for name in names if name != "score"})

    @property
    def reward(self) -> float | None:
        """The score under the name that :meth:`JudgeRewardSystem.reward` gives it."""
        return self.score

    def __float__(self) -> float:
        if self.score is None:
            raise UserError(
                f"no score ({self.status}: {self.explanation}); leave out results whose score is "
                "None"
            )
        return self.score

    def __add__(self, other: object) -> float:
        if isinstance(other, RewardResult | int | float):
            return float(self) + float(other)
        return NotImplemented

    __radd__ = __add__

    def __truediv__(self, other: object) -> float:
        if isinstance(other, RewardResult | int | float):
            return float(self) / float(other)
        return NotImplemented

    def __format__(self, form: str) -> str:
        return format(float(self), form) if form else str(self)


def told_of(verdict: Verdict, request_id: str | None, seconds: float) -> dict[str, Any]:
    """A verdict as :meth:`JudgeRewardSystem.reward` tells it, which took so long."""
    parts = dict(verdict.parts)
    return {
        "reward": verdict.score,
        "source": verdict.source,
        "status": verdict.status,
        "explanation": verdict.reason,
        "parts": parts,
        "detailed_scores": dict(parts),
        "request_id": request_id,
        "judge": verdict.judge,
        "latency": seconds,
    }


def lost(why: str, status: str = "unavailable", request_id: str | None = None) -> dict[str, Any]:
    """What is told of a request that never got to a judge, or back."""
    nobody = Verdict(None, None, "llm", "unavailable", why)
    return {**told_of(nobody, request_id, 0.0), "source": None, "status": status}
