"""Requests to one vLLM server and their replies: every field that is relied on is checked."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from flowright.config.policy import MAX_LORA_RANKS
from flowright.config.section import ServersSection
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

T = TypeVar("T")

SECTION = "policy.vllm"
NO_RUNTIME_LORA = (
    "takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
    "--enable-lora, as launch_vllm_safe.sh policy does"
)
NO_EXCHANGE = (
    "takes no weights while it runs; start it with VLLM_SERVER_DEV_MODE=1, as POLICY_TRAIN=full "
    "bash launch_vllm_safe.sh policy does"
)
FORGOTTEN, BAD_REPLY, NOT_SEEN = "forgotten", "bad reply", "not seen"
"""Kinds of failure: a model's name is unknown that was known before, as after a restart; the reply
cannot be used; there are no weights in a folder as the server sees it."""

OWN_WEIGHTS = "default"
"""vLLM's label of the weights that it was started with."""
_BETWEEN = "flowright-unknown"
"""Label of weights that are being exchanged."""

IMPOSSIBLE = -9000.0
"""vLLM writes -inf as -9999."""

# Without these in a request, vLLM takes those of the model's generation_config.json.
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
EXCHANGE_SECONDS = 1800.0
"""Timeout of loading all weights, or of the completions before."""


class BadReply(Exception):
    """A 200 that cannot be used: from another model, cut short, or incomplete."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model. ``root`` is its folder or name; an adapter has a ``parent``."""

    name: str
    root: str | None
    parent: str | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A completion: a :class:`flowright.policy.sampling.Sample` without the text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]

    def behind(self, before: "Drawn") -> "Drawn":
        """Return a completion of which this is the rest."""
        ids, logprobs = before.token_ids + self.token_ids, before.logprobs + self.logprobs
        return Drawn(ids, logprobs, self.finish_reason)


class Requests:
    """Requests to the server at ``url``, for one event loop. Each raises RequestError with a
    remedy, by the name of the configuration's section. ``lost`` is called if the server may have
    been restarted: earlier proofs are void. ``rank``: of adapters, if it gets any."""

    def __init__(
        self,
        url: str,
        servers: ServersSection,
        lost: Callable[[], None] = lambda: None,
        rank: int = 1,
        section: str = SECTION,
    ) -> None:
        self._url = url
        self._vllm = servers
        self._rank = rank
        self._section = section
        self._connection = Connection(url, servers.no_proxy)
        self._engine = Connection(url.removesuffix("/v1"), servers.no_proxy)
        self._lost = lost

    async def aclose(self) -> None:
        await self._connection.aclose()
        await self._engine.aclose()

    async def draw(
        self, model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
    ) -> Drawn:
        """Draw one completion."""
        return await self._complete(
            draw_body(model, prompt, sampling, end_ids),
            lambda c: read_drawn(c, model, prompt, sampling.max_new_tokens, end_ids),
            self._vllm.request_seconds,
        )

    async def score(
        self, model: str, token_ids: Sequence[int], least: float | None = None
    ) -> Tensor:
        """Return the log-probabilities of all tokens but the first, float64. vLLM computes them
        anew, without its prefix cache, and at temperature 1 whatever the request has. ``least``
        stands for lower ones, impossible tokens included."""
        body = _body(
            model, token_ids, temperature=1.0, top_p=1.0, prompt_logprobs=1, return_token_ids=True
        )
        found = await self._complete(
            body, lambda c: read_scores(c, model, token_ids, least), self._vllm.request_seconds
        )
        return torch.tensor(found, dtype=torch.float64)

    async def token_ids(self, model: str, text: str) -> list[int]:
        """Return the server's tokens of a text, without any that it would add."""
        body = _body(
            model, text, temperature=1.0, top_p=1.0, add_special_tokens=False, return_token_ids=True
        )
        return await self._complete(body, lambda c: read_prompt_ids(c, model))

    async def alternatives(
        self, model: str, prompt: Sequence[int], temperature: float
    ) -> list[float]:
        """Return the log-probabilities of the likeliest next tokens, descending."""
        body = _body(
            model,
            prompt,
            temperature=temperature,
            top_p=1.0,
            seed=0,
            logprobs=5,
            return_tokens_as_token_ids=True,
        )
        return await self._complete(body, lambda c: read_alternatives(c, model))

    async def models(self, seconds: float | None = None) -> dict[str, ModelCard]:
        """Return the served models by name."""
        response = await self._ask("/models", None, seconds)
        if response.status == 404:
            key, ends = self._vllm.api_key, openai_ends(self._url)
            found = await misplaced(self._url, self._vllm.no_proxy, key, ends)
            if found is not None and model_cards(found[1]) is not None:
                message = f"{self._url} answered 404 to /models, and {found[0]} serves"
                remedy = f"put {found[0]} into {self._section}.base_urls"
                raise RequestError("http_404", f"{message}: {remedy}", final=True)
        if response.status != 200:
            raise status_error(response, self._url, self._section)
        return self._read(response, read_models)

    async def takes_adapters(self) -> bool:
        """Return whether adapters can be loaded at run time, by the status of a request without a
        name, which loads nothing."""
        response = await self._post("/load_lora_adapter", lora_name="", lora_path="")
        return response.status not in (404, 405)

    async def load(self, name: str, path: Path) -> None:
        """Load an adapter, unless it is loaded already: another process of the run may do so at
        the same time, and vLLM then refuses one of the two."""
        response = await self._post("/load_lora_adapter", lora_name=name, lora_path=str(path))
        if response.status != 200 and "already been loaded" not in message_of(response):
            raise _load_error(response, self._url, path, self._rank)

    async def unload(self, name: str) -> None:
        """Unload an adapter; one that stays does no harm, as its name is not used again."""
        await self._post("/unload_lora_adapter", lora_name=name)

    async def takes_weights(self) -> bool:
        """Return whether all weights can be exchanged at run time, by the status of a call of no
        method."""
        response = await self._ask("/collective_rpc", b"{}", connection=self._engine)
        return response.status not in (404, 405)

    async def label(self) -> str:
        """Return the label of the weights in the engine."""
        response = await self._ask("/weight_info", None, connection=self._engine)
        self._check_engine(response)
        return self._read(response, lambda content: str(_json(content).get("weight_version")))

    async def exchange(self, label: str, path: str) -> None:
        """Load the weights at ``path`` in the base model's place under a label, once every
        completion has ended. Keys and values of the old ones are dropped. A server whose label is
        another may be paused, or have any weights."""
        await self._command("/update_weight_version", new_version=_BETWEEN)
        try:
            await self._command("/pause?mode=wait")
            reload = {"weights_path": path}
            await self._command("/collective_rpc", method="reload_weights", kwargs=reload)
            reset = await self._command("/reset_prefix_cache")
        finally:
            await self._command("/resume")
        if not self._read(reset, lambda content: _json(content).get("success")):
            raise RequestError(BAD_REPLY, f"{self._url}: it keeps its prefix cache")
        await self._command("/update_weight_version", new_version=label)

    async def _command(self, path: str, **fields: Any) -> Response:
        body = json.dumps(fields).encode()
        response = await self._ask(path, body, EXCHANGE_SECONDS, self._engine)
        if "kwargs" in fields and response.status not in (200, 404, 405):
            folder = fields["kwargs"]["weights_path"]
            hint = f"it must see {folder} as we do; set policy.vllm.adapter_dir"
            raise RequestError(NOT_SEEN, f"{self._url}: {message_of(response)}; {hint}")
        self._check_engine(response)
        return response

    def _check_engine(self, response: Response) -> None:
        if response.status in (404, 405):
            raise RequestError("refused", f"{self._url}: {NO_EXCHANGE}", final=True)
        if response.status != 200:
            raise status_error(response, self._url, self._section)

    async def _complete(
        self, body: bytes, read: Callable[[bytes], T], seconds: float | None = None
    ) -> T:
        response = await self._ask("/completions", body, seconds)
        if response.status == 404:
            self._lost()
            message = f"{self._url}: {message_of(response)}"
            raise RequestError(FORGOTTEN, message, blames_server=False)
        if response.status != 200:
            raise status_error(response, self._url, self._section)
        return self._read(response, read)

    async def _post(self, path: str, **fields: str) -> Response:
        return await self._ask(path, json.dumps(fields).encode())

    async def _ask(
        self,
        path: str,
        body: bytes | None,
        seconds: float | None = None,
        connection: Connection | None = None,
    ) -> Response:
        key, seconds = self._vllm.api_key, seconds or LOAD_SECONDS
        try:
            return await (connection or self._connection).ask(path, key, seconds, body)
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
    """Explain why an adapter was not loaded. vLLM's statuses vary with its version (a rank that is
    too high is 400 or 500), so its message is read."""
    message = message_of(response)
    lower = message.lower()
    if "no adapter found" in lower:  # a network disk may show it a moment later
        hint = f"it must see {path} as the first process does; set policy.vllm.adapter_dir"
        return RequestError(NOT_SEEN, f"{url}: {message}; {hint}", blames_server=False)
    if response.status in (404, 405) and "adapter" not in lower:
        message = NO_RUNTIME_LORA
    elif "not enabled" in lower or "enable_lora" in lower:
        message = f"{NO_RUNTIME_LORA} ({message})"
    elif "max_lora_rank" in lower:
        enough = next(limit for limit in MAX_LORA_RANKS if limit >= rank)
        message += f"; start it with --max-lora-rank {enough} or above, or lower policy.lora.rank"
    elif "target modules" in lower or "target_modules" in lower:
        message += "; take out of policy.lora.target_modules what it does not adapt"
    elif "lora slots" in lower:
        message += "; start it with --max-loras of policy.vllm.max_loras or above"
    else:
        return status_error(response, url, SECTION)
    return RequestError("refused", f"{url}: {message}", final=True)


def draw_body(
    model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
) -> bytes:
    """Return the request for one completion; its draws depend on ``sampling.seed``."""
    return _body(
        model,
        prompt,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        logprobs=0,  # of the token that was drawn
        return_token_ids=True,
        stop_token_ids=sorted(end_ids),
        skip_special_tokens=False,
    )


def _body(model: str, prompt: str | Sequence[int], **fields: Any) -> bytes:
    prompt = prompt if isinstance(prompt, str) else list(prompt)
    body = {"model": model, "prompt": prompt, "max_tokens": 1, **_PLAIN, **fields}
    return json.dumps(body, separators=(",", ":")).encode()


def read_drawn(
    content: bytes, model: str, prompt: Sequence[int], longest: int, end_ids: Collection[int]
) -> Drawn:
    """Read a whole completion of ``model``. Raises BadReply."""
    choice = _choice(content, model, prompt)
    ids = _token_ids(choice)
    table = choice.get("logprobs")
    logprobs = table.get("token_logprobs") if isinstance(table, dict) else None
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        count = len(logprobs) if isinstance(logprobs, list) else "no"
        raise BadReply(f"{len(ids)} tokens with {count} log-probabilities")
    checked = tuple(_logprob(value) for value in logprobs)
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise BadReply(f"finish_reason {reason!r}")
    if ids and ids[-1] in end_ids:  # also as the last allowed token
        return Drawn(ids, checked, "stop")
    if reason == "stop":
        raise BadReply("it stopped, but its last token is not one that ends a completion")
    if len(ids) != longest:
        raise BadReply(
            f"cut after {len(ids)} of {longest} tokens; a larger --max-model-len is needed"
        )
    return Drawn(ids, checked, "length")


def read_scores(
    content: bytes, model: str, token_ids: Sequence[int], least: float | None = None
) -> list[float]:
    """Read ``model``'s log-probabilities of all tokens but the first. Raises BadReply."""
    rows = _choice(content, model, token_ids).get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(token_ids):
        raise BadReply("no prompt_logprobs, or not one for each token")
    found = []
    for token, row in zip(token_ids[1:], rows[1:], strict=True):
        entry = row.get(str(token)) if isinstance(row, dict) else None
        found.append(_logprob(entry.get("logprob") if isinstance(entry, dict) else None, least))
    return found


def read_prompt_ids(content: bytes, model: str) -> list[int]:
    """Read the tokens of a prompt. Raises BadReply."""
    ids = _choice(content, model).get("prompt_token_ids")
    if not isinstance(ids, list):
        raise BadReply("no prompt_token_ids; it takes a vLLM of requirements-vllm.txt")
    return ids


def read_alternatives(content: bytes, model: str) -> list[float]:
    """Read the log-probabilities of the likeliest next tokens, descending. Raises BadReply."""
    table = _choice(content, model).get("logprobs")
    rows = table.get("top_logprobs") if isinstance(table, dict) else None
    row = rows[0] if isinstance(rows, list) and rows else None
    if not isinstance(row, dict) or len(row) < 2:
        raise BadReply("no top_logprobs")
    return sorted((_logprob(value) for value in row.values()), reverse=True)


def read_models(content: bytes) -> dict[str, ModelCard]:
    """Read the served models by name. Raises BadReply."""
    rows = _json(content).get("data")
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "id" in r for r in rows):
        raise BadReply("not a list of models; is this an OpenAI-compatible server?")
    cards = (
        ModelCard(str(r["id"]), r.get("root"), r.get("parent"), r.get("max_model_len"))
        for r in rows
    )
    return {card.name: card for card in cards}


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise BadReply(f"not JSON: {content[:80].decode('utf-8', 'replace')!r}") from None
    if not isinstance(found, dict):
        raise BadReply("not a JSON object")
    return found


def _choice(content: bytes, model: str, prompt: Sequence[int] | None = None) -> Mapping[str, Any]:
    """Return the only choice, of this model and for this prompt."""
    body = _json(content)
    if body.get("model") != model:
        raise BadReply(f"it is from model {body.get('model')!r}, not {model!r}")
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadReply("not exactly one choice")
    if prompt is not None:
        if choices[0].get("prompt_token_ids") is None:
            raise BadReply("no prompt_token_ids; it takes a vLLM of requirements-vllm.txt")
        if choices[0]["prompt_token_ids"] != list(prompt):
            raise BadReply("the prompt that it answers is not the one that was sent")
    return choices[0]


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise BadReply("no token_ids; it takes a vLLM of requirements-vllm.txt")
    return tuple(ids)


def _logprob(value: object, least: float | None = None) -> float:
    """Check the logarithm of a probability; rounding may put a certain token's slightly above 0."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadReply(f"a log-probability is {value!r}")
    if least is not None:
        value = max(value, least)
    if not IMPOSSIBLE < value < 1e-3:
        raise BadReply(f"a log-probability is {value:g}; --logprobs-mode gives logits?")
    return float(value)
