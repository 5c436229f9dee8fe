"""Scripted chat models for the judge's tests: stand-ins for a server, with the fault named."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowright.config.judge import JudgeSection
from flowright.core.errors import FailureError, Reason
from flowright.judging.llm_judge import Questions
from flowright.judging.prompts import Question
from flowright.judging.verdict import JudgeQuery
from flowright.llm.chat import ChatReply, ChatRequest, Usage

Step = ChatReply | Exception


def question(query: JudgeQuery, **section: object) -> Question:
    """What a judge is asked about a query, the first question where there are several."""
    return Questions(JudgeSection.model_validate(section)).about(query)[0]


def reply(text: str, finish_reason: str = "stop", tokens: int = 10, seconds: float = 0.0) -> Step:
    return ChatReply(text, finish_reason, Usage(1, 100, tokens), "scripted", seconds)


def unavailable(message: str = "no reply") -> Step:
    return FailureError(Reason.LLM_UNAVAILABLE, message)


RIGHT = '{"reason": "Both are 4.", "verdict": true}'
WRONG = '{"reason": "6 is not 4.", "verdict": false}'


def in_form(request: ChatRequest, correct: bool) -> str:
    """What an obedient judge answers to a request, whatever its form."""
    if request.response_format is None:
        return f"So it is.\nVerdict: {correct}"
    return RIGHT if correct else WRONG


@dataclass
class ScriptedModel:
    """Plays one step a call, the last one for ever; a step may be a function of the request."""

    steps: Sequence[Step | Callable[[ChatRequest], Step]]
    name: str = "scripted"
    requests: list[ChatRequest] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        step = self.steps[min(len(self.requests), len(self.steps) - 1)]
        self.requests.append(request)
        self.deadlines.append(deadline)
        outcome = step(request) if callable(step) else step
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@dataclass
class FaultyModel:
    """Answers rightly except for seeded shares of empty replies and of errors without a reply.
    The draw depends on the request's seed, as with a real server: a new seed is a new draw."""

    correct: bool
    empty: float
    error: float
    name: str = "faulty"
    calls: int = 0

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.calls += 1
        draw = random.Random(request.seed).random()
        if draw < self.error:
            raise FailureError(Reason.LLM_UNAVAILABLE, "HTTP 500")
        text = "" if draw < self.error + self.empty else in_form(request, self.correct)
        return ChatReply(text, "stop", Usage(1, 100, len(text)), self.name, 0.0)


@dataclass
class HangingModel:
    """Says nothing for the first ``hangs`` calls, until their deadline, as the client does."""

    hangs: int
    name: str = "hanging"
    deadlines: list[float] = field(default_factory=list)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        assert deadline is not None
        self.deadlines.append(deadline)
        if len(self.deadlines) <= self.hangs:
            ends = time.monotonic() + deadline
            while (left := ends - time.monotonic()) > 0:  # a timer may fire a millisecond early
                await asyncio.sleep(left)
            raise FailureError(Reason.LLM_UNAVAILABLE, f"no reply within {deadline:g} s")
        return ChatReply(in_form(request, True), "stop", Usage(1, 1, 1), self.name, 0.0)
