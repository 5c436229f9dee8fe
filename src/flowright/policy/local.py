"""Sampling in the trainer's own process, from the learner's own weights.

Here are the draws, the waves and the rows' ends; how the rows' logits are computed is
:mod:`flowright.policy.prefix.decoding`'s.
"""

import asyncio
import math
import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache

from flowright.llm.counters import Counters
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.prefix.decoding import SharedDecoding, shared_decoding
from flowright.policy.prefix.tree import shared_length
from flowright.policy.sampler import Sample, Sampling

Ended = Callable[[int, int, Sample], None]
"""Is told a prompt's place among those that were given, a sample's number, and the sample."""


class PlainDecoding:
    """As :class:`flowright.policy.prefix.decoding.SharedDecoding`, with the model's own attention
    and cache, which grows and repeats a prompt for each completion. For models that the other does
    not know, such as those with sliding windows; what ``grpo.prefix_sharing: false`` samples with.
    """

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, room: int) -> None:
        self._decoder, self._head = policy.causal_lm.model, policy.head
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = torch.tensor(prompt)
            mask[index, longest - len(prompt) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        self._cache = DynamicCache(config=policy.causal_lm.config)
        hidden = self._decoder(
            input_ids=ids.to(policy.device),
            attention_mask=mask.to(policy.device),
            position_ids=positions.to(policy.device),
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        logits = self._head.logits(hidden)
        self._cache.batch_repeat_interleave(n)
        repeated = (x.repeat_interleave(n, dim=0) for x in (logits, mask, positions[:, -1:]))
        self.logits, mask, positions = repeated
        self._mask, self._positions = mask.to(policy.device), positions.to(policy.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed a token to each row [rows] and get the logits [rows, vocab_size] of the next one."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self._positions = self._positions + 1
        hidden = self._decoder(
            input_ids=tokens[:, None],
            attention_mask=self._mask,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        return self._head.logits(hidden)

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows go on."""
        going = torch.tensor(rows, device=self._mask.device)
        self._cache.batch_select_indices(going)
        self._mask, self._positions = self._mask[going], self._positions[going]


def _plain_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]]
) -> AbstractContextManager[Callable[[Sequence[Sequence[int]], int, int], PlainDecoding]]:
    """Waves are made by ``(prompts, n, room)``; they share nothing."""
    return nullcontext(partial(PlainDecoding, policy))


@dataclass(slots=True)
class _Completion:
    """A completion while it grows. ``place`` is its index among the rows of its wave."""

    place: int
    tokens: list[int] = field(default_factory=list)
    finished: bool = False


class LocalSampler:
    """A Sampler that shares its weights with the learner, so it can never serve stale ones.

    ``decode_batch``: rows that are decoded at once, and ``tokens`` how many may have keys and
    values then, all if None; a single prompt's may be more.
    ``trained=False`` samples from the reference: the policy before training. ``sharing=False``
    decodes with the model's own attention. One call at a time on a policy, and no update beside it.
    """

    def __init__(
        self,
        policy: Policy,
        decode_batch: int,
        trained: bool = True,
        sharing: bool = True,
        tokens: int | None = None,
    ) -> None:
        self._policy = policy
        self._weights = policy.decoding if trained else policy.reference
        self._decoding = shared_decoding if sharing else _plain_decoding
        self._sharing = sharing
        self._decode_batch = decode_batch
        self._tokens = tokens
        self.version = 0
        self.counters: Sequence[Counters] = ()
        self.metrics: Mapping[str, float] = {}

    async def refresh(self, version: int) -> None:
        self.version = version

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """See :class:`flowright.policy.sampler.Sampler`.

        The event loop goes on meanwhile. A cancelled call ends with its next token, and returns
        when the weights are back in place.
        """
        cancelled = threading.Event()
        drawing = asyncio.ensure_future(
            on_model_thread(self.draw, prompts, n, sampling, places, cancelled)
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
    ) -> list[list[Sample]]:
        """:meth:`sample` in this thread; what it returns once ``cancelled`` is not complete.
        ``ended`` is called in this thread for each sample that is whole, as it ends."""
        if not prompts:
            return []
        policy = self._policy
        places = range(len(prompts)) if places is None else places
        stopping = cancelled or threading.Event()
        groups: list[list[Sample]] = []
        with (
            torch.inference_mode(),
            self._weights(),
            self._decoding(policy, prompts) as decoding,
        ):
            for some in self._waves(prompts, n, sampling.max_new_tokens):
                if stopping.is_set():
                    break
                samples = self._decode(  # the wave is named nowhere else: one in memory at a time
                    decoding(prompts[some], n, sampling.max_new_tokens - 1),
                    _uniforms(places[some], n, sampling),
                    sampling,
                    stopping,
                    _told(ended, some.start, n),
                )
                groups += [samples[i : i + n] for i in range(0, len(samples), n)]
        return groups

    def _waves(self, prompts: Sequence[Sequence[int]], n: int, room: int) -> Iterator[slice]:
        """Prompts that are decoded together, each with ``n`` rows of up to ``room`` tokens."""
        template = shared_length(prompts) if self._sharing else 0
        copies = 1 if self._sharing else n
        held = [copies * (len(prompt) - template) + n * room for prompt in prompts]
        most = math.inf if self._tokens is None else self._tokens - template
        start = rows = tokens = 0
        for place, size in enumerate(held):
            if place > start and (rows + n > self._decode_batch or tokens + size > most):
                yield slice(start, place)
                start, rows, tokens = place, 0, 0
            rows, tokens = rows + n, tokens + size
        yield slice(start, len(prompts))

    def _decode(
        self,
        wave: SharedDecoding | PlainDecoding,
        uniforms_TR: Tensor,
        sampling: Sampling,
        stopping: threading.Event,
        ended: Callable[[int, Sample], None],
    ) -> list[Sample]:
        """The samples of a wave's rows, in their order."""
        device, ends = self._policy.device, self._policy.end_ids
        uniforms_TR = uniforms_TR.to(device)
        logprobs_TR = torch.zeros_like(uniforms_TR)
        live = rows = [_Completion(place) for place in range(uniforms_TR.shape[1])]
        places = torch.arange(len(rows), device=device)
        logits = wave.logits
        for step in range(sampling.max_new_tokens):
            tokens, logprobs = _draw(logits, uniforms_TR[step, places], sampling)
            logprobs_TR[step, places] = logprobs
            for row, token in zip(live, tokens.tolist(), strict=True):
                row.tokens.append(token)
                row.finished = token in ends
            going = [i for i, row in enumerate(live) if not row.finished]
            last = step + 1 == sampling.max_new_tokens
            for row in live:
                if row.finished or last:
                    column = logprobs_TR[: step + 1, row.place].tolist()
                    ended(row.place, self._sample(row, column, ends))
            if not going or last or stopping.is_set():
                break
            if len(going) < len(live):
                wave.keep(going)
                live = [live[i] for i in going]
                kept = torch.tensor(going, device=device)
                tokens, places = tokens[kept], places[kept]
            logits = wave.step(tokens)
        columns = logprobs_TR.T.tolist()
        return [self._sample(r, column, ends) for r, column in zip(rows, columns, strict=True)]

    def _sample(self, row: _Completion, logprobs: Sequence[float], ends: Collection[int]) -> Sample:
        kept = [token for token in row.tokens if token not in ends]
        text = self._policy.tokenizer.decode(kept, skip_special_tokens=False)
        assert isinstance(text, str)
        return Sample(
            tuple(row.tokens),
            tuple(logprobs[: len(row.tokens)]),
            text,
            "stop" if row.finished else "length",
            self.version,
        )


def _told(ended: Ended, first: int, n: int) -> Callable[[int, Sample], None]:
    """Of rows of a wave, whose first prompt is the ``first`` of all."""

    def row_ended(row: int, sample: Sample) -> None:
        ended(first + row // n, row % n, sample)

    return row_ended


def _uniforms(places: Sequence[int], n: int, sampling: Sampling) -> Tensor:
    """[max_new_tokens, prompts * n] numbers in [0, 1), each sample's from a generator of its own.
    With 24 bits, float32 holds them as they are: none becomes 1."""
    draws = [random.Random(f"{sampling.seed}/{p}/{i}") for p in places for i in range(n)]
    bits = [[draw.getrandbits(24) for _ in range(sampling.max_new_tokens)] for draw in draws]
    return torch.tensor(bits, dtype=torch.float32).T / 2**24


def _draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens [B] and their log-probabilities from logits [B, V] by inverting the cumulative
    distribution at ``uniform`` [B]: one number a token, so that rows don't share draws."""
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(dim=-1)
        tokens = logprobs.argmax(dim=-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    likely = None
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, likely = logits.topk(sampling.top_k, dim=-1)
    p = logits.softmax(dim=-1)
    if sampling.top_p < 1:
        p = _nucleus(p, sampling.top_p)
    cumulative = p.cumsum(dim=-1)
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, uniform[:, None] * total, right=True)
    drawn = drawn.clamp(max=logits.shape[-1] - 1)
    tokens = drawn if likely is None else likely.gather(1, drawn)
    return tokens[:, 0], p.gather(1, drawn).log()[:, 0]


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Keep the most likely tokens whose probabilities sum to at least ``top_p`` and renormalise."""
    ordered, order = p.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    dropped = torch.zeros_like(p, dtype=torch.bool).scatter(1, order, before >= top_p)
    kept = p.masked_fill(dropped, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)
