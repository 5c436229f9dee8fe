"""Sampling in the trainer's own process, from the learner's own weights.

Each prompt is prefilled once and its key/value cache repeated for its completions; all rows are
decoded together and leave the batch as they finish.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

from flowright.policy.model import Policy, adapter_off, folded
from flowright.policy.sampler import Sample, Sampling


@dataclass(slots=True)
class _Row:
    """A completion while it grows. ``place`` is its index among all rows of the call."""

    place: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False


class LocalSampler:
    """A Sampler that shares its weights with the learner, so it can never serve a stale adapter.

    ``adapter=False`` samples from the base model: the policy before training.
    """

    def __init__(self, policy: Policy, decode_batch: int, adapter: bool = True) -> None:
        self._policy = policy
        self._weights = folded if adapter else adapter_off
        self._decode_batch = decode_batch
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def refresh(self, version: int) -> None:
        self._version = version

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """See :class:`flowright.policy.sampler.Sampler`. A row's draws depend on the seed and on
        its place among the rows, not on when other rows finish."""
        generator = torch.Generator().manual_seed(sampling.seed)
        uniforms = torch.rand(len(prompts), n, sampling.max_new_tokens, generator=generator)
        at_once = max(1, self._decode_batch // n)
        groups: list[list[Sample]] = []
        # A row needs the hidden state of its last token only: no gradients, no [B, T, V] logits.
        with torch.inference_mode(), self._weights(self._policy):
            for start in range(0, len(prompts), at_once):
                stop = start + at_once
                groups += self._decode(prompts[start:stop], n, sampling, uniforms[start:stop])
        return groups

    def _decode(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling, uniforms: Tensor
    ) -> list[list[Sample]]:
        policy = self._policy
        rows = [_Row(place) for place in range(len(prompts) * n)]
        uniforms = uniforms.reshape(len(rows), -1).to(policy.device)
        ends = policy.end_ids
        logits, cache, mask, positions = self._prefill(prompts, n)
        live = rows
        for step in range(sampling.max_new_tokens):
            places = torch.tensor([row.place for row in live], device=policy.device)
            tokens, logprobs = _draw(logits, uniforms[places, step], sampling)
            for row, token, logprob in zip(live, tokens.tolist(), logprobs.tolist(), strict=True):
                row.tokens.append(token)
                row.logprobs.append(logprob)
                row.finished = token in ends
            going = [i for i, row in enumerate(live) if not row.finished]
            if not going or step + 1 == sampling.max_new_tokens:
                break
            if len(going) < len(live):
                keep = torch.tensor(going, device=policy.device)
                cache.batch_select_indices(keep)
                tokens, mask, positions = tokens[keep], mask[keep], positions[keep]
                live = [live[i] for i in going]
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
            positions = positions + 1
            logits = policy.causal_lm(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
        samples = [self._sample(row, ends) for row in rows]
        return [samples[i : i + n] for i in range(0, len(samples), n)]

    def _prefill(
        self, prompts: Sequence[Sequence[int]], n: int
    ) -> tuple[Tensor, DynamicCache, Tensor, Tensor]:
        """Logits [P n, V] of the next token, the cache of P n rows, its mask and last positions."""
        policy = self._policy
        width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) :] = 1
        ids, mask = ids.to(policy.device), mask.to(policy.device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=policy.causal_lm.config)
        logits = policy.causal_lm(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.batch_repeat_interleave(n)
        repeated = (x.repeat_interleave(n, dim=0) for x in (logits, mask, positions[:, -1:]))
        logits, mask, positions = repeated
        return logits, cache, mask, positions

    def _sample(self, row: _Row, ends: Collection[int]) -> Sample:
        kept = [token for token in row.tokens if token not in ends]
        text = self._policy.tokenizer.decode(kept, skip_special_tokens=False)
        assert isinstance(text, str)
        return Sample(
            tuple(row.tokens),
            tuple(row.logprobs),
            text,
            "stop" if row.finished else "length",
            self._version,
        )


def _draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens [B] and their log-probabilities from logits [B, V] by inverting the cumulative
    distribution at ``uniform`` [B]: one number a token, so that rows don't share draws."""
    if sampling.temperature == 0:
        logprobs = logits.float().log_softmax(dim=-1)
        tokens = logprobs.argmax(dim=-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
    logprobs = (logits.float() / sampling.temperature).log_softmax(dim=-1)
    if sampling.top_p < 1:
        logprobs = _nucleus(logprobs, sampling.top_p)
    cumulative = logprobs.exp().cumsum(dim=-1)
    point = uniform[:, None].to(cumulative.dtype) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, point, right=True)[:, 0]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Keep the most likely tokens whose probabilities sum to at least ``top_p`` and renormalise."""
    ordered, order = logprobs.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
    return logprobs.masked_fill(dropped, -torch.inf).log_softmax(dim=-1)
