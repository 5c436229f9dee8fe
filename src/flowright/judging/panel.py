"""Panel of judges: all are asked, and members that fail leave the vote."""

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowright.config.judge import COMBINE
from flowright.judging.verdict import DOWN, Judge, JudgeQuery, Status, Verdict
from flowright.llm.chat import Usage


@dataclass(frozen=True, slots=True)
class Vote:
    """A member's ``score``, and ``right``: 1 for right, 0 for wrong, 0.5 for a tie."""

    score: float
    right: float
    weight: float


Combine = Callable[[Sequence[Vote]], float]
"""Combination of one or more votes into a score in [0, 1]."""

COMBINATIONS = COMBINE.table({name: f"flowright.judging.panel:{name}" for name in COMBINE})


def majority(votes: Sequence[Vote]) -> float:
    """Return the (weighted) share of votes for right."""
    return sum(vote.right * vote.weight for vote in votes) / sum(vote.weight for vote in votes)


def mean(votes: Sequence[Vote]) -> float:
    """Return the (weighted) mean of the scores."""
    return sum(vote.score * vote.weight for vote in votes) / sum(vote.weight for vote in votes)


def median(votes: Sequence[Vote]) -> float:
    """Return the median of the scores; weights are ignored."""
    return statistics.median(vote.score for vote in votes)


@dataclass(eq=False)
class Panel:
    """Asks all ``members`` concurrently and combines their verdicts.

    ``combine`` is a choice of ``judge.combine``; without ``weights`` all votes are equal. Above 0.5
    is right, below is wrong; exactly 0.5 is an abstention or, between two answers, a tie. There is
    no verdict with fewer than ``quorum`` scored members: the status is then the most common
    failure, among those that are down if too few others are left, otherwise among the others. Nor
    is there one if the confidence, the share of (weighted) votes on the winning side, is below
    ``min_confidence``: the panel abstains, or has the status of a member that is down, whose vote
    might have decided. ``members`` of the verdict are the single ones.

    Raises ValueError for no members, weights that are not one positive number a member, or a
    quorum that cannot be reached; ConfigError for a ``combine`` that cannot be imported.
    """

    members: Sequence[Judge]
    combine: str = "majority"
    quorum: int = 1
    weights: Sequence[float] = ()
    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.members)
        self.weights = self.weights or [1.0] * count
        if not count or len(self.weights) != count or min(self.weights) <= 0:
            raise ValueError(f"{count} members with the weights {self.weights}")
        if not 1 <= self.quorum <= count:
            raise ValueError(f"a quorum of {self.quorum} with {count} members")
        self._combined: Combine = COMBINATIONS.load(self.combine)

    @property
    def name(self) -> str:
        counted = Counter(member.name for member in self.members)
        names = ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counted.items())
        return names if len(counted) == 1 else f"panel({names})"

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        verdicts = await asyncio.gather(*(member.judge(query) for member in self.members))
        return self.combined(query, verdicts, began)

    def combined(self, query: JudgeQuery, verdicts: Sequence[Verdict], began: float) -> Verdict:
        """Combine the members' verdicts, or those of fewer members whose weights are equal."""
        each = "; ".join(
            f"{v.judge or member.name}: {v.status if v.score is None else f'{v.score:g}'}"
            for v, member in zip(verdicts, self.members, strict=False)
        )
        votes = [
            Vote(v.score, 0.5 if v.correct is None else float(v.correct), weight)
            for v, weight in zip(verdicts, self.weights, strict=False)
            if v.score is not None
        ]
        down: list[Status] = [v.status for v in verdicts if v.status in DOWN]
        score: float | None = None
        status: Status = down[0] if down else "abstain"
        if len(votes) < self.quorum:
            # Members that are down explain it only if too few are left without them.
            failed: list[Status] = [v.status for v in verdicts if v.status not in ("ok", *DOWN)]
            enough = len(verdicts) - len(down) >= self.quorum
            status = Counter[Status](failed if enough else down).most_common(1)[0][0]
            reason = f"{len(votes)} of {len(verdicts)} members, {self.quorum} needed ({each})"
        elif (confidence := max(majority(votes), 1 - majority(votes))) < self.min_confidence:
            reason = f"{confidence:.0%} agree, {self.min_confidence:.0%} needed ({each})"
        else:
            score = self._combined(votes)
            if not 0 <= score <= 1:
                raise ValueError(f"judge.combine gives {score}, not a score from 0 to 1")
            reason = f"{'a tie' if score == 0.5 else f'{score:.2f}'} ({each})"
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


def disagreement(verdict: Verdict) -> float | None:
    """Return the share of a panel's scored members in the minority (0 to 0.5); None if fewer than
    two have a verdict."""
    votes = [member.correct for member in verdict.members if member.correct is not None]
    if len(votes) < 2:
        return None
    return min(votes.count(True), votes.count(False)) / len(votes)


# As in the names of models and of their repacks.
_FAMILIES = (
    "qwen", "llama", "mistral", "mixtral", "gemma", "phi", "deepseek", "gpt", "claude", "gemini",
    "glm", "internlm", "yi", "kimi", "olmo", "granite", "command-r", "simulated",
)  # fmt: skip


def families(model: str) -> frozenset[str]:
    """Return the families in a model's name or path: two for a distilled one. Judges of one family
    share mistakes, and a judge of the policy's own family prefers its style."""
    name = model.rstrip("/").rpartition("/")[2].casefold()
    found = {f for f in _FAMILIES if re.search(rf"(?<![a-z]){re.escape(f)}(?![a-z])", name)}
    return frozenset("mistral" if family == "mixtral" else family for family in found)
