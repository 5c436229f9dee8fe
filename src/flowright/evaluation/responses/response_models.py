"""Models that answer the prompts of a file: the interface, models at OpenAI-compatible servers, and
opening the model that a command line names. Models in this process:
:mod:`flowright.evaluation.responses.local_model`.
"""

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flowright.config.llm import LlmSection, ModelEntry
from flowright.config.loading import load_entries
from flowright.core.batch_calls import Outcome, ServerDown, call_all
from flowright.core.errors import ConfigError, FailureError, UserError
from flowright.llm.chat import ChatModel, ChatRequest, Message, RequestRefused, ServerMisconfigured
from flowright.llm.client import ChatClient
from flowright.llm.context import WithControl
from flowright.policy.base_models import model_id

_REMEDY = "replies are kept; the same command continues once the server answers"
_STREAM = {"true": True, "1": True, "false": False, "0": False}
KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY", "DASHSCOPE_API_KEY")


@dataclass(frozen=True, slots=True)
class ResponseQuestion:
    """``place`` is the row's in its file, from 0. Draws and seeds depend on it, and not on the
    number of rows."""

    place: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """Sampling of answers: ``temperature`` 0 is greedy, ``top_k`` 0 draws from all tokens,
    ``samples`` are drawn of each question."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 4096
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with its thinking, possibly empty. ``finish`` is "stop", or "length" for a truncated
    one; ``tokens`` are the model's."""

    text: str
    finish: str
    tokens: int


@dataclass(frozen=True, slots=True)
class MissingAnswer:
    """A failed sample and its reason; the next call asks it again. ``outcome`` is that of its
    request."""

    why: str
    outcome: Outcome = "neutral"
    message: str = ""


ReportSample = Callable[[ResponseQuestion, int, Answer | MissingAnswer], None]
"""Called with a question, a sample's number and its result, from any thread."""


class AnsweringModel(Protocol):
    """A model that answers. ``about`` is JSON: the settings that its answers depend on."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> Mapping[str, Any]: ...

    async def ask(
        self, wanted: Mapping[ResponseQuestion, Sequence[int]], report: ReportSample
    ) -> None:
        """Answer these samples of these questions; ``report`` gets each as it ends. Raises
        ServerDown."""
        ...


class ServedModel:
    """A model behind HTTP, with a request for each sample. With temperature 0 no seed is sent,
    which some servers refuse."""

    def __init__(
        self, client: ChatModel, served: str, settings: DrawSettings, concurrency: int
    ) -> None:
        self._client = WithControl(client)
        self._served = served
        self._settings = settings
        self._concurrency = concurrency
        self.name = client.name

    @property
    def about(self) -> Mapping[str, Any]:
        # A server's own weights are out of sight, unless its model is a folder here.
        weights = model_id(self._served) if Path(self._served).is_dir() else None
        return {"model": self.name, "served": self._served, "weights": weights}

    async def ask(
        self, wanted: Mapping[ResponseQuestion, Sequence[int]], report: ReportSample
    ) -> None:
        samples = [(question, i) for question, numbers in wanted.items() for i in numbers]
        answered, refused = False, False

        async def ask(sample: tuple[ResponseQuestion, int]) -> Answer | MissingAnswer:
            nonlocal answered, refused
            try:
                answer = await self._one(*sample)
            except ServerMisconfigured as error:
                raise ServerDown(str(error), "correct that; replies are kept") from None
            except RequestRefused as error:
                # A server that refuses everything is misconfigured; after an answer it is the text.
                refused = True
                return MissingAnswer("refused", "neutral" if answered else "down", str(error))
            except FailureError as error:
                return MissingAnswer("without a reply", "down", str(error))
            answered = True
            return answer

        try:
            await call_all(
                ((sample, sample) for sample in samples),
                ask,
                concurrency=self._concurrency,
                outcome=lambda one: one.outcome if isinstance(one, MissingAnswer) else "reached",
                why=lambda one: one.message if isinstance(one, MissingAnswer) else "",
                keep=lambda sample, result: report(*sample, result),
                name=f"model {self.name!r}",
                remedy=_REMEDY,
            )
        except ServerDown as error:
            if refused and not answered and self._settings.top_k:
                hint = "a server that does not know top_k needs --top-k -1; replies are kept"
                raise ServerDown(error.problems[0], hint) from None
            raise

    async def _one(self, question: ResponseQuestion, number: int) -> Answer:
        settings = self._settings
        reply = await self._client.chat(
            ChatRequest(
                question.messages,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k or None,
                max_tokens=settings.max_tokens,
                seed=_seed(settings.seed, question.place, number) if settings.temperature else None,
            )
        )
        return Answer(reply.text, reply.finish_reason, reply.usage.completion_tokens)


def _seed(*parts: int) -> int:
    """A seed below 2**31: not every server takes a longer one."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as the command line names it: ``model``, a folder or name, is loaded in this process;
    ``server`` is a name of ``llm_file``; without either the environment names servers."""

    model: str | None = None
    server: str | None = None
    llm_file: Path = Path("config/aflow_llm.yaml")
    dtype: str | None = None
    max_model_len: int | None = None
    batch_size: int = 8
    chat_template: bool = True


@asynccontextmanager
async def open_model(named: ModelName, settings: DrawSettings) -> AsyncIterator[AnsweringModel]:
    """Open a model. Raises UserError, ServerDown."""
    if named.model is not None and named.server is not None:
        raise UserError("--model is loaded here, --server answers elsewhere; give one of them")
    if named.model is not None:
        # Imported late: torch takes seconds.
        from flowright.evaluation.responses.local_model import LocalModel, open_local

        policy = open_local(named.model, named.dtype)
        yield LocalModel(
            policy, settings, named.batch_size, named.max_model_len, named.chat_template
        )
        return
    if not named.chat_template:
        raise UserError("--no-chat-template: a server applies its own; it is for --model")
    section = section_of_environment(LlmSection(file=named.llm_file))
    name, entry = _entry(named)
    client = ChatClient(name, entry, section)
    try:
        if problems := await client.check({"--max-tokens": settings.max_tokens}):
            raise ServerDown(*problems, "nothing was asked")
        yield ServedModel(client, entry.model_name, settings, client.concurrency)
    finally:
        await client.aclose()


def _entry(named: ModelName) -> tuple[str, ModelEntry]:
    if named.server is not None:
        return named.server, load_entries(named.llm_file, [named.server])[named.server]
    entry = entry_of_environment()
    if entry is None:
        raise UserError(
            "no model: --model FOLDER loads a model here, --server NAME is one of "
            f"{named.llm_file}, VLLM_BASE_URL and VLLM_MODEL name servers"
        )
    return entry.model_name, entry


def entry_of_environment(model: str | None = None) -> ModelEntry | None:
    """Return the servers of VLLM_BASE_URL (several with commas), None if it is not set. VLLM_MODEL,
    VLLM_API_KEY (or OPENAI_API_KEY, DASHSCOPE_API_KEY; several with commas), VLLM_STREAM and
    VLLM_MAX_TOKENS belong to it. Raises ConfigError."""
    urls = _listed("VLLM_BASE_URL")
    if not urls:
        return None
    name = model or os.environ.get("VLLM_MODEL", "").strip()
    if not name:
        raise ConfigError("VLLM_BASE_URL: set VLLM_MODEL to the model that its servers serve")
    keys = next((keys for variable in KEYS if (keys := _listed(variable))), ("sk-none",))
    stream = _STREAM.get(os.environ.get("VLLM_STREAM", "").strip().lower())
    return ModelEntry(base_url=urls, api_key=keys, model_name=name, stream=stream)


def section_of_environment(section: LlmSection) -> LlmSection:
    """Return the section with VLLM_TIMEOUT, the seconds of one attempt. Raises ConfigError."""
    value = os.environ.get("VLLM_TIMEOUT", "").strip()
    if not value:
        return section
    try:
        seconds = float(value)
        if not 0 < seconds < 1e6:
            raise ValueError
    except ValueError:
        raise ConfigError(f"VLLM_TIMEOUT={value}: seconds above 0") from None
    longest = max(seconds, section.deadline_seconds)
    return section.model_copy(update={"request_seconds": seconds, "deadline_seconds": longest})


def _listed(variable: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in os.environ.get(variable, "").split(",") if one.strip())
