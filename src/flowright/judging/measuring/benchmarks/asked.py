"""Judges of the house as contenders: a large model that compares, rates or chooses, and a judge
behind HTTP. Servers are opened by :mod:`flowright.judging.measuring.benchmarks.opening`.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Literal

from flowright.config.judge import WORDING, JudgeSection
from flowright.core.errors import UserError
from flowright.data.preferences import Pair, Preferred
from flowright.judging.attempts import RetryingAsker
from flowright.judging.build import build_judge
from flowright.judging.measuring.benchmarks.contenders import Contender, Conversation, key_of
from flowright.judging.measuring.benchmarks.outcomes import Choice, Games, Outcome, Rating, Status
from flowright.judging.payloads import prompt_text
from flowright.judging.prompts import WITHOUT_REFERENCE, Block, Question
from flowright.judging.schemas import WRAPPING, AnswerSchema, Field, Value, folded
from flowright.judging.verdict import Judge, JudgeQuery, Status as VerdictStatus, Verdict
from flowright.llm.chat import ChatModel

Way = Literal["pairwise", "score", "pointwise"]
"""How a model is asked about a pair: for the better one, or for a score (0 to 1) or a grade (0 to
4) of each."""

TOP_RATING = 10
LETTERS = "ABCD"
_NO_REPLY: frozenset[VerdictStatus] = frozenset({"timeout", "unavailable", "overloaded"})

_NUMBER = re.compile(r"\d{1,2}", re.ASCII)
_LETTER = re.compile(r"(?:answer |response )?\(?([a-d])\)?")


def _word(value: object) -> str:
    if not isinstance(value, str) or len(value) > 40:
        return ""
    return folded(value).strip(WRAPPING).rstrip(".").casefold()


def _read_rating(value: object) -> int | None:
    if isinstance(value, str) and _NUMBER.fullmatch(word := _word(value)):
        value = int(word)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value in range(1, TOP_RATING + 1) else None


def _read_letter(value: object) -> str | None:
    found = _LETTER.fullmatch(_word(value))
    return found[1].upper() if found else None


RATING = AnswerSchema(
    _read_rating,
    "a whole number from 1 to 10",
    {"type": "integer", "enum": list(range(1, TOP_RATING + 1))},
    TOP_RATING,
)
LETTER = AnswerSchema(_read_letter, "A|B|C|D", {"type": "string", "enum": list(LETTERS)})

_RATES = "You are the grader of one answer to one request. Rate it."
_RATE = (
    "How good is the final answer as a reply to the request? The rating is a whole number from 1 "
    "to 10. 10: it does all that is asked, and nothing in it is wrong; 1: it does nothing of it, "
    "or is wrong throughout."
)
_CHOOSES = "You compare four answers to one request. Decide which of them is the best one."
_CHOOSE = (
    "Which answer is best, A, B, C or D? An answer that is correct and does what the request asks "
    "is better than one that is not. Which of them stands first means nothing."
)


class ModelJudge(Contender):
    """A model, asked in one way. It compares in both orders at the same time, each with all of the
    section's attempts; what it does not do by the way it is asked (the ratings of RewardBench 2,
    the best of four) it does by a question of this module.

    ``section`` is one of :func:`measured_section`.
    """

    chooses = True

    def __init__(
        self, model: ChatModel, section: JudgeSection, way: Way, simulated: bool = False
    ) -> None:
        self.name, self.simulated = model.name, simulated
        self._way: Way = way
        self._judge: Judge = build_judge(section.model_copy(update={"ask": way}), model)
        self._asker = RetryingAsker(model, section)
        is_ours = section.wording in WORDING
        self._instruction = WITHOUT_REFERENCE.get(way, "") if is_ours else ""

    async def compare(self, pair: Pair) -> Games:
        if self._way != "pairwise":
            return await super().compare(pair)
        verdict = await self._judge.judge(_query(pair))
        members = verdict.members
        if len(members) != 2:  # the gate decided
            members = (verdict, verdict)
        straight, swapped = map(outcome_of, members)
        return Games(straight, swapped)

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        if self._way == "pairwise":
            blocks = (Block("REQUEST", shown(conversation)), Block("FINAL ANSWER", answer))
            rating = Field("rating", RATING, tagged=True)
            question = Question(blocks, (rating,), "", _RATES, _RATE)
            value, status, told = await self._asked(question, key)
            return Rating(None if value is None else float(value), status, *told)
        query = JudgeQuery(shown(conversation), answer, "", instruction=self._instruction, key=key)
        verdict = await self._judge.judge(query)
        return Rating(verdict.score, status_of(verdict.status), *_told(verdict))

    async def choose(self, conversation: Conversation, answers: Sequence[str], key: str) -> Choice:
        texts = zip(LETTERS, answers, strict=True)
        answered = (Block(f"ANSWER {letter}", text) for letter, text in texts)
        blocks = (Block("REQUEST", shown(conversation)), *answered)
        best = Field("best", LETTER, tagged=True)
        question = Question(blocks, (best,), "", _CHOOSES, _CHOOSE)
        value, status, told = await self._asked(question, key)
        return Choice(None if value is None else LETTERS.index(str(value)), status, *told)

    async def _asked(
        self, question: Question, key: str
    ) -> tuple[Value | None, Status, tuple[str, tuple[str, ...]]]:
        """The value of the question's one field, and what is told beside it."""
        result = await self._asker.ask(question, key)
        told = result.reason, tuple(reply.text for reply in result.replies)
        return result.values.get(question.fields[0].key), status_of(result.status), told


class ServiceJudge(Contender):
    """A judge behind HTTP. With ``pairwise`` each order is a request of its own; a service that
    asks in both orders itself gives the same answer to both."""

    def __init__(self, judge: Judge, way: Way, simulated: bool = False) -> None:
        self.name, self.simulated = judge.name, simulated
        self._judge, self._way = judge, way

    async def compare(self, pair: Pair) -> Games:
        if self._way != "pairwise":
            return await super().compare(pair)
        straight, swapped = await asyncio.gather(
            self._judge.judge(_query(pair)),
            self._judge.judge(_query(pair.swapped(), "/swapped")),
        )
        return Games(outcome_of(straight), outcome_of(swapped).turned())

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        verdict = await self._judge.judge(JudgeQuery(shown(conversation), answer, "", key=key))
        return Rating(verdict.score, status_of(verdict.status), *_told(verdict))


def measured_section(section: JudgeSection) -> JudgeSection:
    """A section as it is measured: one model's own verdicts, asked anew each time. Raises UserError
    for what would hide them."""
    problems = []
    if section.mode != "judge":
        problems.append(f"judge.mode: {section.mode}: rules need references; set judge.mode=judge")
    if section.samples != 1:
        problems.append("judge.samples: the verdicts of single calls are measured; set it to 1")
    if section.weights or section.combine != "majority" or section.min_confidence:
        problems.append(
            "judge.weights, judge.combine, judge.min_confidence: members of a panel count alike "
            "and vote by majority here; leave them out"
        )
    if problems:
        raise UserError(*problems)
    return section.model_copy(
        update={
            "panel": (),
            "quorum": 1,
            "both_orders": True,
            "cache_size": 0,
            "breaker_threshold": 0,
            "second_reading": False,
        }
    )


def shown(conversation: Conversation) -> str:
    """A conversation as a judge sees it: the one message, or every turn in a fence of its own."""
    return prompt_text([{"role": turn.role, "content": turn.content} for turn in conversation])


def outcome_of(verdict: Verdict) -> Outcome:
    """A verdict on an answer and its rival, in the terms of the pair that they are."""
    if verdict.score is None:
        return Outcome(None, status_of(verdict.status), None, *_told(verdict))
    preferred: Preferred = "tie" if verdict.score == 0.5 else "second"
    preferred = "first" if verdict.score > 0.5 else preferred
    return Outcome(preferred, "ok", None, *_told(verdict))


def status_of(status: VerdictStatus) -> Status:
    """What a verdict's status means here: a judge that is up and does not say is unreadable."""
    if status == "ok":
        return "ok"
    return "failed" if status in _NO_REPLY else "unreadable"


def _query(pair: Pair, order: str = "") -> JudgeQuery:
    key = f"{key_of(pair)}{order}"
    return JudgeQuery(shown(pair.conversation), pair.first, "", rival=pair.second, key=key)


def _told(verdict: Verdict) -> tuple[str, tuple[str, ...]]:
    return verdict.reason, tuple(reply.text for reply in verdict.replies)
