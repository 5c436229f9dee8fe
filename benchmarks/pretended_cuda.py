"""A pretended CUDA device, and a record of the work that it would get.

Its tensors are PyTorch's meta tensors, which have shapes, types and storages without contents.
While :func:`pretended` is active they report the device ``cuda:0``, so that code chooses its GPU
paths; tensors on the CPU are real. No value is computed: the record shows kernels, host syncs,
copies, FLOPs, bytes and live memory, never a wrong number. Needs neither a GPU nor a compiler.

A function that torch.compile fuses is one kernel for each number of elements that its results have:
Inductor joins element-wise work over as many elements, and with it sums over rows of up to 8,192.
Run for an H100 without one, its Triton backend (torch 2.13) generates just these kernels from the
functions of flowright.policy.fused and from attention's merge, for 7 to 8,192 rows of Qwen2.5 of
0.5B to 14B. On an H100 (torch 2.11) 871 to 927 kernels and copies ran where 754 were counted:
products of few rows take two.

Not seen: kernels that one operator starts beside its main one, the workspaces of libraries,
fragments of the allocator, and the host's checks of a compiled function's arguments.
"""

import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd.variable import Variable
from torch.fx.experimental import _config as fx_config
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils as foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from flowright.policy.fused import compiled

CUDA = torch.device("cuda", 0)
FLASH_BACKWARD = "_flash_attention_backward"
FUSED = "fused"

_NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "lift_fresh"}
_NO_KERNEL |= {"new_empty_strided", "set_", "_reshape_alias"}
_GATHERS = {"embedding", "index", "index_select", "gather"}
_FILLS = {"fill_", "zero_", "zeros_like", "ones_like", "full_like", "new_zeros", "new_full"}
_WAITS = {"nonzero", "masked_select", "_unique2", "unique_dim", "bincount"}
_BLOCK = 512  # bytes that the caching allocator rounds up to


class Event(NamedTuple):
    """A ``kernel``, or a ``wait`` of the host, a ``pinned`` or ``pageable`` copy to the device, or
    a CPU tensor ``mixed`` among the device's, with the line that caused it."""

    kind: str
    name: str
    site: str
    flops: int = 0
    bytes: int = 0


class Record:
    """Events in order, and the bytes of tensors that are alive. ``answers``: numbers read back
    from the device next; 1 once they are used up."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers: deque[float] = deque()
        self.live = self.peak = 0
        self.peak_site = ""
        self.contents: dict[int, Tensor] = {}  # of copies to the device, by storage
        self.is_fusing = False  # what is run is a part of one kernel
        self._known: dict[int, weakref.ref[Any]] = {}

    def clear(self) -> None:
        """Forget all events, and the peak."""
        self.events.clear()
        self.peak = self.live

    def count(self, kind: str) -> Counter[str]:
        """Return the events of a kind by name and line."""
        return Counter(f"{e.name} at {e.site}" for e in self.events if e.kind == kind)

    def track(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now until it is freed."""
        if self.is_fusing:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // _BLOCK) * _BLOCK
        if key in self._known:
            return

        def freed(_: object) -> None:
            if self._known.pop(key, None) is not None:
                self.live -= size
                self.contents.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self.passing(0)

    def passing(self, size: int) -> None:
        """Count bytes that exist for one kernel alone."""
        if self.live + size > self.peak:
            self.peak, self.peak_site = self.live + size, _site()

    def lengths(self, offsets: Tensor, tokens: int) -> Tensor:
        """Return the lengths of texts by a copy of their offsets to the device or a part of one;
        those that the device computed are taken to be even."""
        whole = self.contents.get(offsets.untyped_storage()._cdata)
        if whole is None:
            texts = len(offsets) - 1
            return torch.full((texts,), tokens // texts)
        return whole.as_strided(offsets.shape, offsets.stride(), offsets.storage_offset()).diff()

    def answer(self) -> float:
        return self.answers.popleft() if self.answers else 1.0


@cache
def _place(file: str) -> str | None:
    """Return the short name of a file whose lines are named as causes; None for others."""
    if "/flowright/" in file:
        return file.rpartition("/flowright/")[2]
    if "/transformers/models/" in file or file.endswith("/transformers/activations.py"):
        return file.rpartition("/")[2]
    return "optimizer" if "/torch/optim/" in file else None


def _site() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _Functions.run_backward.__code__:
            return "autograd"
        if place := _place(frame.f_code.co_filename):
            return place if place == "optimizer" else f"{place}:{frame.f_lineno}"
        frame = frame.f_back
    return "benchmark"


def _is_cuda(device: object) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


class _Functions(TorchFunctionMode):
    """Meta tensors report CUDA, and what is made on CUDA is made on meta."""

    def __init__(self) -> None:
        super().__init__()
        self._instead: dict[Any, Callable[..., Any]] = {
            Tensor.backward: self.run_backward,
            torch.autograd.backward: self.run_backward,
            Tensor.device.__get__: self._device,  # pyright: ignore[reportAttributeAccessIssue]
            Tensor.is_cuda.__get__: lambda x, *_: x.is_meta,  # pyright: ignore[reportAttributeAccessIssue]
            Tensor.is_meta.__get__: lambda x, *_: False,  # pyright: ignore[reportAttributeAccessIssue]
            Tensor.pin_memory: self._pin,
            Tensor.cuda: lambda x, *_, **__: x.to("meta"),
            Tensor.__setitem__: self._set,
            torch.tensor: self._made,
            torch.as_tensor: self._made,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "meta"
        if func is Tensor.to:
            args = ["meta" if _is_cuda(x) else x for x in args]
        return self._instead.get(func, func)(*args, **kwargs)

    def run_backward(self, roots: Any, gradient: Any = None, *_: Any, **named: Any) -> None:
        """Run backward with this mode on, which PyTorch's own would leave."""
        gradient = named.get("grad_tensors", gradient)
        roots = (roots,) if isinstance(roots, Tensor) else tuple(roots)
        grads = [None] * len(roots) if gradient is None else gradient
        grads = [grads] if isinstance(grads, Tensor) else grads
        pairs = zip(roots, grads, strict=True)
        with self:
            found = tuple(torch.ones_like(x) if grad is None else grad for x, grad in pairs)
            Variable._execution_engine.run_backward(
                roots, found, False, False, (), allow_unreachable=True, accumulate_grad=True
            )

    @staticmethod
    def _device(x: Tensor, *_: Any) -> torch.device:
        return CUDA if x.is_meta else x.device

    @staticmethod
    def _pin(x: Tensor, *_: Any, **__: Any) -> Any:
        pinned: Any = x.clone()
        pinned.is_pretended_pinned = True
        return pinned

    @staticmethod
    def _set(x: Tensor, index: Any, value: Any) -> None:
        """Write a number as PyTorch does on CUDA alone: by a tensor on the CPU."""
        if x.is_meta and not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=x.dtype)
        x[index] = value

    @staticmethod
    def _made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        """Make the tensor on the CPU first, as PyTorch does."""
        made = torch.tensor(data, *args, **kwargs)
        return made if device is None else made.to(device)


class _Operators(TorchDispatchMode):
    """Runs operators on shapes alone, and records them."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            given = _tensors(args) + _tensors(kwargs.values())
            ours = any(x.is_meta for x in given)
            device = kwargs.get("device")
            if not ours and (device is None or device.type != "meta"):
                return func(*args, **kwargs)
            name = func._overloadpacket.__name__
            if torch.is_inference_mode_enabled() and func._can_decompose():
                with self:
                    found = func.decompose(*args, **kwargs)
                if found is not NotImplemented:
                    return found
            if name == "_local_scalar_dense":
                self._add("wait", "number read back")
                return torch.tensor(self._record.answer(), dtype=given[0].dtype).item()
            arrives = name == "_to_copy" and not ours
            if name == "_to_copy" and ours and device is not None and device.type == "cpu":
                self._add("wait", "copy to the CPU")
                dtype = kwargs.get("dtype") or given[0].dtype
                return torch.full(given[0].shape, self._record.answer(), dtype=dtype)
            if arrives:
                self._add(_copied(given[0], kwargs.get("non_blocking", False)), "copy")
            elif not all(x.is_meta for x in given):
                self._check(name, args, given)
                args, kwargs = tree_map_only(Tensor, lambda x: x.to("meta"), (args, kwargs))
            self._check_waits(name, args)
            found = func(*args, **kwargs)
            outs = _tensors(found if isinstance(found, tuple | list) else (found,))
            for out in outs:
                self._record.track(out)
            if not (arrives or func.is_view or name in _NO_KERNEL):
                flops = self._flops(func, args, kwargs, found)
                self._add("kernel", name, flops, _bytes(name, given, outs))
            if arrives:
                self._record.contents[found.untyped_storage()._cdata] = given[0]
            if name == FLASH_BACKWARD:  # gradients of queries in float32, of keys for each head
                _, q, k, *_ = given
                self._record.passing(4 * (q.numel() + k.numel() * q.shape[1] // k.shape[1]))
        return found

    def _flops(self, func: Any, args: Sequence[Any], kwargs: Any, found: Any) -> int:
        """Return an operator's FLOPs by PyTorch's formulas, half of them for causal attention."""
        name = func._overloadpacket.__name__
        names = [argument.name for argument in func._schema.arguments]
        named = dict(zip(names, args, strict=False))
        formula = flop_registry.get(getattr(torch.ops.aten, name.rstrip("_")))
        if formula is None:
            return 0
        if named.get("cum_seq_q") is None:
            flops = int(formula(*args, **kwargs, out_val=found))
        else:  # PyTorch would take all texts to be as long as the longest
            lengths = self._record.lengths
            queries = lengths(named["cum_seq_q"], len(named["query"]))
            keys = lengths(named["cum_seq_k"], len(named["key"]))
            scores = named["query"].shape[1] * int((queries * keys).sum())
            flops = (10 if "backward" in name else 4) * named["query"].shape[2] * scores
        return flops // 2 if named.get("is_causal") else flops

    def _add(self, kind: str, name: str, flops: int = 0, moved: int = 0) -> None:
        if not self._record.is_fusing:
            self._record.events.append(Event(kind, name, _site(), flops, moved))

    def _check_waits(self, name: str, args: Sequence[Any]) -> None:
        indexes = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
        if name in _WAITS:
            self._add("wait", name)
        if any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indexes):
            self._add("wait", "index by truth values")

    def _check(self, name: str, args: Sequence[Any], given: Sequence[Tensor]) -> None:
        """Record CPU tensors among the device's; a single number is passed with the kernel."""
        if name.startswith("index_put") and not args[2].is_meta:
            self._add("wait", "number of the CPU written by index")
        for x in given:
            if not x.is_meta and x.dim() and name == "copy_":
                self._add(_copied(x, args[2:] == (True,)), name)
            elif not x.is_meta and x.dim():
                self._add("mixed", name)


def _fused(record: Record, function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """Return the function as kernels of the record, in place of torch.compile's: each writes the
    results of one number of elements, from arguments of no more."""

    def run(*args: Any) -> Any:
        record.is_fusing = True
        try:
            found = function(*args)
        finally:
            record.is_fusing = False
        read, written = (
            [x for x in tree_leaves(t) if isinstance(x, Tensor)] for t in (args, found)
        )
        written = [x for x in written if not any(x is other for other in read)]
        for size in sorted({x.numel() for x in written}, reverse=True):
            parts = [x for x in read if x.numel() <= size]
            moved = sum(map(_size, parts + [x for x in written if x.numel() == size]))
            record.events.append(Event("kernel", f"{FUSED} {function.__name__}", _site(), 0, moved))
        for x in written:
            record.track(x)
        return found

    return run


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [x for x in value if isinstance(x, Tensor)]
    return found


def _copied(x: Any, non_blocking: bool) -> str:
    return "pinned" if non_blocking and hasattr(x, "is_pretended_pinned") else "pageable"


def _bytes(name: str, given: Sequence[Tensor], outs: Sequence[Tensor]) -> int:
    """Return the bytes that a kernel reads and writes, each number once."""
    written = sum(map(_size, outs))
    if name in _GATHERS:
        return 2 * written
    if name in _FILLS or not given:
        return written
    if name.startswith(("index_put", "scatter", "index_copy", "index_fill", "index_add")):
        return 3 * min(map(_size, given[1:]))
    if name == "copy_":
        return sum(map(_size, given))
    return sum(map(_size, given)) + written


def _size(x: Tensor) -> int:
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


@contextmanager
def pretended() -> Iterator[Record]:
    """Yield the record of a pretended H100."""
    record = Record()
    with ExitStack() as stack:
        for name, found in (
            ("is_available", True),
            ("get_device_capability", (9, 0)),
            ("set_device", None),
        ):
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, found=found: found))
        stack.enter_context(patch.object(torch, "compile", partial(_fused, record)))
        compiled.cache_clear()
        stack.callback(compiled.cache_clear)
        # Torch 2.14's optimizers would ask a driver whether a stream is captured.
        current = patch.object(torch.accelerator, "current_accelerator", lambda *_, **__: None)
        stack.enter_context(current)
        # A checkpoint compares devices where this mode is off, too.
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        stack.enter_context(patch.dict(checks, default=lambda x: (x.shape, x.dtype)))
        foreach = foreach_utils._get_foreach_kernels_supported_devices
        name, found = foreach.__name__, [*foreach(), "meta"]
        stack.enter_context(patch.object(foreach_utils, name, lambda: found))
        stack.enter_context(fx_config.patch(meta_nonzero_assume_all_nonzero=True))
        stack.enter_context(_Functions())
        stack.enter_context(_Operators(record))
        yield record
