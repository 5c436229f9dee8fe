"""The requests to one vLLM server. Each gives what was asked for, or raises a RequestError that
says what to mend. What is asked, and what it proves, is :mod:`flowright.policy.vllm.server`'s.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from flowright.config.policy import MAX_LORA_RANKS, PolicySection
from flowright.llm.client import model_cards, openai_ends
from flowright.llm.transport import (
    Connection,
    RequestError,
    Response,
    message_of,
    misplaced,
    status_error,
)
from flowright.policy.sampling import Sampling

IMPOSSIBLE = -9000.0
"""vLLM writes -inf as -9999."""

# Where a request has none of these, vLLM takes those of the model's generation_config.json.
_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
}

LOAD_SECONDS = 120.0
"""Timeout of loading an adapter."""


class BadReply(Exception):
    """A 200 that cannot be used: another model's, cut short, or without what was asked for."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model. ``root`` is where it was loaded from; ``parent`` is set for an adapter."""

    name: str
    root: str | None
    parent: str | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A completion as :class:`flowright.policy.sampling.Sample` has it, without the text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


def draw_body(
    model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
) -> bytes:
    """The request for one completion; its draws depend on ``sampling.seed``."""
    return _body(
        model=model,
        prompt=list(prompt),
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        logprobs=0,  # of the token that was drawn
        return_token_ids=True,
        stop_token_ids=sorted(end_ids),
        skip_special_tokens=False,
        **_PLAIN | {"top_k": sampling.top_k},
    )


def score_body(model: str, token_ids: Sequence[int]) -> bytes:
    """The request for the log-probabilities of given tokens. vLLM computes them anew, past its
    prefix cache, and at temperature 1 whatever else is asked."""
    return _body(
        model=model,
        prompt=list(token_ids),
        max_tokens=1,
        temperature=1.0,
        top_p=1.0,
        prompt_logprobs=1,
        return_token_ids=True,
        **_PLAIN,
    )


def alternatives_body(model: str, prompt: Sequence[int], temperature: float) -> bytes:
    """The request for the likeliest next tokens with their log-probabilities."""
    return _body(
        model=model,
        prompt=list(prompt),
        max_tokens=1,
        temperature=temperature,
        top_p=1.0,
        seed=0,
        logprobs=5,
        return_tokens_as_token_ids=True,
        **_PLAIN,
    )


def read_drawn(
    content: bytes, model: str, prompt: Sequence[int], longest: int, end_ids: Collection[int]
) -> Drawn:
    """A completion that is whole, and ``model``'s. Raises BadReply."""
    choice = _choice(content, model)
    _same_prompt(choice, prompt)
    ids = _token_ids(choice)
    table = choice.get("logprobs")
    logprobs = table.get("token_logprobs") if isinstance(table, dict) else None
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        given = len(logprobs) if isinstance(logprobs, list) else "no"
        raise BadReply(f"{len(ids)} tokens with {given} log-probabilities")
    checked = tuple(_logprob(value) for value in logprobs)
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise BadReply(f"finish_reason {reason!r}")
    if ids and ids[-1] in end_ids:  # also where it is the last that was allowed
        return Drawn(ids, checked, "stop")
    if reason == "stop":
        raise BadReply("it stopped, but its last token is not one that ends a completion")
    if len(ids) != longest:
        raise BadReply(
            f"cut after {len(ids)} of {longest} tokens; a larger --max-model-len is needed"
        )
    return Drawn(ids, checked, "length")


def read_scores(content: bytes, model: str, token_ids: Sequence[int]) -> list[float]:
    """Log-probabilities of all tokens but the first, by ``model``. Raises BadReply."""
    choice = _choice(content, model)
    _same_prompt(choice, token_ids)
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(token_ids):
        raise BadReply("no prompt_logprobs, or not one for each token")
    found = []
    for token, row in zip(token_ids[1:], rows[1:], strict=True):
        entry = row.get(str(token)) if isinstance(row, dict) else None
        found.append(_logprob(entry.get("logprob") if isinstance(entry, dict) else None))
    return found


def read_alternatives(content: bytes, model: str) -> list[float]:
    """Log-probabilities of the likeliest next tokens, descending. Raises BadReply."""
    table = _choice(content, model).get("logprobs")
    rows = table.get("top_logprobs") if isinstance(table, dict) else None
    row = rows[0] if isinstance(rows, list) and rows else None
    if not isinstance(row, dict) or len(row) < 2:
        raise BadReply("no top_logprobs")
    return sorted((_logprob(value) for value in row.values()), reverse=True)


def read_models(content: bytes) -> dict[str, ModelCard]:
    """The served models by name. Raises BadReply."""
    rows = _json(content).get("data")
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "id" in r for r in rows):
        raise BadReply("not a list of models; is this an OpenAI-compatible server?")
    cards = (
        ModelCard(str(r["id"]), r.get("root"), r.get("parent"), r.get("max_model_len"))
        for r in rows
    )
    return {card.name: card for card in cards}


def _body(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise BadReply(f"not JSON: {content[:80].decode('utf-8', 'replace')!r}") from None
    if not isinstance(found, dict):
        raise BadReply("not a JSON object")
    return found


def _choice(content: bytes, model: str) -> Mapping[str, Any]:
    body = _json(content)
    if body.get("model") != model:
        raise BadReply(f"it is from model {body.get('model')!r}, not {model!r}")
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadReply("not exactly one choice")
    return choices[0]


def _same_prompt(choice: Mapping[str, Any], prompt: Sequence[int]) -> None:
    if choice.get("prompt_token_ids") is None:
        raise BadReply("no prompt_token_ids; it takes a vLLM of requirements-vllm.txt")
    if choice["prompt_token_ids"] != list(prompt):
        raise BadReply("the prompt that it answers is not the one that was sent")


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise BadReply("no token_ids; it takes a vLLM of requirements-vllm.txt")
    return tuple(ids)


def _logprob(value: object) -> float:
    """A logarithm of a probability; rounding may put that of a sure token slightly above 0."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadReply(f"a log-probability is {value!r}")
    if not IMPOSSIBLE < value < 1e-3:
        raise BadReply(f"a log-probability is {value:g}; --logprobs-mode gives logits?")
    return float(value)


T = TypeVar("T")

MEND = "policy.vllm"
NO_RUNTIME_LORA = (
    "takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
    "--enable-lora, as launch_vllm_safe.sh policy does"
)
FORGOTTEN, BAD_REPLY, NOT_SEEN = "forgotten", "bad reply", "not seen"
"""Kinds of failure: a server does not know the name of a model that it had, as after a restart; its
reply cannot be used; it finds no adapter in a folder."""


class Requests:
    """To the server at ``url``; for one event loop. ``lost`` is called where it may have been
    started anew: nothing that it had can be relied on."""

    def __init__(self, url: str, section: PolicySection, lost: Callable[[], None]) -> None:
        self._url = url
        self._vllm = section.vllm
        self._rank = section.lora.rank
        self._connection = Connection(url, section.vllm.no_proxy)
        self._lost = lost

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def draw(
        self, model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
    ) -> Drawn:
        """One completion."""
        return await self._complete(
            draw_body(model, prompt, sampling, end_ids),
            lambda c: read_drawn(c, model, prompt, sampling.max_new_tokens, end_ids),
            self._vllm.request_seconds,
        )

    async def score(self, model: str, token_ids: Sequence[int]) -> Tensor:
        """Log-probabilities of all tokens but the first, float64."""
        body = score_body(model, token_ids)
        found = await self._complete(body, lambda c: read_scores(c, model, token_ids))
        return torch.tensor(found, dtype=torch.float64)

    async def alternatives(
        self, model: str, prompt: Sequence[int], temperature: float
    ) -> list[float]:
        """See :func:`flowright.policy.vllm.requests.read_alternatives`."""
        body = alternatives_body(model, prompt, temperature)
        return await self._complete(body, lambda c: read_alternatives(c, model))

    async def models(self, seconds: float | None = None) -> dict[str, ModelCard]:
        """What is served, by name."""
        response = await self._ask("/models", None, seconds)
        if response.status == 404:
            key, ends = self._vllm.api_key, openai_ends(self._url)
            found = await misplaced(self._url, self._vllm.no_proxy, key, ends)
            if found is not None and model_cards(found[1]) is not None:
                told = f"{self._url} answered 404 to /models, and {found[0]} serves"
                mend = f"put {found[0]} into policy.vllm.base_urls"
                raise RequestError("http_404", f"{told}: {mend}", final=True)
        if response.status != 200:
            raise status_error(response, self._url, MEND)
        return self._read(response, read_models)

    async def takes_adapters(self) -> bool:
        """Whether they can be loaded while it runs: a request without a name loads nothing, only
        its status matters."""
        response = await self._post("/load_lora_adapter", lora_name="", lora_path="")
        return response.status not in (404, 405)

    async def load(self, name: str, path: Path) -> None:
        response = await self._post("/load_lora_adapter", lora_name=name, lora_path=str(path))
        if response.status != 200:
            raise _load_error(response, self._url, path, self._rank)

    async def unload(self, name: str) -> None:
        """One that will not go does no harm: nobody asks for its name again."""
        await self._post("/unload_lora_adapter", lora_name=name)

    async def _complete(
        self, body: bytes, read: Callable[[bytes], T], seconds: float | None = None
    ) -> T:
        response = await self._ask("/completions", body, seconds)
        if response.status == 404:
            self._lost()
            told = f"{self._url}: {message_of(response)}"
            raise RequestError(FORGOTTEN, told, blames_server=False)
        if response.status != 200:
            raise status_error(response, self._url, MEND)
        return self._read(response, read)

    async def _post(self, path: str, **fields: str) -> Response:
        return await self._ask(path, json.dumps(fields).encode())

    async def _ask(self, path: str, body: bytes | None, seconds: float | None = None) -> Response:
        key, seconds = self._vllm.api_key, seconds or LOAD_SECONDS
        try:
            return await self._connection.ask(path, key, seconds, body)
        except RequestError as error:
            if error.kind == "unreachable":
                self._lost()
            raise

    def _read(self, response: Response, read: Callable[[bytes], T]) -> T:
        try:
            return read(response.content)
        except BadReply as error:
            self._lost()
            raise RequestError(BAD_REPLY, f"{self._url}: {error}") from None


def _load_error(response: Response, url: str, path: Path, rank: int) -> RequestError:
    """Why an adapter was not loaded. vLLM's statuses vary with its version (a rank that is too
    high is 400 or 500), so its words are read."""
    said = message_of(response)
    words = said.lower()
    if "no adapter found" in words:  # a network disk may show it a moment later
        hint = f"it must see {path} as we do; set policy.vllm.adapter_dir"
        return RequestError(NOT_SEEN, f"{url}: {said}; {hint}", blames_server=False)
    if response.status in (404, 405) and "adapter" not in words:
        told = NO_RUNTIME_LORA
    elif "not enabled" in words or "enable_lora" in words:
        told = f"{NO_RUNTIME_LORA} ({said})"
    elif "max_lora_rank" in words:
        enough = next(limit for limit in MAX_LORA_RANKS if limit >= rank)
        told = f"{said}; start it with --max-lora-rank {enough} or above, or lower policy.lora.rank"
    elif "target modules" in words or "target_modules" in words:
        told = f"{said}; take out of policy.lora.target_modules what it does not adapt"
    elif "lora slots" in words:
        told = f"{said}; start it with --max-loras of policy.vllm.max_loras or above"
    else:
        return status_error(response, url, MEND)
    return RequestError("refused", f"{url}: {told}", final=True)
