"""Answers of a model at OpenAI-compatible servers, asked by the house's client."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from flowright.config.llm import LlmSection, ModelEntry
from flowright.core.errors import ConfigError, FailureError
from flowright.evaluation.responses.asking import Answer, Drawing, Missing, ModelDown, Tell, in_turn
from flowright.evaluation.responses.questions import Question
from flowright.llm.chat import ChatModel, ChatRequest, RequestRefused, ServerMisconfigured

_PATIENCE = 20  # failures in a row after which a model counts as down
_STREAMS_ONLY = "dashscope.aliyuncs.com/compatible-mode"
KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY", "DASHSCOPE_API_KEY")


class ServedModel:
    """A model that is asked over HTTP; ``concurrency`` requests are under way at once, one for each
    sample. With temperature 0 no seed is sent, which some servers refuse."""

    def __init__(self, client: ChatModel, served: str, drawing: Drawing, concurrency: int) -> None:
        self._client = client
        self._served = served
        self._drawing = drawing
        self._concurrency = concurrency
        self.name = client.name

    @property
    def about(self) -> Mapping[str, Any]:
        return {"model": self.name, "served": self._served}

    async def ask(self, wanted: Mapping[Question, Sequence[int]], tell: Tell) -> None:
        samples = [(question, i) for question, numbers in wanted.items() for i in numbers]
        failures, was_reached = 0, False

        async def work(sample: tuple[Question, int]) -> None:
            nonlocal failures, was_reached
            try:
                answer = await self._one(*sample)
            except ServerMisconfigured as error:
                raise ModelDown(str(error), "mend that; what was said is kept") from None
            except FailureError as error:
                refused = isinstance(error, RequestRefused)
                tell(*sample, Missing("refused" if refused else "without a reply"))
                failures += not (refused and was_reached)
                if failures >= min(_PATIENCE, len(samples)):
                    raise ModelDown(*self._down(failures, error)) from None
            else:
                failures, was_reached = 0, True
                tell(*sample, answer)

        await in_turn(samples, self._concurrency, work)

    async def _one(self, question: Question, number: int) -> Answer:
        how = self._drawing
        reply = await self._client.chat(
            ChatRequest(
                question.messages,
                temperature=how.temperature,
                top_p=how.top_p,
                top_k=how.top_k or None,
                max_tokens=how.max_tokens,
                seed=_seed(how.seed, question.place, number) if how.temperature else None,
            )
        )
        return Answer(reply.text, reply.finish_reason, reply.usage.completion_tokens)

    def _down(self, failures: int, error: FailureError) -> tuple[str, str]:
        mend = "what was said is kept; once the server answers, the same command goes on"
        if isinstance(error, RequestRefused) and self._drawing.top_k:
            mend = "where it does not know top_k, say --top-k -1; what was said is kept"
        return f"{failures} requests in a row failed: {error}", mend


def _seed(*parts: int) -> int:
    """Below 2**31: not every server takes a longer one."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def entry_of_environment(model: str | None = None) -> ModelEntry | None:
    """The servers that VLLM_BASE_URL names, several with commas; VLLM_MODEL, VLLM_API_KEY (or
    OPENAI_API_KEY, DASHSCOPE_API_KEY; several with commas) and VLLM_MAX_TOKENS belong to it. None
    where it is not set. Raises ConfigError."""
    urls = _listed("VLLM_BASE_URL")
    if not urls:
        return None
    name = model or os.environ.get("VLLM_MODEL", "").strip()
    if not name:
        raise ConfigError("VLLM_BASE_URL: VLLM_MODEL says which model its servers serve; set it")
    keys = next((keys for variable in KEYS if (keys := _listed(variable))), ("sk-none",))
    streams = any(_STREAMS_ONLY in url for url in urls)
    return ModelEntry(base_url=urls, api_key=keys, model_name=name, stream=streams)


def section_of_environment(section: LlmSection) -> LlmSection:
    """With VLLM_TIMEOUT, seconds of one attempt. Raises ConfigError."""
    given = os.environ.get("VLLM_TIMEOUT", "").strip()
    if not given:
        return section
    try:
        seconds = float(given)
        if not 0 < seconds < 1e6:
            raise ValueError
    except ValueError:
        raise ConfigError(f"VLLM_TIMEOUT={given}: seconds above 0") from None
    longest = max(seconds, section.deadline_seconds)
    return section.model_copy(update={"request_seconds": seconds, "deadline_seconds": longest})


def _listed(variable: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in os.environ.get(variable, "").split(",") if one.strip())
