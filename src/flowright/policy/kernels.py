"""Attention with its log-sum-exp, and the gradients of one part of a merged softmax.

The kernels of PyTorch do both, by operators that are private; public operations do the same where
there is none. Merging is :mod:`flowright.policy.attention`'s.
"""

from typing import Protocol

import torch
from torch import Tensor


class Kernel(Protocol):
    """Attention of [heads, queries, size] over [heads, keys, size] with its log-sum-exp
    [heads, queries] in float32, and its gradients from those of a merged softmax."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]: ...

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...


class PlainKernel:
    """By public operations, on any device and in any precision; holds all scores of a part."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        scores = self._scores(q, k, causal, scale)
        lse = scores.logsumexp(dim=-1)
        return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        p = (self._scores(q, k, causal, scale) - lse[..., None]).exp()
        rows = (grad.float() * out.float()).sum(dim=-1, keepdim=True)
        ds = (p * ((grad @ v.mT).float() - rows) * scale).to(q.dtype)
        return ds @ k, ds.mT @ q, p.to(grad.dtype).mT @ grad

    def _scores(self, q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
        scores = (q @ k.mT).float() * scale
        if causal:
            unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(unseen, -torch.inf)
        return scores


class CpuFlashKernel:
    """PyTorch's own blocked kernel for the CPU, whose operators are private."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None], k[None], v[None], 0.0, causal, scale=scale
        )
        return out[0], lse[0]

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The kernel lays its log-sum-exp out as [queries, heads] and reads it so.
        strided = lse.mT.contiguous().mT
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad[None], q[None], k[None], v[None], out[None], strided[None], 0.0, causal,
            scale=scale,
        )  # fmt: skip
        return dq[0], dk[0], dv[0]


class CudaFlashKernel:
    """FlashAttention on NVIDIA GPUs, in half precision; backward as one text of the variable-length
    form. Was not run where this was written: its shapes are tested, not its numbers."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        # A batch of one needs no lengths, which would have to reach the GPU before each call, and
        # takes keys as they lie: decoding does not copy its cache.
        batch = (x.transpose(0, 1)[None] for x in (q, k, v))
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *batch, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=scale
        )
        return out[0].transpose(0, 1), lse[0]

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # a seed, for dropout
        gradients = torch.ops.aten._flash_attention_backward(
            *_tokens_first(grad, q, k, v, out), lse.contiguous(), *_lengths(q, k),
            0.0, causal, unused, unused[0], scale=scale,
        )  # fmt: skip
        dq, dk, dv = (gradient.transpose(0, 1) for gradient in gradients)
        return dq, dk, dv


def _tokens_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """[heads, tokens, size] as [tokens, heads, size]."""
    return tuple(tensor.transpose(0, 1).contiguous() for tensor in tensors)


def _lengths(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """Where the one text begins and ends, and how long it is, for queries and keys."""
    queries, keys = q.shape[1], k.shape[1]
    q_ends = torch.tensor([0, queries], dtype=torch.int32, device=q.device)
    k_ends = torch.tensor([0, keys], dtype=torch.int32, device=q.device)
    return q_ends, k_ends, queries, keys


def kernel_for(q: Tensor) -> Kernel:
    """The fastest kernel for tensors like this one."""
    if q.device.type == "cpu" and q.dtype in (torch.float32, torch.bfloat16):
        return CpuFlashKernel()
    if q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16):
        return CudaFlashKernel()
    return PlainKernel()
