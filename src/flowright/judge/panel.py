"""Several judges as one: each is asked, those that failed leave the vote.

Members of one family share their mistakes, and a judge of the policy's own family prefers its
style; :func:`families` is for the warnings about that.
"""

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flowright.judge.verdict import Judge, JudgeQuery, Status, Verdict
from flowright.llm.chat import Usage

Combine = Literal["majority", "mean", "median"]


class Panel:
    """Asks all ``members`` at the same time and combines what they say.

    ``majority``: the share of (weighted) votes for right, which is the score; ``mean``: the
    weighted mean of the scores; ``median``: their median, weights aside. Above a half is right,
    below is wrong, and a half exactly is an abstention, or between two answers a tie. Fewer than
    ``quorum`` members with a verdict make none: the status is then the commonest among the
    failures. Nor is there one where the confidence, the share of (weighted) votes on the winning
    side, is below ``min_confidence``: the panel abstains. ``members`` of the verdict are the
    single ones.

    Raises ValueError for no members, weights that are not one positive number a member, or a
    quorum that they cannot reach.
    """

    def __init__(
        self,
        members: Sequence[Judge],
        combine: Combine = "majority",
        quorum: int = 1,
        weights: Sequence[float] | None = None,
        min_confidence: float = 0.0,
    ) -> None:
        weights = [1.0] * len(members) if weights is None else list(weights)
        if not members or len(weights) != len(members) or min(weights) <= 0:
            raise ValueError(f"{len(members)} members with the weights {weights}")
        if not 1 <= quorum <= len(members):
            raise ValueError(f"a quorum of {quorum} with {len(members)} members")
        self._members = tuple(members)
        self._combine: Combine = combine
        self._quorum = quorum
        self._weights = tuple(weights)
        self._min_confidence = min_confidence

    @property
    def name(self) -> str:
        counted = Counter(member.name for member in self._members)
        names = ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counted.items())
        return names if len(counted) == 1 else f"panel({names})"

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        verdicts = await asyncio.gather(*(member.judge(query) for member in self._members))
        said = "; ".join(
            f"{v.judge or member.name}: {_told(v)}"
            for v, member in zip(verdicts, self._members, strict=True)
        )
        votes = [
            _Vote(v.score, 0.5 if v.correct is None else float(v.correct), weight)
            for v, weight in zip(verdicts, self._weights, strict=True)
            if v.score is not None
        ]
        score: float | None = None
        status: Status = "abstain"
        if len(votes) < self._quorum:
            failed = Counter[Status](v.status for v in verdicts if v.status != "ok")
            status = failed.most_common(1)[0][0]
            reason = f"{len(votes)} of {len(verdicts)} members, {self._quorum} needed ({said})"
        elif (confidence := _confidence(votes)) < self._min_confidence:
            reason = f"{confidence:.0%} agree, {self._min_confidence:.0%} needed ({said})"
        else:
            score = self._score(votes)
            reason = f"{'a tie' if score == 0.5 else f'{score:.2f}'} ({said})"
        if score == 0.5 and query.rival is None:
            score = None
        return Verdict(
            score=score,
            correct=None if score is None or score == 0.5 else score > 0.5,
            source="llm",
            status=status if score is None else "ok",
            reason=reason,
            attempts=sum(v.attempts for v in verdicts),
            judge=self.name,
            usage=sum((v.usage for v in verdicts), Usage()),
            seconds=time.monotonic() - began,
            members=tuple(verdicts),
        )

    def _score(self, votes: Sequence["_Vote"]) -> float:
        if self._combine == "median":
            return statistics.median(vote.score for vote in votes)
        said = [v.right if self._combine == "majority" else v.score for v in votes]
        return _mean(said, votes)


@dataclass(frozen=True, slots=True)
class _Vote:
    """``right``: 1 for right, 0 for wrong, a half for a tie."""

    score: float
    right: float
    weight: float


def _mean(values: Sequence[float], votes: Sequence[_Vote]) -> float:
    total = sum(vote.weight for vote in votes)
    return sum(v * vote.weight for v, vote in zip(values, votes, strict=True)) / total


def _confidence(votes: Sequence[_Vote]) -> float:
    right = _mean([vote.right for vote in votes], votes)
    return max(right, 1 - right)


def _told(verdict: Verdict) -> str:
    return verdict.status if verdict.score is None else f"{verdict.score:g}"


def disagreement(verdict: Verdict) -> float | None:
    """The share of a panel's scored members that say otherwise than most of them (0 to a half);
    None where fewer than two have a verdict."""
    said = [member.correct for member in verdict.members if member.correct is not None]
    if len(said) < 2:
        return None
    return min(said.count(True), said.count(False)) / len(said)


# In the names of models as their makers and repacks write them.
_FAMILIES = (
    "qwen", "llama", "mistral", "mixtral", "gemma", "phi", "deepseek", "gpt", "claude", "gemini",
    "glm", "internlm", "yi", "kimi", "olmo", "granite", "command-r", "simulated",
)  # fmt: skip


def families(model: str) -> frozenset[str]:
    """The families that a model's name or path tells: two for a distilled one."""
    name = model.rstrip("/").rpartition("/")[2].casefold()
    found = {f for f in _FAMILIES if re.search(rf"(?<![a-z]){re.escape(f)}(?![a-z])", name)}
    return frozenset("mistral" if family == "mixtral" else family for family in found)
