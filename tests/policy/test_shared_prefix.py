"""Attention over shared prefixes, and what the shared path computes."""

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
import torch
from examples import up_to
from hypothesis import given, strategies as st
from tiny_policy import ARCHITECTURES, random_groups, tiny_policy
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flowright.config.grpo import GrpoSection
from flowright.core.errors import ConfigError, RunError
from flowright.grpo.batch import Group, Trained
from flowright.grpo.learner import Learner
from flowright.grpo.selfcheck import check_sampler, check_sharing
from flowright.policy.prefix.attention import Pass, PrefixBlock, attend, stacks_of
from flowright.policy.prefix.decoding import SharedDecoding, shared_decoding
from flowright.policy.prefix.kept import Kept
from flowright.policy.prefix.kernels import (
    QKV,
    Attended,
    CpuFlashKernel,
    CudaFlashKernel,
    Kernel,
    Parts,
    PlainKernel,
    kernel_for,
    segments_of,
)
from flowright.policy.prefix.tree import SHORTEST_TEMPLATE, chunks, shared_length

HEADS, KV_HEADS, SIZE = 4, 2, 8


def tensors(seed: int, count: int, *shape: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(count)]
    return [tensor.requires_grad_() for tensor in made]


class PackedKernel(CudaFlashKernel):
    """Computes what the operators of GPUs do for texts one behind the other, text by text."""

    def forward(self, qkv: QKV, causal: bool, scale: float, parts: Parts = None) -> Attended:
        if parts is None:
            return PlainKernel().forward(qkv, causal, scale)
        each = [PlainKernel().forward(one, causal, scale) for _, one in self._each(qkv, parts)]
        out, lse = zip(*each, strict=True)
        return torch.cat(out, dim=1), torch.cat(lse, dim=1)

    def backward(
        self, grad: Tensor, qkv: QKV, merged: Attended, causal: bool, scale: float, parts: Parts
    ) -> QKV:
        found: list[QKV] = []
        for at, one in self._each(qkv, parts):
            others = (merged[0][:, at], merged[1][:, at])
            dq, *rest = PlainKernel().backward(grad[:, at], one, others, causal, scale, None)
            dk, dv = (x.unflatten(0, (len(qkv[1]), -1)).sum(dim=1) for x in rest)
            found.append((dq, dk, dv))
        dq, dk, dv = (torch.cat(some, dim=1) for some in zip(*found, strict=True))
        return dq, dk, dv

    def _each(self, qkv: QKV, parts: Parts) -> list[tuple[slice, QKV]]:
        assert parts is not None
        q, k, v = qkv
        k, v = (x.repeat_interleave(len(q) // len(k), dim=0) for x in (k, v))
        at, keys = (
            [slice(*pair) for pair in pairwise(offsets.tolist())]
            for offsets in (parts.queries, parts.keys)
        )
        if parts.seen is not None:
            counts = parts.seen.tolist()
            keys = [slice(j.start, j.start + n) for j, n in zip(keys, counts, strict=True)]
        return [(i, (q[:, i], k[:, j], v[:, j])) for i, j in zip(at, keys, strict=True)]


@up_to(60)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    st.lists(st.integers(1, 7), max_size=3),
    st.integers(0, 2**31),
    st.sampled_from([PlainKernel(), CpuFlashKernel(), PackedKernel()]),
)
def test_it_is_attention_with_a_mask(
    lengths: list[int], prefixes: list[int], seed: int, kernel: Kernel
) -> None:
    """Against the public operator with keys repeated and a mask written out, gradients included."""
    dtype = torch.float32
    spans = [(sum(lengths[:i]), sum(lengths[: i + 1])) for i in range(len(lengths))]
    count = spans[-1][1]
    # The queries before it see half of each prefix, those after it all or the other half.
    cut = seed % (count + 1)
    q = tensors(seed, 1, HEADS, count, SIZE, dtype=dtype)[0]
    own = tensors(seed + 1, 2, KV_HEADS, count, SIZE, dtype=dtype)
    shared = [tensors(seed + 2 + n, 2, KV_HEADS, n, SIZE, dtype=dtype) for n in prefixes]
    mask = torch.zeros(count, count + sum(prefixes), dtype=torch.bool)
    for start, stop in spans:
        mask[start:stop, start:stop] = True
    mask[:, :count].tril_()
    blocks, offset = [], count
    for number, length in enumerate(prefixes):
        half = max(1, length // 2)
        first = half % length if number % 2 else 0  # of keys that lie behind those seen before
        ranges = ((0, cut, 0, half), (cut, count, first, length))
        for start, stop, first, last in ranges:
            if stop > start:
                blocks.append(PrefixBlock(start, stop, number, first, last))
                mask[start:stop, offset + first : offset + last] = True
        offset += length
    tree = Pass(spans, blocks, [[(k, v)] for k, v in shared])
    out = attend(q, (own[0], own[1]), tree, 0, SIZE**-0.5, kernel)

    times = HEADS // KV_HEADS
    keys, values = (
        torch.cat([own[i], *(pair[i] for pair in shared)], dim=1).repeat_interleave(times, dim=0)
        for i in (0, 1)
    )
    expected = scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    leaves = [q, *own, *(x for pair in shared for x in pair)]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    found = torch.autograd.grad(out, leaves, weights)
    wanted = torch.autograd.grad(expected, leaves, weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class DecodingOfGpus(SharedDecoding):
    """Decodes with the kernel above, whatever would be chosen."""

    @property
    def _kernel(self) -> Kernel:
        return PackedKernel()

    @_kernel.setter
    def _kernel(self, chosen: Kernel) -> None:
        assert isinstance(chosen, CpuFlashKernel)


def test_prompts_packed_for_one_call_are_attended_to_as_one_by_one() -> None:
    """While rows end, the first prompt's all, and another prompt joins."""
    policy = tiny_policy()
    prompts = [[*range(50, 80), *range(90, 91 + length)] for length in (1, 5, 3)]
    with torch.inference_mode(), shared_decoding(policy, prompts, Kept(0)) as made:
        assert isinstance(made, partial)
        found = []
        for kind in (SharedDecoding, DecodingOfGpus):
            decoding = kind(*made.args, 2, 6, 8, 40)
            logits = [decoding.join(prompts[:2]), decoding.step(torch.tensor([5, 6, 7, 8]))]
            decoding.keep([1, 2, 3])
            logits += [decoding.join(prompts[2:]), decoding.step(torch.tensor([9, 5, 6, 7, 8]))]
            decoding.keep([1, 2, 3])
            logits += [decoding.step(torch.tensor([5, 6, 7])) for _ in range(2)]
            found.append(torch.cat(logits))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert len(found[0]) == 4 + 4 + 2 + 5 + 3 + 3


def test_texts_of_like_length_share_a_stack() -> None:
    stacks = stacks_of([(0, 4), (4, 4), (4, 7), (7, 9), (9, 13)], torch.device("cpu"))
    assert [stack.index.tolist() for stack in stacks] == [
        [[0, 1, 2, 3], [9, 10, 11, 12], [4, 5, 6, 6]],
        [[7, 8]],
    ]
    assert [sorted(stack.tokens.tolist()) for stack in stacks] == [
        [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12],
        [7, 8],
    ]


def test_texts_of_one_length_are_taken_as_they_lie() -> None:
    runs = [
        [stack.run for stack in stacks_of(spans, torch.device("cpu"))]
        for spans in ([(0, 4), (4, 8)], [(2, 4)], [(0, 4), (5, 9)], [(0, 4), (4, 7)])
    ]
    assert runs == [[slice(0, 8)], [slice(2, 4)], [None], [None]]


def test_gradients_of_prefixes_add_up_in_their_accumulators() -> None:
    q, *own = (x.detach() for x in tensors(0, 3, KV_HEADS, 6, SIZE, dtype=torch.float32))
    prefix = tensors(1, 2, KV_HEADS, 5, SIZE, dtype=torch.float32)
    accumulators = [torch.ones_like(x) for x in prefix]
    q.requires_grad_()
    for adding in (False, True):
        tree = Pass(
            [(0, 3), (3, 6)],
            [PrefixBlock(0, 6, 0, 0, 5)],
            [[(prefix[0], prefix[1])]],
            [[(accumulators[0], accumulators[1])]] if adding else (),
        )
        attend(q, (own[0], own[1]), tree, 0, 1.0).square().sum().backward()
    for leaf, accumulator in zip(prefix, accumulators, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(accumulator, 1 + leaf.grad)


def test_the_kernel_fits_the_tensor() -> None:
    assert isinstance(kernel_for(torch.zeros(1)), CpuFlashKernel)
    assert isinstance(kernel_for(torch.zeros(1, dtype=torch.bfloat16)), CpuFlashKernel)
    assert isinstance(kernel_for(torch.zeros(1, dtype=torch.float64)), PlainKernel)


def test_the_kernel_for_gpus_is_called_as_its_operators_want() -> None:
    """On tensors without contents: shapes and types, not numbers."""
    q, k = (torch.empty(8, n, 64, dtype=torch.bfloat16, device="meta") for n in (10, 20))
    kernel = CudaFlashKernel()
    out, lse = kernel.forward((q, k, k), False, 0.125)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (
        q.shape,
        torch.bfloat16,
        (8, 10),
        torch.float32,
    )
    strided = torch.empty(8, 30, 64, dtype=torch.bfloat16, device="meta")[:, :20]  # as cached
    assert kernel.forward((q, strided, strided), False, 0.125)[0].shape == q.shape
    shared, parts = k[:2], segments_of([4, 6], [15, 5], torch.device("meta"))
    out, lse = kernel.forward((q, shared, shared), False, 0.125, parts)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (8, 10), torch.float32)
    gradients = kernel.backward(out, (q, shared, shared), (out, lse), False, 0.125, parts)
    assert [gradient.shape for gradient in gradients] == [q.shape, shared.shape, shared.shape]


def test_offsets_of_texts_one_behind_the_other() -> None:
    parts = segments_of([2, 1], [5, 7], torch.device("cpu"))
    assert (parts.queries.tolist(), parts.keys.tolist()) == ([0, 2, 3], [0, 5, 12])
    assert (parts.queries.dtype, parts.most_queries, parts.most_keys) == (torch.int32, 2, 7)
    assert segments_of([1, 1], [5, 7], torch.device("cpu")).most_queries == 2


# What is computed.


@pytest.mark.parametrize(
    ("prompts", "length"),
    [
        ([[1] * 40 + [2], [1] * 40 + [3]], 40),
        ([[1] * 40, [1] * 40], 39),  # the last token stays with its prompt
        ([[1] * 40, [1] * 60], 39),
        ([[1] * 15 + [2, 3], [1] * 15 + [4, 5]], 0),  # not worth while
        ([[1] * 40], 0),
        ([[2, *[1] * 40], [3, *[1] * 40], [2, *[1] * 40]], 0),
        ([[1] * 30 + [9], [1] * 20 + [7] * 20, [1] * 30 + [8]], 20),
    ],
)
def test_what_all_prompts_begin_with(prompts: list[list[int]], length: int) -> None:
    assert SHORTEST_TEMPLATE == 16
    assert shared_length(prompts) == length


def computed(groups: Sequence[Group], budget: int) -> list[int]:
    """The tokens of each forward pass, and that every completion was given once."""
    policy = tiny_policy()
    passes: list[int] = []
    embed = policy.causal_lm.get_input_embeddings()
    handle = embed.register_forward_hook(lambda *_: passes.append(_[2].shape[1]))
    lengths = [len(ids) for group in groups for ids in group.completions]
    seen: list[int] = []
    for hidden_N, numbers in chunks(policy, groups, budget, sharing=True):
        seen.extend(numbers)
        assert hidden_N.shape[0] == sum(lengths[number] for number in numbers)
        hidden_N.sum().backward()
    handle.remove()
    assert sorted(seen) == list(range(len(lengths)))
    return passes


def test_every_token_of_a_prefix_is_computed_once() -> None:
    template = list(range(100, 130))
    groups = [
        Group([*template, *g.prompt_ids], g.samples)
        for g in random_groups(0, [(5, [3, 1, 4]), (7, [2, 2])])
    ]
    # The last token of a text predicts nothing, so it is no input: 2 + 0 + 3 + 1 + 1.
    assert computed(groups, 1000) == [30, 5 + 7, 7]
    # Prompts and texts by 8 at a time, a text by its whole length.
    assert computed(groups, 8) == [30, 5, 2 + 0 + 3, 7, 1 + 1]
    assert computed(groups[:1], 1000) == [35, 5]
    single = Group(groups[0].prompt_ids, [Trained([id_], [-1.0], 1.0) for id_ in (5, 6)])
    assert computed([single], 1000) == [35], "texts of one token need the prompt alone"


@pytest.mark.parametrize("sharing", [True, False])
def test_who_leaves_early_leaves_the_model_as_it_was(sharing: bool) -> None:
    policy, groups = tiny_policy(), random_groups(0, [(5, [3, 4, 5]), (30, [4, 6, 7])])
    config = policy.causal_lm.config
    before = config._attn_implementation
    for _ in chunks(policy, groups, 8, sharing):
        assert (config._attn_implementation == before) is not sharing
        break
    assert config._attn_implementation == before
    with pytest.raises(RuntimeError, match="in the middle"):
        for hidden_N, _ in chunks(policy, groups, 8, sharing):
            hidden_N.sum().backward()
            raise RuntimeError("in the middle")
    assert config._attn_implementation == before
    # What was left is not in the way of the next.
    for parameter in policy.trainable():
        parameter.grad = None
    check_sharing(policy, GrpoSection())


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_chunk_has_gone_before_the_next_is_computed(
    gradient_checkpointing: bool, sharing: bool
) -> None:
    """Its hidden states, and with them its graph, when the caller has done with them."""
    policy = tiny_policy(gradient_checkpointing=gradient_checkpointing)
    groups = random_groups(0, [(5, [3, 4, 5]), (30, [4, 6, 7])])
    gone: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    embed = policy.causal_lm.get_input_embeddings()
    handle = embed.register_forward_hook(
        lambda *_: alive.append(sum(one() is not None for one in gone))
    )
    for hidden_N, _ in chunks(policy, groups, 8, sharing):
        gone.append(weakref.ref(hidden_N))
        hidden_N.sum().backward()
        del hidden_N
    handle.remove()
    assert len(gone) > 2 and not any(alive)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_nothing_of_an_update_stays_in_memory(gradient_checkpointing: bool) -> None:
    def passes() -> int:
        gc.collect()
        return sum(type(one) is Pass for one in gc.get_objects())

    policy = tiny_policy(gradient_checkpointing=gradient_checkpointing)
    learner = Learner(policy, GrpoSection(micro_batch_tokens=16), 1.0, 0)
    before = passes()
    learner.update(random_groups(0, [(5, [3, 4, 5]), (30, [4, 6, 7])]), 1, 8)
    assert passes() == before


# The self-check.


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("trained", [True, False])
def test_models_pass_the_self_check(architecture: str, trained: bool) -> None:
    policy = tiny_policy(architecture, trained=trained)
    check_sharing(policy, GrpoSection())
    assert all(parameter.grad is None for parameter in policy.trainable())


def test_a_model_that_attends_otherwise_is_refused() -> None:
    policy = tiny_policy("sliding")
    with pytest.raises(ConfigError, match=r"sliding_attention.*prefix_sharing: false"):
        check_sharing(policy, GrpoSection())
    check_sharing(policy, GrpoSection(prefix_sharing=False))
    check_sampler(policy, GrpoSection(prefix_sharing=False), 1.0)


def test_a_path_that_computes_something_else_ends_the_run() -> None:
    policy = tiny_policy()
    layer = policy.causal_lm.model.layers[0].self_attn

    def wrong(module: object, arguments: object, keywords: dict, output: tuple) -> tuple:
        return (output[0] * 1.5, *output[1:]) if "tree" in keywords else output

    handle = layer.register_forward_hook(wrong, with_kwargs=True)
    with pytest.raises(RunError, match="gradients differ from the plain path's"):
        check_sharing(policy, GrpoSection())
    handle.remove()


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_sampler_passes_the_self_check(architecture: str, dtype: str, sharing: bool) -> None:
    check_sampler(tiny_policy(architecture, dtype=dtype), GrpoSection(prefix_sharing=sharing), 0.8)


def test_a_sampler_that_computes_something_else_ends_the_run() -> None:
    policy = tiny_policy()
    layer = policy.causal_lm.model.layers[0].self_attn

    def wrong(module: object, arguments: object, keywords: dict, output: tuple) -> tuple:
        decoding = isinstance(keywords["tree"], SharedDecoding)
        return (output[0] * 1.5, *output[1:]) if decoding else output

    handle = layer.register_forward_hook(wrong, with_kwargs=True)
    with pytest.raises(RunError, match=r"sampled tokens differ .*prefix_sharing: false"):
        check_sampler(policy, GrpoSection(), 1.0)
    handle.remove()
