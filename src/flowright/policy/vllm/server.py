"""vLLM servers of the policy: one that is made to serve weights and to prove it, and all.

A completion has no deadline but waits out a server's restart, and a server is sampled from only
when it is ready, with weights proven. Adapters stand side by side. All weights take the base
model's place (``policy.train: full``): they are exchanged once no completion is open, and the
server's label of them is compared behind every completion, as a restarted server has its own again
under the same name.
"""

import asyncio
import math
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from flowright.config.policy import PolicySection
from flowright.core.batch_calls import all_of
from flowright.core.checkout import here
from flowright.core.errors import RunError
from flowright.llm.transport import CONNECT_SECONDS, RequestError
from flowright.policy.sampling import Sampling
from flowright.policy.vllm.fleet import Fleet
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
from flowright.policy.vllm.requests import (
    BAD_REPLY,
    FORGOTTEN,
    NO_EXCHANGE,
    NO_RUNTIME_LORA,
    NOT_SEEN,
    OWN_WEIGHTS,
    SECTION,
    Drawn,
    ModelCard,
    Requests,
)

ROLE = "policy"
PROBE_DRAWS = 16  # tokens
_SOME_PROMPT = (65, 66, 67, 68)  # ids of every vocabulary, for checks that need no particular text

_RAW = (
    "its log-probabilities leave out policy.temperature and policy.top_p; start it with "
    "--logprobs-mode processed_logprobs, as launch_vllm_safe.sh policy does"
)


def how_to_start() -> str:
    """Return the remedy for a server that does not answer."""
    return f"start it with: {here('bash launch_vllm_safe.sh policy')}"


class PolicyServer:
    """The server at ``url``, which must serve ``model`` and take adapters, or all weights, while it
    runs."""

    def __init__(self, url: str, model: str, section: PolicySection) -> None:
        self.url = url
        self._model = model
        self._section = section
        self._exchanges = section.train == "full"
        self._requests = Requests(url, section.vllm, self._forget, section.lora.rank)
        self._proven: dict[str, Proof | None] = {}  # by name; None of the base model
        self.shared_proofs: dict[str, Proof] = {}  # another process' proofs; used once it is listed
        self._base: dict[int, Tensor] = {}  # scores of each text without an adapter
        self._evidence = Evidence()
        self._passed_trial = False
        self._lock = asyncio.Lock()
        self._open = 0  # completions
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    async def aclose(self) -> None:
        await self._requests.aclose()

    async def draw(
        self, weights: Weights, probe: Probe, prompt: Sequence[int], sampling: Sampling
    ) -> Drawn:
        """Draw one completion from these weights. Raises as :meth:`ready`."""
        await self.ready(weights, probe)
        self._open += 1
        self._all_ended.clear()
        try:
            drawn = await self._drawn(weights, prompt, sampling, probe.end_ids)
            if self._exchanges:
                self._check_label(weights, await self._requests.label())
            return drawn
        finally:
            self._open -= 1
            if not self._open:
                self._all_ended.set()

    def proof(self, name: str) -> Proof | None:
        """Return the proof that it serves weights; None before the proof and after a restart."""
        return self._proven.get(name)

    async def ready(self, weights: Weights, probe: Probe) -> None:
        """Serve these weights with proof; returns at once if it does. Raises RequestError if
        another attempt or server may help, RunError if it is set up wrongly or serves other
        weights."""
        if weights.name in self._proven and not self._exchanges:
            return  # without waiting for the next version's proof
        async with self._lock:
            if weights.name in self._proven:
                return
            if self._exchanges:
                await self._all_ended.wait()
            try:
                proof = await self._publish(weights, probe)
            except RunError as error:
                raise RunError(*(f"{self._where}: {line}" for line in error.problems)) from None
            self._proven[weights.name] = proof

    async def drop(self, folder: Path, keep: Collection[Path]) -> None:
        """Unload the adapters below ``folder`` but those to keep, also an earlier process's."""
        try:
            cards = await self._requests.models(CONNECT_SECONDS)
            for card in cards.values():
                path = Path(card.root or "")
                if path not in keep and path.parent == folder:
                    await self._requests.unload(card.name)
        except RequestError:
            return

    async def check(self, adapter: Path | None = None) -> list[str]:
        """Return the problems that keep the server from being used, one line each. ``adapter``: a
        folder with one of the run's shape that changes nothing; it is loaded, used, and
        unloaded."""
        try:
            if problem := self._missing(await self._requests.models(CONNECT_SECONDS)):
                return [f"{self._where}: {problem}"]
            if self._exchanges and not await self._requests.takes_weights():
                return [f"{self._where}: {NO_EXCHANGE}"]
            if not self._exchanges and not await self._requests.takes_adapters():
                return [f"{self._where}: {NO_RUNTIME_LORA}"]
            if not await self._scales():
                return [f"{self._where}: {_RAW}"]
            if adapter is not None:
                await self._answers_with(adapter)
            return []
        except RequestError as error:
            if error.final or error.kind in (BAD_REPLY, NOT_SEEN, "http_404"):
                return [f"{SECTION}: {error.message}"]
            return [f"{SECTION}: {error.message}; {how_to_start()}, or wait until it has loaded"]

    async def _answers_with(self, adapter: Path) -> None:
        """Load an adapter, score with it, and unload it again in any case. Raises RequestError."""
        name, requests = f"flowright-{adapter.name}", self._requests
        # A cancelled request does not stop the server from loading.
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
        """Drop all proofs: the server may have been restarted."""
        self._proven.clear()
        self.shared_proofs.clear()
        self._base.clear()
        self._evidence = Evidence()
        self._passed_trial = False

    @property
    def _where(self) -> str:
        return f"{SECTION}: {self.url}"

    def _missing(self, cards: dict[str, ModelCard]) -> str | None:
        """Return the problem with the base model, if any."""
        card = cards.get(self._model)
        if card is None or card.parent is not None:
            bases = ", ".join(card.name for card in cards.values() if card.parent is None)
            return f"serves {bases or 'nothing'}, not {self._model}; set policy.vllm.model_name"
        section = self._section
        needed = section.sequence_tokens
        if card.max_tokens is not None and card.max_tokens < needed:
            return (
                f"--max-model-len is {card.max_tokens}, but {' and '.join(section.length_keys)} "
                f"are {needed} together"
            )
        return None

    async def _publish(self, weights: Weights, probe: Probe) -> Proof | None:
        cards = await self._requests.models()
        if problem := self._missing(cards):
            raise RunError(problem)
        shared = self.shared_proofs.pop(weights.name, None)
        if shared is not None and weights.name in cards:
            _check_card(cards, weights)
            return shared
        await self._check_base(cards, probe)
        if weights.path is None:
            await self._load(weights, cards)
            return None
        if probe.trial is not None and not self._passed_trial:
            await self._prove_trial(probe.trial, cards, probe)
        await self._load(weights, cards)
        proof = await self._prove(weights, probe)
        await self._check_decoding(weights, probe)
        return proof

    async def _check_base(self, cards: dict[str, ModelCard], probe: Probe) -> None:
        """Prove its base model, once until it is restarted. One that is to leave gives all scores,
        and keys and values that must leave with it."""
        texts = len(probe.texts) if self._exchanges else 1
        if len(self._base) < texts:
            base = Weights(self._model, 0, probe.base)
            await self._load(base, cards)
            if not await self._scales():
                raise RunError(_RAW)
            if self._exchanges:
                await self._check_decoding(base, probe)
            served = await self._base_scores(probe, texts)
            prove_base(served, probe.base, self._section.vllm.tolerance)

    async def _load(self, weights: Weights, cards: dict[str, ModelCard]) -> None:
        """Load the weights if they are not loaded; check how an adapter is listed."""
        if self._exchanges:
            label = _label(weights)
            if await self._requests.label() != label:
                self._proven.clear()
                own = cards[self._model].root or self._model
                await self._requests.exchange(label, str(weights.path or own))
        elif weights.path is not None:
            if weights.name not in cards:
                await self._requests.load(weights.name, weights.path)
                cards = await self._requests.models()
            _check_card(cards, weights)

    def _check_label(self, weights: Weights, label: str) -> None:
        """Raises RequestError if these are not the weights in the engine any more."""
        if label != _label(weights):
            self._forget()
            other = label != OWN_WEIGHTS
            what = f"another run loaded {label}: one run a server" if other else "it was restarted"
            raise RequestError(FORGOTTEN, f"{self.url}: {what}", final=other, blames_server=False)

    def _served(self, weights: Weights) -> str:
        """Return the model's name in requests."""
        return self._model if self._exchanges else weights.name

    async def _prove_trial(self, trial: Weights, cards: dict[str, ModelCard], probe: Probe) -> None:
        """Load the trial weights and prove them; unload an adapter."""
        await self._load(trial, cards)
        served = await self._scores(trial, probe, 0, 1)
        prove_trial(served, await self._base_scores(probe, 1), trial.known, probe.base)
        if self._exchanges:
            await self._check_decoding(trial, probe)
        else:
            await self._requests.unload(trial.name)
        self._passed_trial = True

    async def _prove(self, weights: Weights, probe: Probe) -> Proof:
        """Prove the weights by as many texts as the error of the first requires."""
        texts, served = 1, await self._scores(weights, probe, 0, 1)
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
            more = await self._scores(weights, probe, first, texts)
            served = torch.cat([served, more])
        return await prove(self._evidence)

    async def _base_scores(self, probe: Probe, texts: int) -> Tensor:
        """Score the first ``texts`` texts by the base model."""
        for number in range(texts):
            if number not in self._base:
                self._base[number] = await self._requests.score(self._model, probe.texts[number])
        return torch.cat([self._base[number] for number in range(texts)])

    async def _scores(self, weights: Weights, probe: Probe, first: int, end: int) -> Tensor:
        """Score the texts from ``first`` to before ``end``."""
        model = self._served(weights)
        return torch.cat(
            [await self._requests.score(model, text) for text in probe.texts[first:end]]
        )

    async def _drawn(
        self, weights: Weights, prompt: Sequence[int], how: Sampling, end_ids: Collection[int]
    ) -> Drawn:
        return await self._requests.draw(self._served(weights), prompt, how, end_ids)

    async def _check_decoding(self, weights: Weights, probe: Probe) -> None:
        """Compare drawn tokens, whose prompt may be in the prefix cache, with scores without it."""
        prompt = probe.texts[0][: len(probe.texts[0]) // 2]
        how = Sampling(1.0, 1.0, PROBE_DRAWS, 0)
        drawn = await self._drawn(weights, prompt, how, probe.end_ids)
        scored = await self._requests.score(self._served(weights), [*prompt, *drawn.token_ids])
        consistent(drawn.logprobs, scored[len(prompt) - 1 :].tolist(), self._section.vllm.tolerance)

    async def _scales(self) -> bool:
        """Return whether log-probabilities are of the distribution that is drawn from; checked, at
        a temperature that shows it, only if that is not the plain one."""
        if self._section.temperature == 1 and self._section.top_p == 1:
            return True
        found = [
            await self._requests.alternatives(self._model, _SOME_PROMPT, temperature)
            for temperature in (1.0, 0.5)
        ]
        return scales(*found)


def _label(weights: Weights) -> str:
    """Return the server's label of whole weights."""
    return weights.name if weights.path else OWN_WEIGHTS


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


class PolicyFleet(Fleet[PolicyServer]):
    """The servers that sample from the policy. ``counters`` count :meth:`ask`, without adapters and
    proofs."""

    def __init__(self, section: PolicySection, model: str) -> None:
        urls = section.vllm.base_urls
        servers = {url: PolicyServer(url, model, section) for url in urls}
        super().__init__(servers, section.vllm, ROLE, SECTION, how_to_start())
        self._lost: set[str] = set()

    def answered(self, url: str) -> None:
        self._lost.discard(url)

    def proofs(self, name: str) -> dict[str, Proof]:
        """Return the proofs of an adapter by server."""
        found = {url: server.proof(name) for url, server in self.servers.items()}
        return {url: proof for url, proof in found.items() if proof is not None}

    def proof_metrics(self, name: str) -> dict[str, float]:
        """Return the metrics of a version's proof, of several servers' the least certain one."""
        proofs = self.proofs(name).values()
        if not proofs:
            return {}
        return min(proofs, key=lambda proof: (proof.decided, -proof.lacking)).metrics()

    async def publish(self, weights: Weights, probe: Probe) -> None:
        """Have the servers serve these weights with proof. One is enough: another that restarts
        proves them before it samples.

        Raises RunError if none does so within ``wait_seconds`` or ``attempts``, and at once if one
        serves something else.
        """
        call = self.call(weights.name)
        while True:
            began = time.monotonic()
            near = [s for url, s in self.servers.items() if url not in self._lost]
            found = await all_of(
                self._try_ready(server, weights, probe) for server in near or self.servers.values()
            )
            call.spent += time.monotonic() - began
            errors = [error for error in found if error is not None]
            if len(errors) < len(found):
                return
            if near and len(near) < len(self.servers):
                continue  # the others are tried before any pause
            call.attempts += 1
            pause = call.next_pause(errors[0])
            if pause is None:
                raise self.final_error(call, errors[0], RunError)
            await call.sleep(pause)

    async def _try_ready(
        self, server: PolicyServer, weights: Weights, probe: Probe
    ) -> RequestError | None:
        try:
            await server.ready(weights, probe)
        except RequestError as error:
            self._lost.add(server.url)
            self.counters.role(ROLE).lost(server.url, error.kind, time.monotonic(), id(server))
            if error.final:
                raise RunError(f"policy.vllm: {error.message}") from None
            return error
        self.answered(server.url)
        self.counters.role(ROLE).answered(server.url)
        return None


async def check_servers(
    section: PolicySection, model: str, adapter: Path | None = None
) -> list[str]:
    """Return the problems that keep the servers from being used, one line each. ``adapter``: see
    :meth:`PolicyServer.check`."""
    fleet = PolicyFleet(section, model)
    try:
        found = await all_of(server.check(adapter) for server in fleet.servers.values())
    finally:
        await fleet.aclose()
    return [problem for problems in found for problem in problems]
