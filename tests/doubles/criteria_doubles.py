"""A judge that reads criteria: one is met where the answer holds the word that it quotes."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowright.core.errors import FailureError, Reason
from flowright.criteria.rubrics.rows import Item, RubricRow
from flowright.data.task import Conversation
from flowright.llm.chat import ChatReply, ChatRequest, Message, Usage

ASKED: Conversation = (Message("system", "Name fruit."), Message("user", "Which?"))
_BLOCK = re.compile(r"^(~{5,}) ([^\n]+)\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)


def says(word: str, points: float = 1.0) -> Item:
    return Item(f"It says `{word}`.", points)


def rubric(*items: Item, id: str = "file:1") -> RubricRow:
    return RubricRow(ASKED, items, "fruit", "", id)


def blocks_of(content: str) -> Mapping[str, str]:
    """What a prompt shows, by title."""
    return {title: text for _, title, text in _BLOCK.findall(content)}


def verdicts(content: str) -> dict[str, bool]:
    """Of every criterion in a prompt."""
    blocks = blocks_of(content)
    answer = blocks["FINAL ANSWER"]
    return {
        title.lower().replace(" ", "_"): all(
            word in answer for word in re.findall(r"`(\w+)`", text)
        )
        for title, text in blocks.items()
        if title.startswith("CRITERION ")
    }


def reply_to(content: str, response_format: Mapping[str, Any] | None) -> str:
    """An obedient reply, in the form that is asked for."""
    said = verdicts(content)
    if response_format is not None:
        return json.dumps({"reason": "As it reads.", **said})
    return "\n".join(f"{key.replace('_', ' ').capitalize()}: {yes}" for key, yes in said.items())


@dataclass
class CriteriaModel:
    """Answers what it is asked, but for seeded shares of empty replies and of failures (drawn from
    the request's seed, so that a retry draws again), criteria numbers that its first reply to a key
    leaves out, and answers with a word of ``mutes``, to which it says nothing at all."""

    empty: float = 0.0
    lost: float = 0.0
    leaves_out: Sequence[int] = ()
    mutes: Sequence[str] = ()
    name: str = "criteria"
    requests: list[ChatRequest] = field(default_factory=list)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        first = not self.requests
        self.requests.append(request)
        draw = random.Random(request.seed).random()
        if draw < self.lost:
            raise FailureError(Reason.LLM_UNAVAILABLE, "HTTP 500")
        content = request.messages[-1].content
        answer = blocks_of(content)["FINAL ANSWER"]
        is_mute = any(word in answer for word in self.mutes)
        text = reply_to(content, request.response_format)
        if draw < self.lost + self.empty or is_mute:
            text = ""
        elif first and self.leaves_out:
            gone = {f"criterion_{number}" for number in self.leaves_out}
            text = json.dumps({k: v for k, v in json.loads(text).items() if k not in gone})
        return ChatReply(text, "stop", Usage(1, 100, 10), self.name, 0.0)
