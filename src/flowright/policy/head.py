"""Heads: hidden states to logits, to the log-probabilities of given tokens without keeping any
logits, or to a score.

A language model head is frozen, so its only gradient goes to the hidden states, and is found while
the logits of a chunk exist: the backward pass does not read the vocabulary again. The score is
that of transformers' AutoModelForSequenceClassification with one label, so that what is saved loads
there, in peft and in servers that know such models.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from flowright.core.errors import ConfigError

LOGITS_AT_ONCE = {"cpu": 2**20, "cuda": 2**28}
"""Numbers in the logits that exist at once, in two copies: 4 MB each in float32, which a CPU's
cache still holds, or 1 GB."""

LEAST_ROWS = 64
"""Least rows of logits at once: with fewer, the vocabulary's weights are read too often."""

LEAST_ROWS_IN_HALF = 256
"""The same on a CPU that turns the weights into float32 each time: an update of SmolLM2-135M took
9.8 s with 256 rows and 12.2 s with 64."""

VOCABULARY_AT_ONCE = 8192
"""Rows of a head in half precision that a CPU turns into float32 at once."""

_PROBE = range(5, 21)
_TOLERANCE = {torch.float32: 1e-3}
_TOLERANCE_IN_HALF = 0.02
_CAPS = ("final_logit_softcapping", "logits_soft_cap")


def rows_at_once(vocab_size: int, device: str, in_half: bool) -> int:
    """Return the tokens whose logits exist at once, on a device of type "cpu" or "cuda"."""
    least = LEAST_ROWS_IN_HALF if in_half and device == "cpu" else LEAST_ROWS
    return max(least, LOGITS_AT_ONCE[device] // vocab_size)


@dataclass(frozen=True, slots=True)
class Head:
    """A frozen language model head: the logits of a hidden state h are ``scale`` W h.

    ``weight`` [vocab_size, hidden_size]. ``in_float32``: logits are not rounded to the weights'
    precision. A token's log-probability is off by as much as its logit, and in bfloat16 a logit of
    20 is off by up to 0.06; see ScaleRL (arXiv 2510.13786) on what that costs.
    """

    weight: Tensor
    scale: float = 1.0
    in_float32: bool = True

    def logits(self, hidden_N: Tensor) -> Tensor:
        """Return float32 [N, vocab_size] of hidden states [N, hidden_size]."""
        logits = self._products(hidden_N)
        return logits if self.scale == 1 else logits.mul_(self.scale)

    def _products(self, hidden_N: Tensor) -> Tensor:
        if hidden_N.dtype == torch.float32 or not self.in_float32:
            return (hidden_N @ self.weight.T).float()
        if hidden_N.device.type == "cuda":  # half-precision factors, a float32 sum
            return torch.mm(hidden_N, self.weight.T, out_dtype=torch.float32)
        hidden = hidden_N.float()
        return torch.cat(
            [hidden @ w.float().T for w in self.weight.split(VOCABULARY_AT_ONCE)], dim=1
        )

    def logprobs(
        self, hidden_N: Tensor, target_N: Tensor, temperature: float, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each target and the entropy of its distribution (nats),
        float32 [N].

        ``hidden_N`` [N, hidden_size]; logits are divided by the temperature. Gradients flow to
        ``hidden_N``, those of the entropy only ``with_entropy``: they cost one more product with
        the vocabulary.
        """
        if self.weight.requires_grad:
            raise ValueError("the head is trained: its gradient is not computed here")
        needs = hidden_N.requires_grad and torch.is_grad_enabled()
        logprobs, entropy = _Logprobs.apply(
            hidden_N, self, target_N, temperature, needs, with_entropy
        )
        return logprobs, entropy


class _Logprobs(torch.autograd.Function):
    """With z = s W h / t, p = softmax(z), L = log p and H = -sum p L:

    dL_y / dh = s ((1_y - p) W) / t        dH / dh = -s ((p (L + H)) W) / t
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_N: Tensor,
        head: Head,
        target_N: Tensor,
        temperature: float,
        needs_grad: bool,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, slopes, bends = [], [], [], []
        weight, factor = head.weight, -head.scale / temperature
        device = "cpu" if hidden_N.device.type == "cpu" else "cuda"
        size = rows_at_once(len(weight), device, weight.dtype != torch.float32)
        for hidden, target in zip(hidden_N.split(size), target_N.split(size), strict=True):
            # z less its largest, so that no exp overflows; exp(z) is p times its sum.
            z = head.logits(hidden)
            if temperature != 1:
                z /= temperature
            z -= z.amax(dim=-1, keepdim=True)
            exps = z.exp()
            total = exps.sum(dim=-1)
            log_total = total.log()
            logprobs.append(z.gather(1, target[:, None])[:, 0] - log_total)
            if not with_entropy:  # nothing reads z again
                z *= exps
            weighed = (exps * z if with_entropy else z).sum(dim=-1)
            entropy = log_total - weighed / total
            entropies.append(entropy)
            if not needs_grad:
                del z, exps  # before the next logits are made
                continue
            p = exps.div_(total[:, None])
            del exps
            if with_entropy:
                bent = p * z.add_((entropy - log_total)[:, None])
                bends.append((bent.to(weight.dtype) @ weight).mul_(factor))
                del bent
            del z
            # Less 1 in float32, then one product. For a confident token W_y and p W are nearly the
            # same: what two products in bfloat16 differ by would be their rounding.
            p.scatter_add_(1, target[:, None], p.new_full((len(p), 1), -1.0))
            slopes.append((p.to(weight.dtype) @ weight).mul_(factor))
            del p
        ctx.save_for_backward(*(torch.cat(x) for x in (slopes, bends) if x))
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope, *bend = ctx.saved_tensors
        found = grads[0][:, None].to(slope.dtype) * slope
        if bend:
            found = found + grads[1][:, None].to(slope.dtype) * bend[0]
        return found, None, None, None, None, None


def head_of(causal_lm: Any, in_float32: bool) -> Head:
    """Return a model's head, compared with the model's own logits of a few tokens. Some families
    multiply them by a constant (Granite, Cohere, Falcon-H1), the head's scale; raises ConfigError
    for a model that does anything else."""
    name = type(causal_lm).__name__
    caps = [key for key in _CAPS if getattr(causal_lm.config, key, None)]
    if caps:
        raise ConfigError(f"strategy_model: {name} caps its logits ({caps[0]}), {_UNKNOWN}")
    weight = causal_lm.get_output_embeddings().weight
    ids = torch.tensor([[token % len(weight) for token in _PROBE]], device=weight.device)
    with torch.no_grad():
        own = causal_lm(input_ids=ids, use_cache=False).logits[0].float()
        hidden = causal_lm.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        ours = Head(weight).logits(hidden)
    scale = float((own * ours).sum() / ours.square().sum())
    tolerance = _TOLERANCE.get(weight.dtype, _TOLERANCE_IN_HALF)
    gap = float((own - scale * ours).abs().max() / own.abs().max())
    if not gap <= tolerance:  # nan, too
        raise ConfigError(
            f"strategy_model: {name}'s logits are not its last hidden state times its head (they "
            f"differ by {gap:.1e} of the largest, limit {tolerance:g}), {_UNKNOWN}"
        )
    return Head(weight, 1.0 if abs(scale - 1) <= tolerance else scale, in_float32)


_UNKNOWN = "which is not known here: choose another strategy_model, such as Qwen or Llama"


SCALAR = "score"
"""Name of the scoring row among the model's modules."""


@dataclass(frozen=True, slots=True)
class ScalarHead:
    """A trained row, in float32 for every model, which scores a text by the hidden state of its
    last token."""

    row: nn.Module

    def scores(self, hidden_S: Tensor) -> Tensor:
        """Return float32 [S] of hidden states [S, hidden_size]."""
        return self.row(hidden_S.float())[:, 0]


def prepare_scalar(base: Any, tokenizer: PreTrainedTokenizerBase, fresh: bool) -> None:
    """Prepare a model's row for training. A ``fresh`` one is zero: before training every text has
    the same score. Raises ConfigError for a model without one."""
    row = getattr(base, SCALAR, None)
    if not isinstance(row, nn.Linear) or row.out_features != 1:
        raise ConfigError(
            f"policy.head: {type(base).__name__} has no module `{SCALAR}` with one output; choose "
            "another strategy_model, such as Qwen or Llama"
        )
    row.float()
    if fresh:
        with torch.no_grad():
            row.weight.zero_()
    if base.config.pad_token_id is None:  # by which transformers finds a text's last token
        pad = tokenizer.pad_token_id
        base.config.pad_token_id = tokenizer.eos_token_id if pad is None else pad
