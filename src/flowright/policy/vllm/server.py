"""One vLLM server: its requests, and how it comes to serve an adapter that is proven to be the
right one. Which server is asked, and what is tried again, is
:mod:`flowright.policy.vllm.servers`'.
"""

import asyncio
import json
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from flowright.checkout import here
from flowright.config import MAX_LORA_RANKS, PolicySection
from flowright.errors import RunError
from flowright.llm.client import model_cards, openai_ends
from flowright.llm.transport import (
    CONNECT_SECONDS,
    Connection,
    RequestError,
    Response,
    message_of,
    misplaced,
    status_error,
)
from flowright.policy.sampler import Sampling
from flowright.policy.vllm.probe import Known
from flowright.policy.vllm.proof import (
    Evidence,
    Probe,
    Proof,
    Weights,
    consistent,
    prove_adapter,
    prove_base,
    prove_trial,
    scales,
)
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
PROBE_DRAWS = 16  # tokens
NOBODY = Known("nobody's", torch.zeros(0))  # of an adapter that nothing is compared with
# For a look at the temperature any prompt will do; these ids are in every vocabulary.
_SOME_PROMPT = (65, 66, 67, 68)

_NO_RUNTIME_LORA = (
    "takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
    "--enable-lora, as launch_vllm_safe.sh policy does"
)
_RAW = (
    "its log-probabilities leave out policy.temperature and policy.top_p; start it with "
    "--logprobs-mode processed_logprobs, as launch_vllm_safe.sh policy does"
)

FORGOTTEN, BAD_REPLY, NOT_SEEN = "forgotten", "bad reply", "not seen"
"""Kinds of failure: a server does not know the name of a model that it had, as after a restart; its
reply cannot be used; it finds no adapter in a folder."""


def how_to_start() -> str:
    """What to do where no server answers."""
    return f"start it with: {here('bash launch_vllm_safe.sh policy')}"


class PolicyServer:
    """The server at ``url``, which must serve ``model`` and take adapters while it runs."""

    def __init__(self, url: str, model: str, section: PolicySection) -> None:
        self.url = url
        self.proof: Proof | None = None
        self._model = model
        self._section = section
        self._vllm = section.vllm
        self._connection = Connection(url, section.vllm.no_proxy)
        self._proven: set[str] = set()
        self._base: dict[int, Tensor] = {}  # what it says of each text without an adapter
        self._evidence = Evidence()
        self._tried = False  # whether it has passed the trial
        self._lock = asyncio.Lock()

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def draw(
        self, model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
    ) -> Drawn:
        """One completion. Raises RequestError."""
        return await self._complete(
            draw_body(model, prompt, sampling, end_ids),
            lambda c: read_drawn(c, model, prompt, sampling.max_new_tokens, end_ids),
            self._vllm.request_seconds,
        )

    async def ready(self, weights: Weights, probe: Probe) -> None:
        """Serve these weights, proven; at once where they are. Raises RequestError where another
        attempt or server may help, RunError where it is set up wrongly or serves others."""
        async with self._lock:
            if weights.name in self._proven:
                return
            try:
                await self._publish(weights, probe)
            except RunError as error:
                raise RunError(*(f"{self._where}: {line}" for line in error.problems)) from None
            self._proven.add(weights.name)

    async def drop(self, folder: Path, keep: Collection[str]) -> None:
        """Unload the adapters below ``folder`` but those to keep, an earlier process's too. One
        that will not go does no harm: nobody asks for its name again."""
        try:
            cards = await self._models(CONNECT_SECONDS)
            for card in cards.values():
                if card.name not in keep and Path(card.root or "").parent == folder:
                    await self._post("/unload_lora_adapter", lora_name=card.name)
        except RequestError:
            return

    async def check(self, adapter: Path | None = None) -> list[str]:
        """What keeps the server from being used, one line each. ``adapter`` is a folder with one
        of the run's shape, which changes nothing: it is loaded, asked, and unloaded again."""
        try:
            if problem := self._missing(await self._models(CONNECT_SECONDS)):
                return [f"{self._where}: {problem}"]
            # A request without a name loads nothing; only its status matters.
            response = await self._post("/load_lora_adapter", lora_name="", lora_path="")
            if response.status in (404, 405):
                return [f"{self._where}: {_NO_RUNTIME_LORA}"]
            if not await self._scales():
                return [f"{self._where}: {_RAW}"]
            if adapter is not None:
                await self._answers_with(adapter)
            return []
        except RequestError as error:
            if error.final or error.kind in (BAD_REPLY, NOT_SEEN, "http_404"):
                return [f"{MEND}: {error.message}"]
            return [f"{MEND}: {error.message}; {how_to_start()}, or wait until it has loaded"]

    async def _answers_with(self, adapter: Path) -> None:
        """Raises RequestError unless an adapter can be loaded and asked. It never stays, whatever
        ends this."""
        weights = Weights(f"flowright-{adapter.name}", 0, NOBODY, adapter)
        # Who stops waiting does not stop the server from loading.
        loading = asyncio.create_task(self._load(weights, adapter))
        try:
            await asyncio.shield(loading)
            await self._score(weights.name, _SOME_PROMPT)
        finally:
            with suppress(RequestError):
                await loading
            with suppress(RequestError):
                await self._post("/unload_lora_adapter", lora_name=weights.name)

    def _forget(self) -> None:
        """Take nothing for proven any more: it may have been started anew."""
        self._proven.clear()
        self._base.clear()
        self._evidence = Evidence()
        self._tried = False

    @property
    def _where(self) -> str:
        return f"{MEND}: {self.url}"

    def _missing(self, cards: dict[str, ModelCard]) -> str | None:
        """What is wrong with the base model."""
        card = cards.get(self._model)
        if card is None or card.parent is not None:
            bases = ", ".join(card.name for card in cards.values() if card.parent is None)
            return f"serves {bases or 'nothing'}, not {self._model}; set policy.vllm.model_name"
        section = self._section
        needed = section.max_prompt_tokens + section.max_new_tokens
        if card.max_tokens is not None and card.max_tokens < needed:
            return (
                f"--max-model-len is {card.max_tokens}, but policy.max_prompt_tokens and "
                f"policy.max_new_tokens are {needed} together"
            )
        return None

    async def _publish(self, weights: Weights, probe: Probe) -> None:
        cards = await self._models()
        if problem := self._missing(cards):
            raise RunError(problem)
        await self._check_base(probe)
        if weights.path is None:
            return
        if probe.trial is not None and not self._tried:
            await self._try(probe.trial, cards, probe)
        await self._have(weights, cards)
        self.proof = await self._prove(weights, probe)
        await self._check_decoding(weights.name, probe)

    async def _check_base(self, probe: Probe) -> None:
        """Its base model, once until it is started anew."""
        if not self._base:
            if not await self._scales():
                raise RunError(_RAW)
            prove_base(await self._base_scores(probe, 1), probe.base, self._vllm.tolerance)

    async def _have(self, weights: Weights, cards: dict[str, ModelCard]) -> None:
        """Load what is not loaded, and look whether it is listed as it was."""
        assert weights.path is not None
        if weights.name not in cards:
            await self._load(weights, weights.path)
            cards = await self._models()
        _check_card(cards, weights)

    async def _try(self, trial: Weights, cards: dict[str, ModelCard], probe: Probe) -> None:
        """Have the trial adapter proven, and gone again."""
        await self._have(trial, cards)
        served = await self._scores(trial.name, probe, 0, 1)
        prove_trial(served, await self._base_scores(probe, 1), trial.known, probe.base)
        await self._post("/unload_lora_adapter", lora_name=trial.name)
        self._tried = True

    async def _prove(self, weights: Weights, probe: Probe) -> Proof:
        """By as many texts as the error of the first asks for."""
        texts, served = 1, await self._scores(weights.name, probe, 0, 1)
        earlier = [known for known in probe.earlier if known is not weights.known]

        async def prove(evidence: Evidence) -> Proof:
            base = await self._base_scores(probe, texts)
            tolerance = self._vllm.tolerance
            return prove_adapter(
                served, base, weights.known, probe.base, earlier, tolerance, evidence
            )

        lacking = (await prove(Evidence())).lacking
        if lacking > 1:
            first, texts = texts, math.ceil(min(len(probe.texts), lacking))
            more = await self._scores(weights.name, probe, first, texts)
            served = torch.cat([served, more])
        return await prove(self._evidence)

    async def _base_scores(self, probe: Probe, texts: int) -> Tensor:
        """Without an adapter, of the first so many texts."""
        for number in range(texts):
            if number not in self._base:
                self._base[number] = await self._score(self._model, probe.texts[number])
        return torch.cat([self._base[number] for number in range(texts)])

    async def _scores(self, model: str, probe: Probe, first: int, end: int) -> Tensor:
        """Of the texts from ``first`` to before ``end``."""
        return torch.cat([await self._score(model, text) for text in probe.texts[first:end]])

    async def _check_decoding(self, model: str, probe: Probe) -> None:
        prompt = probe.texts[0][: len(probe.texts[0]) // 2]
        drawn = await self.draw(model, prompt, Sampling(1.0, 1.0, PROBE_DRAWS, 0), probe.end_ids)
        scored = await self._score(model, [*prompt, *drawn.token_ids])
        consistent(drawn.logprobs, scored[len(prompt) - 1 :].tolist(), self._vllm.tolerance)

    async def _load(self, weights: Weights, path: Path) -> None:
        response = await self._post(
            "/load_lora_adapter", lora_name=weights.name, lora_path=str(path)
        )
        if response.status != 200:
            raise _load_error(response, self.url, path, self._section.lora.rank)

    async def _scales(self) -> bool:
        """Whether log-probabilities are of the distribution that is drawn from: looked at only
        where that is not the plain one, but then at a temperature that shows it."""
        if self._section.temperature == 1 and self._section.top_p == 1:
            return True
        found = []
        for temperature in (1.0, 0.5):
            body = alternatives_body(self._model, _SOME_PROMPT, temperature)
            found.append(await self._complete(body, lambda c: read_alternatives(c, self._model)))
        return scales(*found)

    async def _score(self, model: str, token_ids: Sequence[int]) -> Tensor:
        body = score_body(model, token_ids)
        found = await self._complete(body, lambda c: read_scores(c, model, token_ids))
        return torch.tensor(found, dtype=torch.float64)

    async def _models(self, seconds: float | None = None) -> dict[str, ModelCard]:
        response = await self._ask("/models", None, seconds)
        if response.status == 404:
            key, ends = self._vllm.api_key, openai_ends(self.url)
            found = await misplaced(self.url, self._vllm.no_proxy, key, ends)
            if found is not None and model_cards(found[1]) is not None:
                told = f"{self.url} answered 404 to /models, and {found[0]} serves"
                mend = f"put {found[0]} into policy.vllm.base_urls"
                raise RequestError("http_404", f"{told}: {mend}", final=True)
        if response.status != 200:
            raise status_error(response, self.url, MEND)
        return self._read(response, read_models)

    async def _complete(
        self, body: bytes, read: Callable[[bytes], T], seconds: float | None = None
    ) -> T:
        response = await self._ask("/completions", body, seconds)
        if response.status == 404:
            self._forget()
            told = f"{self.url}: {message_of(response)}"
            raise RequestError(FORGOTTEN, told, blames_server=False)
        if response.status != 200:
            raise status_error(response, self.url, MEND)
        return self._read(response, read)

    async def _post(self, path: str, **fields: str) -> Response:
        return await self._ask(path, json.dumps(fields).encode())

    async def _ask(self, path: str, body: bytes | None, seconds: float | None = None) -> Response:
        key, seconds = self._vllm.api_key, seconds or self._vllm.load_seconds
        try:
            return await self._connection.ask(path, key, seconds, body)
        except RequestError as error:
            if error.kind == "unreachable":
                self._forget()
            raise

    def _read(self, response: Response, read: Callable[[bytes], T]) -> T:
        try:
            return read(response.content)
        except BadReply as error:
            self._forget()
            raise RequestError(BAD_REPLY, f"{self.url}: {error}") from None


def _check_card(cards: dict[str, ModelCard], weights: Weights) -> None:
    """Raises RunError unless the adapter is listed as it was loaded."""
    card = cards.get(weights.name)
    if card is None:
        raise RunError(
            f"it took {weights.name} but does not list it; run one API server a process "
            "(--api-server-count 1) and name each in policy.vllm.base_urls"
        )
    parent = cards.get(card.parent or "")
    if card.root != str(weights.path) or parent is None or parent.parent is not None:
        raise RunError(
            f"it lists {weights.name} as loaded from {card.root} upon {card.parent}, not from "
            f"{weights.path} upon its base model"
        )


def _load_error(response: Response, url: str, path: Path, rank: int) -> RequestError:
    """Why an adapter was not loaded. vLLM's statuses vary with its version (a rank that is too
    high is 400 or 500), so its words are read."""
    said = message_of(response)
    words = said.lower()
    if "no adapter found" in words:  # a network disk may show it a moment later
        hint = f"it must see {path} as we do; set policy.vllm.adapter_dir"
        return RequestError(NOT_SEEN, f"{url}: {said}; {hint}", blames_server=False)
    if response.status in (404, 405) and "adapter" not in words:
        told = _NO_RUNTIME_LORA
    elif "not enabled" in words or "enable_lora" in words:
        told = f"{_NO_RUNTIME_LORA} ({said})"
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
