"""Checks before a run: the shared path gives the plain path's update on this model and machine, and
the sampler draws from the distribution that the learner trains.

The shared path uses kernels that are chosen by device and precision, and a model may attend in ways
that it does not support. So both paths compute one small loss, the plain one with an ordinary head
in float32, and their gradients are compared. Half precision rounds each product, and depth
multiplies that: there, a few layers at a time, both are measured against the plain path in float32.
A layer's output has to show an adapter of one update's size. Then a few tokens are drawn with an
adapter that changes the policy, and their log-probabilities are compared with the learner's.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.core.errors import ConfigError, RunError
from flowright.grpo.batch import Group, Trained, drawn_groups, sample_logprobs, score
from flowright.policy.head import ScalarHead
from flowright.policy.local import LocalSampler
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy
from flowright.policy.prefix.tree import SHORTEST_TEMPLATE, chunks
from flowright.policy.sampling import Sampling
from flowright.policy.tuning import CastWeight, local

TOLERANCE = 1e-3
"""Largest difference of a gradient in float32 over its largest entry."""

WORSE = 2.0
"""In half precision, how many times the plain path's error the shared path's may be; 1.25 at most
was seen of sound models."""

LEAST_ERROR = 0.02
"""Error of a layer's gradients in half precision, over their norm, that is never refused."""

PACKED_ERROR = 0.05
"""Largest difference between the two paths where no float32 can be computed."""

SHARED_BUDGET = 16
"""Tokens at once on the shared path, which cut the completions into several chunks."""

PLAIN_BUDGET = 4096

DRAWN_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Largest difference of a drawn token's log-probability, in nats."""

PROBED_OUTPUTS = 2**20
"""Compared numbers of a layer's output: rounding noise is many times a first update, and small in
the mean over this many."""

PROBED_STEP = 0.01
"""Standard deviation of the noise that moves the policy to compare sampler and learner."""

LEAST_KEPT = 0.5
"""Share of a fresh adapter's effect that a layer has to show."""

_OFF = "set grpo.prefix_sharing: false to train without it"


Comparison = Iterator[tuple[str, float, float]]
"""Text of a comparison, its gap and the limit."""


class Gradients(Protocol):
    """Gradients of one small loss, by the shared path or the plain one."""

    def __call__(self, *, sharing: bool) -> list[Tensor]: ...


def check_sharing(policy: Policy, section: GrpoSection) -> None:
    """Raise ConfigError for a model that the shared path does not support, RunError where the two
    paths disagree."""
    if not section.prefix_sharing:
        return
    kinds = set(getattr(policy.causal_lm.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"grpo.prefix_sharing: this model's attention is {', '.join(sorted(kinds))}, and only "
            f"full attention can be shared; {_OFF}"
        )
    groups = _groups(policy.causal_lm.config.vocab_size)
    gradients = partial(_gradients, policy, groups)
    in_half = policy.causal_lm.dtype != torch.float32
    found = _half_errors(policy, gradients) if in_half else _largest_gap(gradients)
    for what, gap, limit in found:
        if not gap <= limit:  # nan is a disagreement, too
            raise RunError(
                f"grpo.prefix_sharing: {what} by {gap:.1e} (limit {limit:.1e}), so it is wrong on "
                f"this model or machine; {_OFF}"
            )


def _largest_gap(gradients: Gradients) -> Comparison:
    """Compare the paths in float32."""
    plain, shared = gradients(sharing=False), gradients(sharing=True)
    largest = max(float(gradient.abs().max()) for gradient in plain)
    gap = max(float((a - b).abs().max()) for a, b in zip(plain, shared, strict=True))
    yield (
        "gradients differ from the plain path's, over their largest entry,",
        gap / largest,
        TOLERANCE,
    )


def _half_errors(policy: Policy, gradients: Gradients) -> Comparison:
    """Measure both paths against float32, layer by layer, and the first two together. Layers that
    are packed or split among processes have no float32: the paths are compared with each other."""
    depth = len(policy.causal_lm.model.layers)
    exact = policy.gpus == 1 and not policy.quantised
    # Split layers prefetch those below them, so only the first are run without the others.
    spans = [(n, n + 1) for n in range(depth if policy.gpus == 1 else 1)] + [(0, 2)] * (depth > 1)
    for start, stop in spans:
        with _some_layers(policy, start, stop):
            plain, shared = gradients(sharing=False), gradients(sharing=True)
            wanted, limit = plain, PACKED_ERROR
            if exact:
                with _in_float32(policy):
                    wanted = gradients(sharing=False)
                limit = max(LEAST_ERROR, WORSE * _error(plain, wanted))
        place = f"layer {start}" if stop == start + 1 else f"layers {start} to {stop - 1}"
        other = "float32's" if exact else "the plain path's"
        yield f"{place}: gradients differ from {other}", _error(shared, wanted), limit


def _error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the norm of the difference over that of the wanted gradients."""
    pairs = zip(found, wanted, strict=True)
    error = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for b in wanted)
    return math.sqrt(error / size) if size else math.nan


@contextmanager
def _some_layers(policy: Policy, start: int, stop: int) -> Iterator[None]:
    """Run the model on some of its layers alone, right behind the embedding."""
    decoder: Any = policy.causal_lm.model
    layers = decoder.layers
    decoder.layers = layers[start:stop]
    numbered = [
        (module, number)
        for number, layer in enumerate(decoder.layers)
        for module in layer.modules()
        if hasattr(module, "layer_idx")
    ]
    try:
        for module, number in numbered:
            module.layer_idx = number
        yield
    finally:
        decoder.layers = layers
        for module, number in numbered:
            module.layer_idx = start + number


@contextmanager
def _in_float32(policy: Policy) -> Iterator[None]:
    """Compute the model's layers and last norm in float32."""
    decoder: Any = policy.causal_lm.model
    embedding = decoder.get_input_embeddings()
    parts = [module for name, module in decoder.named_children() if module is not embedding]
    weights = [p for part in parts for p in part.parameters() if p.dtype != torch.float32]
    halves = [weight.data for weight in weights]
    casts = [m for part in parts for m in part.modules() if isinstance(m, CastWeight)]
    dtypes = [cast.dtype for cast in casts]
    hook = embedding.register_forward_hook(lambda _, __, output: output.float())
    try:
        for weight in weights:
            weight.data = weight.data.float()
        for cast in casts:
            cast.dtype = torch.float32
        yield
    finally:
        hook.remove()
        for cast, dtype in zip(casts, dtypes, strict=True):
            cast.dtype = dtype
        for weight, half in zip(weights, halves, strict=True):
            weight.data = half


def check_adapter(policy: Policy, learning_rate: float) -> None:
    """Raise RunError where a layer's output hardly shows what an update adds to a fresh adapter:
    products that round between the adapter's share and the base's lose all of it in bfloat16. A
    policy without an adapter is not checked: its weights add up in float32."""
    adapted = _adapted(policy)
    if policy.gpus > 1 or not adapted:
        return  # of several, a layer's weights are gathered for whole passes only
    layer = adapted[0]
    a, b = layer.adapter()
    scale = layer.scaling[layer.active_adapters[0]]
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(b.device)

    def output() -> Tensor:
        return (layer.joint(x)[0][0] if layer.joint is not None else layer(x)).float()

    with torch.no_grad(), _put_back([b]):
        x = random(PROBED_OUTPUTS // b.shape[0], a.shape[1]).to(policy.causal_lm.dtype)
        b.copy_(learning_rate * random(*b.shape).sign())  # as AdamW's first step moves it
        wanted = scale * (x.float() @ a.float().T) @ b.float().T
        change = output()
        b.zero_()
        change -= output()
        size = wanted.square().sum()
        kept = float((change * wanted).sum() / size)
        error = float((change - kept * wanted).square().mean() / size) ** 0.5
    if not kept + 3 * error >= LEAST_KEPT:
        raise RunError(
            f"policy: a layer shows {kept:.0%} ± {error:.0%} of what a first update adds to its "
            "adapter, so small steps would be lost on this machine; set policy.dtype: float32"
        )


def check_sampler(policy: Policy, section: GrpoSection, temperature: float) -> None:
    """Raise RunError where the sampler draws from another distribution than the learner's."""
    prompts = [group.prompt_ids for group in _groups(policy.causal_lm.config.vocab_size)]
    sampler = LocalSampler(policy, decode_batch=8, sharing=section.prefix_sharing)
    with _another_policy(policy):
        drawn = sampler.draw(prompts, 3, Sampling(temperature, 1.0, 6, seed=0))
        groups = drawn_groups(prompts, drawn)
        sampled = torch.tensor([x for group in drawn for s in group for x in s.logprobs])
        scored = torch.cat(score(policy, groups, section, temperature)).cpu()
    gap = float((sampled - scored).abs().max())
    tolerance = _tolerance(policy, DRAWN_TOLERANCE)
    if not gap <= tolerance:
        hint = f"; {_OFF}" if section.prefix_sharing else ""
        raise RunError(
            f"policy: log-probabilities of sampled tokens differ from the learner's by {gap:.1e} "
            f"(limit {tolerance:g}), so the sampler is wrong on this model or machine{hint}"
        )


@contextmanager
def _another_policy(policy: Policy) -> Iterator[None]:
    """Move the policy, since a fresh adapter's second half is 0; without an adapter only norms and
    biases, of which there are few."""
    draw = torch.Generator().manual_seed(0)
    moved = [layer.adapter()[1] for layer in _adapted(policy)]
    moved = moved or [weight for weight in policy.trainable() if weight.ndim == 1]
    with _put_back(moved):
        with torch.no_grad():
            for weight in moved:
                part = local(weight)
                noise = PROBED_STEP * torch.randn(part.shape, generator=draw)
                part.add_(noise.to(part.device))
        policy.gather()
        yield


@contextmanager
def _put_back(weights: Sequence[Tensor]) -> Iterator[None]:
    """Leave weights as they were, bit for bit."""
    before = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)


def _adapted(policy: Policy) -> list[LoraLinear]:
    return [m for m in policy.model.modules() if isinstance(m, LoraLinear)]


def _ordinary_logprobs(policy: Policy, hidden_N: Tensor, chunk: Sequence[Trained]) -> Tensor:
    """Compute :func:`flowright.grpo.batch.sample_logprobs` at temperature 1 by float32 autograd."""
    targets = torch.tensor([t for s in chunk for t in s.token_ids], device=hidden_N.device)
    logits = policy.head.scale * (hidden_N.float() @ policy.head.weight.float().T)
    return logits.log_softmax(dim=-1).gather(1, targets[:, None])


def _direction(hidden_N: Tensor) -> Tensor:
    """A random one, always the same [hidden_size]."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(hidden_N.shape[1], generator=draw).to(hidden_N.device)


def _tolerance(policy: Policy, table: Mapping[torch.dtype, float]) -> float:
    """For the coarser of the adapter's precision and the model's."""
    precisions = (policy.trainable()[0].dtype, policy.causal_lm.dtype)
    return max(table.get(precision, table[torch.float32]) for precision in precisions)


def _groups(vocab_size: int) -> list[Group]:
    """Two prompts that begin alike, with completions of one token and of several."""
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(vocab_size) for _ in range(count)]

    template = ids(SHORTEST_TEMPLATE + 5)
    return [
        Group([*template, *ids(own)], [Trained(ids(n), [0.0] * n, 0.0) for n in lengths])
        for own, lengths in ((3, (1, 9, 4)), (7, (6, 2)))
    ]


def _gradients(policy: Policy, groups: Sequence[Group], *, sharing: bool) -> list[Tensor]:
    """Return the gradients of the summed log-probability, or of a scoring policy's hidden states in
    one direction; earlier gradients are dropped.

    A fresh adapter's second half is 0, so its first half has no gradient: one half is enough.
    """
    samples = [sample for group in groups for sample in group.samples]
    policy.model.zero_grad(set_to_none=True)
    budget = SHARED_BUDGET if sharing else PLAIN_BUDGET
    for hidden_N, numbers in chunks(policy, groups, budget, sharing):
        chunk = [samples[number] for number in numbers]
        if isinstance(policy.output, ScalarHead):  # whose fresh row lets no gradient through
            (hidden_N.float() @ _direction(hidden_N)).sum().backward()
        elif sharing or not (policy.head.in_float32 or hidden_N.dtype == torch.float32):
            sample_logprobs(policy, hidden_N, chunk, 1.0)[0].sum().backward()
        else:
            _ordinary_logprobs(policy, hidden_N, chunk).sum().backward()
    gradients = [(p, p.grad) for p in policy.trainable()]
    policy.model.zero_grad(set_to_none=True)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in gradients]
