"""The requests to one vLLM server. Each gives what was asked for, or raises a RequestError that
says what to mend. What is asked, and what it proves, is :mod:`flowright.policy.vllm.server`'s.
"""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

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
from flowright.policy.sampler import Sampling
from flowright.policy.vllm.wire import (
    BadReply,
    Drawn,
    ModelCard,
    alternatives_body,
    draw_body,
    read_alternatives,
    read_drawn,
    read_models,
    read_scores,
    score_body,
)

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
        """See :func:`flowright.policy.vllm.wire.read_alternatives`."""
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
        key, seconds = self._vllm.api_key, seconds or self._vllm.load_seconds
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
