"""Attention with its log-sum-exp, and the gradients of one piece of a merged softmax, by private
operators of PyTorch's kernels or, for other tensors, by public operations.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from flowright.policy.layout import to_device

QKV = tuple[Tensor, Tensor, Tensor]
"""Queries [heads, queries, size], keys and values [heads, keys, size]; or their gradients."""

Attended = tuple[Tensor, Tensor]
"""Outputs [..., size] and the log-sum-exp of their scores [...], float32."""


class Segments(NamedTuple):
    """Offsets of texts that lie one behind the other, int32 [texts + 1] each, and the longest.
    ``seen``: how many of each text's keys are seen, int32 [texts]; all if None."""

    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int
    seen: Tensor | None = None


def segments_of(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Segments:
    """Return the segments of texts with so many queries and keys each."""
    ends = torch.tensor([[0, *queries], [0, *keys]]).cumsum(dim=1, dtype=torch.int32)
    offsets = to_device(ends, device)
    # With one query at most, the operator would take all texts to have one.
    return Segments(offsets[0], offsets[1], max(2, *queries), max(keys))


def segments_of_rows(seen: Tensor, heads: int, queries: int, keys: int) -> Segments:
    """Return the segments of rows of ``heads`` texts each, with so many queries, and places for so
    many ``keys``, the first ``seen`` [rows] of which are. Computed on the device."""
    ends = torch.arange(len(seen) * heads + 1, dtype=torch.int32, device=seen.device)
    counts = seen.int().repeat_interleave(heads)
    return Segments(ends * queries, ends * keys, max(2, queries), keys, counts)


Parts = Segments | None
Seen = Tensor | Segments | None


class Kernel(Protocol):
    """Attention with its log-sum-exp, and its gradients from those of a ``merged`` softmax. Keys
    may have fewer heads, each shared by neighbours, if not causal. ``packs``: takes ``parts``,
    which attend within themselves, and shared keys in any case."""

    packs: bool

    def forward(self, qkv: QKV, causal: bool, scale: float, parts: Parts = None) -> Attended: ...

    def rows(self, qkv: QKV, seen: Seen, scale: float) -> Attended:
        """Attend with few queries each: [rows, heads, queries, size], keys and values [rows, heads,
        keys, size]. ``seen``: a mask [rows, 1, 1, keys] added to the scores, or what
        :func:`segments_of_rows` returns if the kernel packs. Has no gradients."""
        ...

    def backward(
        self, grad: Tensor, qkv: QKV, merged: Attended, causal: bool, scale: float, parts: Parts
    ) -> QKV: ...


def _fold(x: Tensor, k: Tensor) -> Tensor:
    """Fold [H, N, ...] to [heads of k, H / heads of k * N, ...]."""
    return x.reshape(k.shape[0], -1, *x.shape[2:])


class PlainKernel:
    """Public operations, for any device and precision; holds all scores of a piece."""

    packs = False

    def forward(self, qkv: QKV, causal: bool, scale: float, parts: Parts = None) -> Attended:
        q, k, v = qkv
        out, lse = _weighed(self._scores(_fold(q, k), k, causal, scale), v)
        return out.reshape(q.shape), lse.reshape(q.shape[:-1])

    def rows(self, qkv: QKV, seen: Seen, scale: float) -> Attended:
        q, k, v = qkv
        scores = self._scores(q, k, False, scale)
        return _weighed(scores + seen if isinstance(seen, Tensor) else scores, v)

    def backward(
        self, grad: Tensor, qkv: QKV, merged: Attended, causal: bool, scale: float, parts: Parts
    ) -> QKV:
        k, v = qkv[1:]
        q, out, lse, folded = (_fold(x, k) for x in (qkv[0], *merged, grad))
        p = (self._scores(q, k, causal, scale) - lse[..., None]).exp()
        rows = (folded.float() * out.float()).sum(dim=-1, keepdim=True)
        ds = (p * ((folded @ v.mT).float() - rows) * scale).to(q.dtype)
        return (ds @ k).reshape(grad.shape), ds.mT @ q, p.to(grad.dtype).mT @ folded

    def _scores(self, q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
        scores = (q @ k.mT).float() * scale
        if causal:
            unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(unseen, -torch.inf)
        return scores


def _weighed(scores: Tensor, v: Tensor) -> Attended:
    lse = scores.logsumexp(dim=-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


class CpuFlashKernel:
    """PyTorch's own blocked kernel for the CPU, whose operators are private."""

    packs = False

    def forward(self, qkv: QKV, causal: bool, scale: float, parts: Parts = None) -> Attended:
        q, k, v = qkv
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _fold(q, k)[None], k[None], v[None], 0.0, causal, scale=scale
        )
        return out[0].reshape(q.shape), lse[0].reshape(q.shape[:-1])

    def rows(self, qkv: QKV, seen: Seen, scale: float) -> Attended:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *qkv, 0.0, False, attn_mask=seen, scale=scale
        )
        return out, lse

    def backward(
        self, grad: Tensor, qkv: QKV, merged: Attended, causal: bool, scale: float, parts: Parts
    ) -> QKV:
        k, v = qkv[1:]
        q, out, lse, folded = (_fold(x, k) for x in (qkv[0], *merged, grad))
        # The kernel lays its log-sum-exp out as [queries, heads] and reads it so.
        strided = lse.mT.contiguous().mT
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            folded[None], q[None], k[None], v[None], out[None], strided[None], 0.0, causal,
            scale=scale,
        )  # fmt: skip
        return dq[0].reshape(grad.shape), dk[0], dv[0]


class CudaFlashKernel:
    """FlashAttention on NVIDIA GPUs from Ampere on, in half precision, by the operators that
    PyTorch's own ring attention merges pieces with. The tests check its shapes, and
    ``benchmarks/gpu_step.py`` its numbers, on a GPU.

    Without ``parts`` heads go in as a batch: they are contiguous in memory, so nothing is copied.
    """

    packs = True

    def forward(self, qkv: QKV, causal: bool, scale: float, parts: Parts = None) -> Attended:
        if parts is None:
            q, k, v = (x[:, None] for x in qkv)
            out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
                q, k, v, 0.0, causal, False, scale=scale
            )
            return out[:, 0], lse[:, 0]
        q, k, v = (x.transpose(0, 1) for x in qkv)
        *offsets, seen = parts
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, *offsets, 0.0, causal, False, scale=scale, seqused_k=seen
        )
        return out.transpose(0, 1), lse

    def rows(self, qkv: QKV, seen: Seen, scale: float) -> Attended:
        assert isinstance(seen, Segments)
        q, k, v = (x.flatten(0, 2)[None] for x in qkv)  # each head of each row is a text
        out, lse = self.forward((q, k, v), False, scale, seen)
        return out.reshape(qkv[0].shape), lse.reshape(qkv[0].shape[:-1])

    def backward(
        self, grad: Tensor, qkv: QKV, merged: Attended, causal: bool, scale: float, parts: Parts
    ) -> QKV:
        assert parts is not None
        out, lse = merged
        unused = grad.new_empty(0)  # where the random state would be, had we dropout
        grad, q, k, v, out = (x.transpose(0, 1) for x in (grad, *qkv, out))
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            # The kernel reads the log-sum-exp as if it were contiguous, and does not check.
            grad, q, k, v, out, lse.contiguous(), *parts[:4], 0.0, causal, unused, unused,
            scale=scale,
        )  # fmt: skip
        return dq.transpose(0, 1), dk.transpose(0, 1), dv.transpose(0, 1)


def kernel_for(q: Tensor) -> Kernel:
    """Return the fastest kernel for tensors like this one."""
    if q.device.type == "cpu" and q.dtype in (torch.float32, torch.bfloat16):
        return CpuFlashKernel()
    if q.device.type == "cuda" and _cuda_flash_takes(q):
        return CudaFlashKernel()
    return PlainKernel()


def _cuda_flash_takes(q: Tensor) -> bool:
    """Check FlashAttention's limits: precision, head size, and the generation of the GPU."""
    size = q.shape[-1]
    if q.dtype not in (torch.float16, torch.bfloat16) or size % 8 or size > 256:
        return False
    return torch.cuda.get_device_capability(q.device) >= (8, 0)
