"""Sampling in the trainer's own process, from the learner's own weights: draws, waves of rows, and
their ends. The rows' logits come from :mod:`flowright.policy.prefix.decoding`.
"""

import asyncio
import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from flowright.llm.counters import Counters
from flowright.policy.layout import to_device
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.packed import WORTH_STEPS, packed_meanwhile
from flowright.policy.prefix.decoding import (
    PlainDecoding,
    SharedDecoding,
    apart_length,
    plain_decoding,
    shared_decoding,
)
from flowright.policy.prefix.graphs import ReplayedDecoding, replayed_decoding
from flowright.policy.prefix.kept import Kept
from flowright.policy.sampling import Draw, Sample, Sampling

_BLOCK = 256

Decoding = SharedDecoding | ReplayedDecoding | PlainDecoding
Ended = Callable[[int, int, Sample], None]
"""Called with a prompt's place among those of the call, a sample's number, and the sample."""


@dataclass(slots=True)
class _Completion:
    """A completion while it grows: its prompt's place in the call, and its number there."""

    prompt: int
    number: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments and results of a call of :meth:`LocalSampler.draw`. ``apart``: tokens of the
    prompts' template that are held once for all rows."""

    prompts: Sequence[Sequence[int]]
    places: Sequence[int]
    n: int
    sampling: Sampling
    stopping: threading.Event
    ended: Ended
    apart: int
    found: dict[tuple[int, int], Sample] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Wave:
    """Room for rows that are decoded together, with prompts up to the ``longest``, which take up to
    ``held`` tokens in all if they are held apart from their rows."""

    rows: int
    longest: int
    held: float


class LocalSampler:
    """A Sampler that shares its weights with the learner, so it can never serve stale ones.

    ``decode_batch``: rows that are decoded at once; ``tokens``: how many may have keys and values
    then, all if None, and a single prompt's may be more; ``kept``: how many more are kept between
    the turns of attempts. ``trained=False`` samples from the reference, the policy before training.
    ``sharing=False`` decodes with the model's own attention. One call at a time on a policy, and no
    update meanwhile.
    """

    batches = True

    def __init__(
        self,
        policy: Policy,
        decode_batch: int,
        trained: bool = True,
        sharing: bool = True,
        tokens: int | None = None,
        kept: int | None = None,
    ) -> None:
        self._policy = policy
        self._trained = trained
        replays = policy.device.type == "cuda" and policy.gpus == 1 and policy.offload == "none"
        shared = replayed_decoding if replays else shared_decoding
        self._decoding = shared if sharing else plain_decoding
        self._sharing = sharing
        self._decode_batch = decode_batch
        self._tokens = tokens
        self._kept = math.inf if kept is None else kept
        self.version = 0
        self.counters: Sequence[Counters] = ()
        self.metrics: Mapping[str, float] = {}

    async def refresh(self, version: int) -> None:
        await on_model_thread(self._policy.gather)
        self.version = version

    def for_episodes(self, sets: int) -> Draw:
        """Share what may be kept evenly among the sets: a set's numbers depend on no other's."""
        return partial(self.sample, kept=Kept(self._kept / sets))

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
        kept: Kept | None = None,
    ) -> list[list[Sample]]:
        """See :class:`flowright.policy.sampling.Sampler`.

        The event loop runs meanwhile. A cancelled call ends with its next token, and returns when
        the weights are back in place.
        """
        cancelled = threading.Event()
        drawing = asyncio.ensure_future(
            on_model_thread(self.draw, prompts, n, sampling, places, cancelled, kept=kept)
        )
        try:
            return await asyncio.shield(drawing)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([drawing])
            raise

    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
        cancelled: threading.Event | None = None,
        ended: Ended = lambda prompt, number, sample: None,
        kept: Kept | None = None,
    ) -> list[list[Sample]]:
        """Run :meth:`sample` in this thread; once ``cancelled``, its result is not complete.
        ``ended`` is called in this thread for each whole sample, as it ends."""
        if not prompts:
            return []
        kept = kept or Kept(0)
        kept.begin(self.version)
        if n == 1:  # a later turn: a first one of groups may have several calls
            kept.retain(prompts)
        places = range(len(prompts)) if places is None else places
        apart = apart_length(prompts, n) if self._sharing else 0
        stopping = cancelled or threading.Event()
        call = _Call(prompts, places, n, sampling, stopping, ended, apart)
        begun = 0
        with (
            torch.inference_mode(),
            self._policy.decoding(self._trained),
            self._laid_out(sampling) as policy,
            self._decoding(policy, prompts, kept) as decoding,
        ):
            while begun < len(prompts) and not call.stopping.is_set():
                begun = self._decode(call, decoding, begun)
        ids = [(prompt, number) for prompt in range(len(prompts)) for number in range(n)]
        whole = {one: call.found[one] for one in ids if one in call.found}
        return [
            [whole[prompt, number] for number in range(n) if (prompt, number) in whole]
            for prompt in range(len(prompts))
        ]

    def _laid_out(self, sampling: Sampling) -> AbstractContextManager[Policy]:
        lasts = sampling.max_new_tokens >= WORTH_STEPS
        return packed_meanwhile(self._policy) if lasts else nullcontext(self._policy)

    def _wave(self, call: _Call, begun: int) -> _Wave:
        """Return room for as many of the prompts from ``begun`` on as may be decoded together."""
        n, room = call.n, call.sampling.max_new_tokens
        apart = call.apart
        most = math.inf if self._tokens is None else self._tokens - apart
        copies = 1 if self._sharing else n
        count = longest = held = 0
        for prompt in call.prompts[begun:]:
            length = copies * (len(prompt) - apart)
            widest = max(longest, len(prompt))
            # Behind shared prefixes a row of its own has as many places as the longest has.
            even = self._sharing and n == 1
            taken = (count + 1) * (widest - apart) if even else held + length
            full = (count + 1) * n > self._decode_batch or taken + (count + 1) * n * room > most
            if count and full:
                break
            count, longest, held = count + 1, widest, taken
        return _Wave(count * n, longest, max(held, most - count * n * room))

    def _joining(self, call: _Call, wave: _Wave, live: Sequence[_Completion], begun: int) -> int:
        """Return how many of the prompts from ``begun`` on there is room for, in their order."""
        rows = len(live)
        if rows + call.n > wave.rows:
            return 0
        apart = call.apart
        held = sum(len(call.prompts[p]) - apart for p in {row.prompt for row in live})
        for count, prompt in enumerate(call.prompts[begun:]):
            rows, held = rows + call.n, held + len(prompt) - apart
            if rows > wave.rows or len(prompt) > wave.longest or held > wave.held:
                return count
        return len(call.prompts) - begun

    def _decode(
        self,
        call: _Call,
        decoding: Callable[[int, int, int, int], Decoding],
        begun: int,
    ) -> int:
        """Decode prompts from ``begun`` on; a row that ends leaves its place to the next prompts.
        Returns the first prompt that there was no room for."""
        sampling, device = call.sampling, self._policy.device
        wave = self._wave(call, begun)
        made = decoding(call.n, wave.rows, sampling.max_new_tokens - 1, wave.longest)
        live: list[_Completion] = []
        uniforms = torch.empty(0, sampling.max_new_tokens, device=device)
        logits = torch.empty(0)
        fresh = True
        while True:
            count = self._joining(call, wave, live, begun) if fresh or made.joins else 0
            if count:
                some, fresh = slice(begun, begun + count), False
                first = made.join(call.prompts[some])
                logits = torch.cat([logits, first]) if live else first
                drawn = _uniforms(call.places[some], call.n, sampling).to(device)
                uniforms = torch.cat([uniforms, drawn])
                live += [_Completion(p, i) for p in range(some.start, some.stop)
                         for i in range(call.n)]  # fmt: skip
                begun += count
            steps = to_device(torch.tensor([[len(row.tokens)] for row in live]), device)
            tokens, logprobs = _draw(logits, uniforms.gather(1, steps)[:, 0], sampling)
            order = self._going(call, made, live, tokens, logprobs)
            if call.stopping.is_set() or not order:
                return begun
            if len(order) < len(live):
                made.keep(order)
                live = [live[i] for i in order]
                kept = to_device(torch.tensor(order, dtype=torch.long), device)
                tokens, uniforms = tokens[kept], uniforms[kept]
            logits = made.step(tokens)

    def _going(
        self,
        call: _Call,
        made: Decoding,
        live: Sequence[_Completion],
        tokens: Tensor,
        logprobs: Tensor,
    ) -> list[int]:
        """Return the rows that continue behind these tokens, in their new order; the others have
        ended."""
        ends, most = self._policy.end_ids, call.sampling.max_new_tokens
        going: list[int] = []
        drawn = torch.stack([tokens.double(), logprobs.double()]).tolist()  # both are exact
        for place, (row, token, logprob) in enumerate(zip(live, *drawn, strict=True)):
            row.tokens.append(int(token))
            row.logprobs.append(logprob)
            if row.tokens[-1] in ends or len(row.tokens) == most:
                reason = "stop" if row.tokens[-1] in ends else "length"
                text, ids = self._policy.text_of(row.tokens), tuple(row.tokens)
                sample = Sample(ids, tuple(row.logprobs), text, reason, self.version)
                call.found[row.prompt, row.number] = sample
                call.ended(row.prompt, row.number, sample)
                made.remember(place, [*call.prompts[row.prompt], *ids])
            else:
                going.append(place)
        if call.n > 1:
            return going
        # Rows that share no prompt may lie in any order: the last ones take the empty places.
        last = [place for place in going if place >= len(going)]
        places = set(going)
        return [place if place in places else last.pop() for place in range(len(going))]


def _uniforms(places: Sequence[int], n: int, sampling: Sampling) -> Tensor:
    """Return [prompts * n, max_new_tokens] numbers in [0, 1), each sample's from a generator of its
    own. float32 holds their 24 bits exactly: none becomes 1. Zeros at temperature 0."""
    if sampling.temperature == 0:
        return torch.zeros(len(places) * n, sampling.max_new_tokens)
    draws = [random.Random(f"{sampling.seed}/{p}/{i}") for p in places for i in range(n)]
    bits = [[draw.getrandbits(24) for _ in range(sampling.max_new_tokens)] for draw in draws]
    return torch.tensor(bits, dtype=torch.float32) / 2**24


def _draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens [B] and their log-probabilities from logits [B, V] by inverting the cumulative
    distribution at ``uniform`` [B]: one number a token, so that rows share no draws. The logits are
    overwritten: copies of a large vocabulary take longer than the computation."""
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(dim=-1)
        tokens = logprobs.argmax(dim=-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
    if sampling.temperature != 1:
        logits.div_(sampling.temperature)
    likely = None
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, likely = logits.topk(sampling.top_k, dim=-1)
    weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_()
    if sampling.top_p < 1:
        weights = _nucleus(weights / weights.sum(dim=-1, keepdim=True), sampling.top_p)
    drawn, total = _inverse(weights, uniform[:, None])
    tokens = drawn if likely is None else likely.gather(1, drawn)
    return tokens[:, 0], (weights.gather(1, drawn) / total).log()[:, 0]


def _inverse(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place in weights [B, V] up to which more than ``uniform`` [B, 1] of their
    sum lies, never one of weight 0, and the sum, both [B, 1].

    The sums of blocks come first, then those within one block: summing a whole vocabulary token by
    token takes as long as computing it.
    """
    count, zero = weights.shape[-1], weights.new_zeros(())
    whole = count // _BLOCK
    blocks = weights[:, : whole * _BLOCK].unflatten(1, (whole, _BLOCK)).sum(dim=-1)
    rest = weights[:, whole * _BLOCK :].sum(dim=-1, keepdim=True)
    ends = torch.cat([blocks, rest], dim=1).cumsum(dim=1)
    total = ends[:, -1:]
    wanted = torch.minimum(uniform * total, total.nextafter(zero))
    block = torch.searchsorted(ends, wanted, right=True)
    begins = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), zero)
    places = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, places.clamp(max=count - 1)).masked_fill(places >= count, 0)
    sums = inside.cumsum(dim=1)
    # A block's sum and the sum of its parts may differ in their last bit.
    further = torch.minimum(wanted - begins, sums[:, -1:].nextafter(zero))
    place = block * _BLOCK + torch.searchsorted(sums, further, right=True)
    return place.clamp(max=count - 1), total  # of NaN there is no place


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Keep the most likely tokens whose probabilities sum to at least ``top_p`` and renormalise."""
    ordered, order = p.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    dropped = torch.zeros_like(p, dtype=torch.bool).scatter(1, order, before >= top_p)
    kept = p.masked_fill(dropped, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)
