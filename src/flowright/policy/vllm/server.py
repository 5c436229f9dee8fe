"""One vLLM server: how it comes to serve an adapter that is proven to be the right one. What a
request says is :mod:`flowright.policy.vllm.requests`', which server is asked and what is tried
again :mod:`flowright.policy.vllm.servers`'.
"""

import asyncio
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from flowright.config.policy import PolicySection
from flowright.core.checkout import here
from flowright.core.errors import RunError
from flowright.llm.transport import CONNECT_SECONDS, RequestError
from flowright.policy.sampler import Sampling
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
from flowright.policy.vllm.requests import BAD_REPLY, MEND, NO_RUNTIME_LORA, NOT_SEEN, Requests
from flowright.policy.vllm.wire import Drawn, ModelCard

PROBE_DRAWS = 16  # tokens
# For a look at the temperature any prompt will do; these ids are in every vocabulary.
_SOME_PROMPT = (65, 66, 67, 68)

_RAW = (
    "its log-probabilities leave out policy.temperature and policy.top_p; start it with "
    "--logprobs-mode processed_logprobs, as launch_vllm_safe.sh policy does"
)


def how_to_start() -> str:
    """What to do where no server answers."""
    return f"start it with: {here('bash launch_vllm_safe.sh policy')}"


class PolicyServer:
    """The server at ``url``, which must serve ``model`` and take adapters while it runs."""

    def __init__(self, url: str, model: str, section: PolicySection) -> None:
        self.url = url
        self._model = model
        self._section = section
        self._requests = Requests(url, section, self._forget)
        self._proven: dict[str, Proof | None] = {}  # by name; None of the base model
        self._base: dict[int, Tensor] = {}  # what it says of each text without an adapter
        self._evidence = Evidence()
        self._tried = False  # whether it has passed the trial
        self._lock = asyncio.Lock()

    async def aclose(self) -> None:
        await self._requests.aclose()

    async def draw(
        self, model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
    ) -> Drawn:
        """One completion. Raises RequestError."""
        return await self._requests.draw(model, prompt, sampling, end_ids)

    def proof(self, name: str) -> Proof | None:
        """That it serves an adapter; None before it was given, and after a restart."""
        return self._proven.get(name)

    async def ready(self, weights: Weights, probe: Probe) -> None:
        """Serve these weights, proven; at once where they are. Raises RequestError where another
        attempt or server may help, RunError where it is set up wrongly or serves others."""
        async with self._lock:
            if weights.name in self._proven:
                return
            try:
                proof = await self._publish(weights, probe)
            except RunError as error:
                raise RunError(*(f"{self._where}: {line}" for line in error.problems)) from None
            self._proven[weights.name] = proof

    async def drop(self, folder: Path, keep: Collection[str]) -> None:
        """Unload the adapters below ``folder`` but those to keep, an earlier process's too."""
        try:
            cards = await self._requests.models(CONNECT_SECONDS)
            for card in cards.values():
                if card.name not in keep and Path(card.root or "").parent == folder:
                    await self._requests.unload(card.name)
        except RequestError:
            return

    async def check(self, adapter: Path | None = None) -> list[str]:
        """What keeps the server from being used, one line each. ``adapter`` is a folder with one
        of the run's shape, which changes nothing: it is loaded, asked, and unloaded again."""
        try:
            if problem := self._missing(await self._requests.models(CONNECT_SECONDS)):
                return [f"{self._where}: {problem}"]
            if not await self._requests.takes_adapters():
                return [f"{self._where}: {NO_RUNTIME_LORA}"]
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
        name, requests = f"flowright-{adapter.name}", self._requests
        # Who stops waiting does not stop the server from loading.
        loading = asyncio.create_task(requests.load(name, adapter))
        try:
            await asyncio.shield(loading)
            await requests.score(name, _SOME_PROMPT)
        finally:
            with suppress(RequestError):
                await loading
            with suppress(RequestError):
                await requests.unload(name)

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

    async def _publish(self, weights: Weights, probe: Probe) -> Proof | None:
        cards = await self._requests.models()
        if problem := self._missing(cards):
            raise RunError(problem)
        await self._check_base(probe)
        if weights.path is None:
            return None
        if probe.trial is not None and not self._tried:
            await self._try(probe.trial, cards, probe)
        await self._have(weights, cards)
        proof = await self._prove(weights, probe)
        await self._check_decoding(weights.name, probe)
        return proof

    async def _check_base(self, probe: Probe) -> None:
        """Its base model, once until it is started anew."""
        if not self._base:
            if not await self._scales():
                raise RunError(_RAW)
            prove_base(await self._base_scores(probe, 1), probe.base, self._section.vllm.tolerance)

    async def _have(self, weights: Weights, cards: dict[str, ModelCard]) -> None:
        """Load what is not loaded, and look whether it is listed as it was."""
        assert weights.path is not None
        if weights.name not in cards:
            await self._requests.load(weights.name, weights.path)
            cards = await self._requests.models()
        _check_card(cards, weights)

    async def _try(self, trial: Weights, cards: dict[str, ModelCard], probe: Probe) -> None:
        """Have the trial adapter proven, and gone again."""
        await self._have(trial, cards)
        served = await self._scores(trial.name, probe, 0, 1)
        prove_trial(served, await self._base_scores(probe, 1), trial.known, probe.base)
        await self._requests.unload(trial.name)
        self._tried = True

    async def _prove(self, weights: Weights, probe: Probe) -> Proof:
        """By as many texts as the error of the first asks for."""
        texts, served = 1, await self._scores(weights.name, probe, 0, 1)
        earlier = [known for known in probe.earlier if known is not weights.known]

        async def prove(evidence: Evidence) -> Proof:
            base = await self._base_scores(probe, texts)
            tolerance = self._section.vllm.tolerance
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
                self._base[number] = await self._requests.score(self._model, probe.texts[number])
        return torch.cat([self._base[number] for number in range(texts)])

    async def _scores(self, model: str, probe: Probe, first: int, end: int) -> Tensor:
        """Of the texts from ``first`` to before ``end``."""
        return torch.cat(
            [await self._requests.score(model, text) for text in probe.texts[first:end]]
        )

    async def _check_decoding(self, model: str, probe: Probe) -> None:
        prompt = probe.texts[0][: len(probe.texts[0]) // 2]
        drawn = await self.draw(model, prompt, Sampling(1.0, 1.0, PROBE_DRAWS, 0), probe.end_ids)
        scored = await self._requests.score(model, [*prompt, *drawn.token_ids])
        consistent(drawn.logprobs, scored[len(prompt) - 1 :].tolist(), self._section.vllm.tolerance)

    async def _scales(self) -> bool:
        """Whether log-probabilities are of the distribution that is drawn from: looked at only
        where that is not the plain one, but then at a temperature that shows it."""
        if self._section.temperature == 1 and self._section.top_p == 1:
            return True
        found = [
            await self._requests.alternatives(self._model, _SOME_PROMPT, temperature)
            for temperature in (1.0, 0.5)
        ]
        return scales(*found)


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
