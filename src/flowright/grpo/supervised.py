"""Supervised training of a policy: completions behind their prompts, which are no part of the loss.
The same passes as a GRPO update: a step's prompts, and what they begin with alike, are computed
once, and nothing of shape [tokens, vocab_size] is kept.

What is learned from (workflows, verdicts) and where it comes from is the caller's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flowright.config import SftSection
from flowright.errors import DataError
from flowright.grpo.optimizer import clipped_step, set_rate
from flowright.grpo.schedules import learning_rate
from flowright.llm.chat import Message
from flowright.policy.layout import to_device
from flowright.policy.model import Policy, recomputing
from flowright.policy.prefix.chunks import chunks
from flowright.policy.prompt import render


@dataclass(frozen=True, slots=True)
class Lesson:
    """A prompt and completions to learn behind it, as token ids, each with the weight of its tokens
    in the loss. A :class:`flowright.policy.prefix.chunks.PromptGroup`."""

    prompt_ids: Sequence[int]
    completions: Sequence[Sequence[int]]
    weights: Sequence[float]


def encode_lesson(
    policy: Policy,
    messages: Sequence[Message],
    completions: Sequence[tuple[str, float]],
    max_prompt_tokens: int,
) -> Lesson:
    """Token ids of messages as the policy is asked them, and of (completion, weight) pairs, each
    with the end of its turn. Raises DataError for a tokenizer without an end."""
    tokenizer = policy.tokenizer
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise DataError("strategy_model: its tokenizer has no eos_token, which ends a completion")
    texts = [tokenizer.encode(text, add_special_tokens=False) for text, _ in completions]
    return Lesson(
        render(messages, tokenizer, max_prompt_tokens).token_ids,
        [[*ids, end] for ids in texts],
        [weight for _, weight in completions],
    )


class SupervisedLearner:
    """Owns an optimizer of what is trained. ``budget`` and ``sharing``: as of
    :func:`flowright.policy.prefix.chunks.chunks`."""

    def __init__(self, policy: Policy, section: SftSection, budget: int, sharing: bool) -> None:
        self._policy, self._section = policy, section
        self._budget, self._sharing = budget, sharing
        self._optimizer = torch.optim.AdamW(
            policy.trainable(), lr=section.learning_rate, weight_decay=section.weight_decay
        )

    def update(self, lessons: Sequence[Lesson], step: int) -> dict[str, float]:
        """One optimizer step (the first is 1) on some lessons. The loss is the weighted mean of
        their tokens' negative log-probabilities, in nats; its metrics are under ``sft/``. A step
        whose gradient is not finite leaves the weights as they are and says
        ``sft/skipped_updates``."""
        policy, section = self._policy, self._section
        rate = learning_rate(section, step)
        set_rate(self._optimizer, rate)
        tokens = [ids for lesson in lessons for ids in lesson.completions]
        weights = [weight for lesson in lessons for weight in lesson.weights]
        total = sum(w * len(ids) for w, ids in zip(weights, tokens, strict=True))
        loss_sum = torch.zeros((), dtype=torch.float64, device=policy.device)
        with recomputing(policy):
            for hidden_N, numbers in chunks(policy, lessons, self._budget, self._sharing):
                targets = torch.tensor([token for n in numbers for token in tokens[n]])
                shares = torch.tensor([weights[n] / total for n in numbers for _ in tokens[n]])
                logprobs_N, _ = policy.head.logprobs(
                    hidden_N, to_device(targets, policy.device), temperature=1.0
                )
                loss = -(to_device(shares, policy.device) * logprobs_N).sum()
                loss.backward()
                loss_sum += loss.detach()
                del hidden_N, loss  # not while the next is computed
        norm = clipped_step(self._optimizer, section.max_grad_norm)
        metrics = {
            "sft/loss": float(loss_sum),
            "sft/grad_norm": norm,
            "sft/lr": rate,
            "sft/tokens": float(sum(map(len, tokens))),
            "sft/skipped_updates": float(not math.isfinite(norm)),
        }
        return {name: value for name, value in metrics.items() if math.isfinite(value)}
