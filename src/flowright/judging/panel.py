"""Panel of judges, of which members that fail leave the vote; and a meta judge, by whose ratings
samples of one judge leave it (Liu et al. 2025, arXiv 2504.02495)."""

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flowright.config.judge import COMBINE, JudgeSection
from flowright.judging.attempts import QuestionResult, RetryingAsker
from flowright.judging.llm_judge import shown_answer, task_blocks
from flowright.judging.prompts import Block, Question
from flowright.judging.schemas import GRADE, TOP_GRADE, Field
from flowright.judging.verdict import DOWN, Judge, JudgeQuery, Status, Verdict
from flowright.llm.chat import ChatModel, Usage


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


META, LEFT_OUT, META_FAILED = "meta", "left out", "meta_failed"
"""Parts of a verdict: the rating of a sample; 1 for a sample without a vote; 1 where the meta judge
failed and all voted."""

_GRADE = Field("grade", GRADE, tagged=True)
_SYSTEM = (
    "You check the judgement of another grader. You do not judge the answer anew: you rate how "
    "sound the judgement is."
)
_INSTRUCTION = (
    "What grade does the judgement deserve? It is a whole number. 4: its principles fit the "
    "problem, each statement about the answer is true, and the verdict follows; 3: nearly; 2: in "
    "part; 1: hardly; 0: it rests on what is false or does not matter."
)
_BOTH_ORDERS = (
    ' Two answers were compared in two orders: after "answer first" A and B are as shown here, '
    'after "rival first" the other way round.'
)


class MetaJudge:
    """Rates judgements with a model."""

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self.name = model.name
        self._section = section
        self._asker = RetryingAsker(model, section)

    async def rate(self, query: JudgeQuery, verdict: Verdict, number: int) -> QuestionResult:
        """Rate the reasoning of one sample; ``number`` is its place."""
        answer = shown_answer(query.answer, self._section)
        if query.rival is None:
            answers = [Block("FINAL ANSWER", answer)]
            found, instruction = "right" if verdict.correct else "wrong", _INSTRUCTION
        else:
            rival = shown_answer(query.rival, self._section)
            answers = [Block("ANSWER A", answer), Block("ANSWER B", rival)]
            sides = {True: "A is better", False: "B is better", None: "a tie"}
            found, instruction = sides[verdict.correct], _INSTRUCTION + _BOTH_ORDERS
        judgement = Block("JUDGEMENT", f"Verdict: {found}\n{verdict.reason}")
        blocks = (*task_blocks(query), *answers, judgement)
        question = Question(blocks, (_GRADE,), "meta", _SYSTEM, instruction)
        return await self._asker.ask(question, f"{query.key}/meta {number}")


@dataclass(eq=False, kw_only=True)
class BestSamples(Panel):
    """Samples of one judge, of which only the ``keep`` that ``meta`` rates highest vote; of equal
    ones the earlier.

    If a rating fails, all samples vote, and the verdict has the part :data:`META_FAILED`. With no
    more verdicts than ``keep`` there are no ratings. ``members`` of the verdict are all samples,
    with the parts :data:`META` and :data:`LEFT_OUT`.
    """

    meta: MetaJudge
    keep: int

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        verdicts = await asyncio.gather(*(member.judge(query) for member in self.members))
        places = [place for place, verdict in enumerate(verdicts) if verdict.score is not None]
        if len(places) <= self.keep:
            return self.combined(query, verdicts, began)
        rated = await asyncio.gather(*(self.meta.rate(query, verdicts[n], n) for n in places))
        failed = next((result for result in rated if result.status != "ok"), None)
        if failed is not None:
            note = f"the meta judge failed ({failed.status}: {failed.reason}), all samples vote: "
            parts, voting = {META_FAILED: 1.0}, verdicts
        else:
            grades = [int(result.values[_GRADE.key]) for result in rated]
            best = sorted(range(len(places)), key=lambda i: -grades[i])[: self.keep]
            kept = {places[i] for i in best}
            for place, grade in zip(places, grades, strict=True):
                verdicts[place] = _graded(verdicts[place], grade, place in kept)
            note = f"best {self.keep} of {len(places)} by the meta judge: "
            parts, voting = {}, [v for n, v in enumerate(verdicts) if n in kept or n not in places]
        verdict = self.combined(query, voting, began)
        return replace(
            verdict,
            reason=note + verdict.reason,
            attempts=sum(v.attempts for v in verdicts) + sum(r.attempts for r in rated),
            usage=sum((each.usage for each in (*verdicts, *rated)), Usage()),
            parts={**verdict.parts, **parts},
            members=tuple(verdicts),
            replies=tuple(reply for result in rated for reply in result.replies),
        )


def voting_samples(samples: Sequence[Verdict]) -> list[Verdict]:
    """Return the samples that a meta judge did not leave out."""
    return [sample for sample in samples if LEFT_OUT not in sample.parts]


def _graded(verdict: Verdict, grade: int, has_vote: bool) -> Verdict:
    parts = {META: grade / TOP_GRADE} | ({} if has_vote else {LEFT_OUT: 1.0})
    return replace(verdict, parts={**verdict.parts, **parts})
