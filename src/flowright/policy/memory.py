"""The memory of a run, a GPU's or the machine's, computed from the model's shape and the
configuration without loading anything.

Everything is at its limit: prompts of ``policy.max_prompt_tokens``, completions of
``policy.max_new_tokens`` or attempts of ``policy.max_episode_tokens``, full packs. Tests compare
the sums with what the CPU's allocator counts on small models (``tests/app/test_memory.py``).

For each token of a layer the backward pass keeps, in the model's precision unless noted: the
adapters' inputs (both norms' outputs, attention's, the product of gate and up) and intermediate
values; queries, keys and values, and the log-sum-exp in float32; gate, its activation and up; the
norms' inputs in float32. A layer with gradient checkpointing keeps its input alone, and the above
while it is run backward: the first layers, when the others' is freed. If the layers' own weights
are trained, it also keeps the inputs of the norms' weights and, for each pass, the weights in the
model's precision.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection, PolicySection
from flowright.policy.head import rows_at_once
from flowright.policy.lora import BITS
from flowright.policy.packed import LEAST
from flowright.policy.prefix.decoding import PREFILL_TOKENS
from flowright.policy.tuning import plain_name

FLOAT = 4
BYTES = {"float32": FLOAT, "bfloat16": 2}

GATHERED = 3
"""Layers that are whole on a GPU at once if their weights are split among several: one that
computes, and two in the buffers that the next is gathered in."""

LIBRARIES = 430 * 2**20
"""Bytes of the process on a CPU without a model: Python and its imports. Measured."""

CONTEXT = 2**30
"""Bytes of a process on a GPU without a model: CUDA's context, loaded kernels, workspaces of the
libraries. An estimate, not measured."""

FRAGMENTS = 0.1
"""Share of the peak that the allocator cannot use, added to it. A guess, not measured."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder; ``targets`` are the names of the adapted layers. Without an adapter
    ``own`` weights are trained, and ``rank`` is 0."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    norms_heads: bool
    weights: int  # of the base model
    layered: int  # of these, in the layers
    adapted: int  # of these, under an adapter
    adapter: int
    rank: int
    targets: frozenset[str]
    own: int = 0
    cast: int = 0  # trained weights that each pass has in the model's precision, too
    linear: int = 0  # of the layers' weights, in linear layers
    widest: int = 0  # of these, in the largest

    @property
    def trained(self) -> int:
        """Weights that the optimizer moves."""
        return self.own or self.adapter

    @property
    def kv_numbers(self) -> int:
        """Keys and values of a token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes by purpose: held throughout, and added in each of a step's two phases."""

    held: Mapping[str, int]
    sampling: Mapping[str, int]
    updating: Mapping[str, int]

    @property
    def phases(self) -> dict[str, int]:
        """Bytes of each phase, with those held throughout."""
        held = sum(self.held.values())
        parts = {"sampling": self.sampling, "updating": self.updating}
        return {name: held + sum(part.values()) for name, part in parts.items()}

    @property
    def needed(self) -> int:
        """Bytes that a GPU must have free."""
        return round((1 + FRAGMENTS) * max(self.phases.values()))


def shape_of(causal_lm: nn.Module, section: PolicySection) -> ModelShape:
    """Return the shape of a loaded model, or of one on the meta device."""
    config: Any = causal_lm.config
    full = section.train == "full"
    targets = frozenset(LoraSection().target_modules if full else section.lora.target_modules)
    modules: dict[str, Any] = {n: m for n, m in causal_lm.named_modules() if "lora_" not in n}
    adapted = [] if full else [m for n, m in modules.items() if n.rpartition(".")[2] in targets]
    sizes = [(module.in_features, module.out_features) for module in adapted]
    linear = {  # a packed weight counts by its unpacked size
        f"{name}.weight": module.in_features * module.out_features
        for name, module in modules.items()
        if ".layers." in name and isinstance(module, nn.Linear)
    }
    found = {n: p.numel() for n, p in causal_lm.named_parameters() if "lora_" not in n}
    weights = {plain_name(name): size for name, size in found.items()} | linear
    heads = config.num_attention_heads
    rank = 0 if full else section.lora.rank
    embedded = sum(size for n, size in weights.items() if "embed" in n or "lm_head" in n)
    return ModelShape(
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        norms_heads=any(name.endswith("q_norm") for name in modules),
        weights=sum(weights.values()),
        layered=sum(size for name, size in weights.items() if ".layers." in name),
        adapted=sum(a * b for a, b in sizes),
        adapter=rank * sum(a + b for a, b in sizes),
        rank=rank,
        targets=targets,
        own=sum(weights.values()) - embedded if full else 0,
        linear=sum(linear.values()),
        widest=max(linear.values(), default=0),
    )


def memory_plan(
    shape: ModelShape,
    policy: PolicySection,
    grpo: GrpoSection,
    device: str = "cuda",
    gpus: int = 1,
    rewrites: bool = False,
    samples: bool = True,
    processes: int = 1,
) -> Plan:
    """Plan a step at the limits of the configuration, with the layers' weights split among
    ``gpus`` and gradients added up over ``processes``. ``rewrites``: the chat template changes
    earlier turns, so that the contexts of later ones may be prompts of their own. ``samples``: the
    policy writes, as it may not on fixed data."""
    policy = policy.on(device)
    number = _number(policy)
    trained = FLOAT * math.ceil(shape.own / gpus) or FLOAT * shape.adapter
    optimizer = 2 * trained  # AdamW: two means of each weight's gradient
    held = {
        **({"Python and its libraries": LIBRARIES} if device == "cpu" else {}),
        **({"CUDA context, workspaces": CONTEXT} if device == "cuda" else {}),
        **_base(shape, policy, gpus),
        **({"trained weights": trained} if shape.own else {}),
        **({"adapter": trained} if shape.adapter else {}),
        "optimizer": optimizer,
    }
    prompts = policy
    if rewrites:  # contexts are prompts, as many as fill a pack
        prompts = policy.model_copy(update={"max_prompt_tokens": policy.context_tokens})
        grpo = grpo.model_copy(update={"prompts_per_step": grpo.chunk_tokens})
    is_split = bool(shape.own) and gpus > 1  # and gathered in the model's precision
    cast = replace(shape, cast=0 if is_split else shape.trained)
    update = _shared(cast, prompts, grpo) if grpo.prefix_sharing else _plain(cast, policy, grpo)
    head = _head(shape, _chunk(policy, grpo), number, grpo.entropy_coefficient != 0, device)
    # With several processes a copy of all gradients, once the activations are freed.
    flat = 0 if is_split or processes == 1 else trained
    layer = max(update.pop("one layer, backward"), flat - sum(update.values()))
    update["the head or one layer, backward"] = max(head, layer)
    updating = {"gradients": trained, **update}
    if is_split:  # as they are computed, of a layer and the next, and to be summed
        updating["layers' gradients"] = (2 * number + FLOAT) * (shape.layered // shape.layers)
    if device == "cuda" and policy.offload == "all":
        for part, name in ((held, "trained weights"), (held, "optimizer"), (updating, "gradients")):
            part.pop(name, None)
    elif policy.offload == "optimizer":  # back for the step, when activations have gone
        updating["optimizer's step"] = max(0, held.pop("optimizer") - sum(update.values()))
    return Plan(held, _sampling(shape, policy, grpo, device) if samples else {}, updating)


def _number(policy: PolicySection) -> int:
    """Return the bytes of a number in the model's precision."""
    assert policy.dtype is not None
    return BYTES[policy.dtype]


def _base(shape: ModelShape, policy: PolicySection, gpus: int) -> dict[str, int]:
    """Return the frozen weights; in 4 bits, with the one that is whole at a time."""
    number = _number(policy)
    if policy.quantised:
        packed = math.ceil(shape.linear * BITS / 8)
        return {
            "base weights": number * (shape.weights - shape.linear) + packed,
            "a weight, unpacked": number * shape.widest,
        }
    if gpus == 1:
        return {"base weights": number * (shape.weights - shape.own)}
    split = 0 if shape.own else math.ceil(shape.layered / gpus)
    return {
        "base weights": number * (shape.weights - (shape.own or shape.layered) + split),
        "layers, gathered": number * GATHERED * (shape.layered // shape.layers),
    }


def _sampling(
    shape: ModelShape, policy: PolicySection, grpo: GrpoSection, device: str
) -> dict[str, int]:
    """Count each prompt once for all of its rows; without prefix sharing, and at later turns, once
    for each row. Nothing if a server samples or the policy only scores."""
    if policy.sampler == "vllm" or policy.head == "score":
        return {}
    number, longest = _number(policy), policy.context_tokens
    prompts, rows = _prompts_at_once(policy, grpo), max(policy.decode_rows, grpo.group_size)
    tokens = prompts * longest
    if policy.max_episode_tokens is not None:
        tokens = min(rows * longest, wave_tokens(policy, grpo))
    if grpo.prefix_sharing:
        tokens = min(tokens, max(PREFILL_TOKENS, longest))
    if shape.own:  # or the reference's, to sample the policy before training
        decoding = {"weights to decode with": number * shape.own}
    elif policy.dtype == "float32" and not policy.quantised:
        decoding = {"merged adapter": FLOAT * shape.adapted}
    else:
        decoding = {"adapter's copy": number * shape.adapter}
    if device == "cpu" and not policy.quantised:
        decoding["weights in blocks"] = _blocks(shape, policy)
    read = 3 * number * shape.intermediate_size + 2 * (number + FLOAT) * shape.hidden_size
    drawn = shape.vocab_size * (number + 2 * FLOAT)  # logits, once more where rows join
    return {
        **decoding,
        "keys and values": number * shape.kv_numbers * wave_tokens(policy, grpo),
        "reading or drawing": max(tokens * read, rows * drawn),
    }


def _blocks(shape: ModelShape, policy: PolicySection) -> int:
    """Return the blocks of :mod:`flowright.policy.packed`, beside the weights while a CPU
    decodes."""
    number = FLOAT if policy.head_dtype == "float32" else _number(policy)
    head = shape.vocab_size * shape.hidden_size
    layers = shape.linear if shape.widest >= LEAST else 0
    return _number(policy) * layers + (number * head if head >= LEAST else 0)


def wave_tokens(policy: PolicySection, grpo: GrpoSection) -> int:
    """Return the most tokens that have keys and values while a full wave is decoded, those of
    :func:`kept_tokens` among them: the limit of the local sampler, also in an evaluation with other
    numbers of samples."""
    rows = max(policy.decode_rows, grpo.group_size)
    copies = _prompts_at_once(policy, grpo) if grpo.prefix_sharing else rows
    return copies * policy.max_prompt_tokens + rows * policy.tokens_behind_prompt


def kept_tokens(policy: PolicySection, grpo: GrpoSection) -> int:
    """Return how many of these are kept between the turns of attempts: a third, if the others hold
    a group's first turn; none without several turns or shared prefixes."""
    if policy.max_episode_tokens is None or not grpo.prefix_sharing:
        return 0
    most = wave_tokens(policy, grpo)
    return min(most // 3, most - policy.max_prompt_tokens - grpo.group_size * policy.max_new_tokens)


def _prompts_at_once(policy: PolicySection, grpo: GrpoSection) -> int:
    return max(1, policy.decode_rows // grpo.group_size)


def _chunk(policy: PolicySection, grpo: GrpoSection) -> int:
    """Return the tokens of completions whose loss is computed at once."""
    samples = grpo.prompts_per_step * grpo.group_size
    budget = max(grpo.chunk_tokens, policy.tokens_behind_prompt)
    return min(budget, samples * policy.tokens_behind_prompt)


def _shared(shape: ModelShape, policy: PolicySection, grpo: GrpoSection) -> dict[str, int]:
    """Count the template, one pack of problems and one chunk of completions; the prompts' part is
    at most a whole prompt and a pack."""
    number = _number(policy)
    levels = [
        policy.max_prompt_tokens,
        min(grpo.chunk_tokens, grpo.prompts_per_step * policy.max_prompt_tokens),
    ]
    prompts, kept = sum(levels), layer_bytes(shape, number)
    recomputed = 0 if policy.gradient_checkpointing is False else shape.layers
    above = [_layers(shape, number, tokens, kept, recomputed) for tokens in levels]
    completions, layer = _layers(
        shape, number, _chunk(policy, grpo), kept, policy.recomputed(shape.layers)
    )
    shared = number * shape.kv_numbers * prompts
    twice = 0 if recomputed else shared  # which no layer of the prompts keeps again
    found = 2 * number * shape.kv_heads * shape.head_size * prompts  # one layer's gradients
    # Prompts are run backward when the completions are done.
    layer = max(layer, *(theirs - completions for _, theirs in above))
    return {
        "prompts' keys and values": 2 * shared,
        "prompts' activations": sum(keeps for keeps, _ in above) - twice,
        "completions' activations": completions,
        "one layer, backward": found + layer,
    }


def _plain(shape: ModelShape, policy: PolicySection, grpo: GrpoSection) -> dict[str, int]:
    """Count rows of prompt and completion, with keys repeated for the heads that share them."""
    number = _number(policy)
    row = policy.sequence_tokens
    tokens = max(1, grpo.chunk_tokens // row) * row
    kept = layer_bytes(shape, number)
    kept += 2 * number * (shape.heads - shape.kv_heads) * shape.head_size
    activations, layer = _layers(shape, number, tokens, kept, policy.recomputed(shape.layers))
    mask = row * (1 + number)
    return {"activations": activations + mask * tokens, "one layer, backward": layer}


def _layers(
    shape: ModelShape, number: int, tokens: int, kept: int, recomputed: int
) -> tuple[int, int]:
    """Return what a pass of so many tokens keeps until it is run backward: of each token the input
    of the first ``recomputed`` layers, and ``kept`` in each of the others with its trained weights
    in the model's precision. And what its backward pass adds at most: the gradients of the MLP's
    products, or attention's, in its kernels' order, and sums in float32; of a recomputed layer
    also what the others keep, once these are freed."""
    casts = 0 if number == FLOAT else number * shape.cast // shape.layers
    whole, inputs = kept * tokens + casts, number * shape.hidden_size * tokens
    keeps = recomputed * inputs + (shape.layers - recomputed) * whole
    products = max(
        4 * number * shape.intermediate_size,
        (12 * number + FLOAT) * shape.heads * shape.head_size,
    )
    layer = tokens * (products + 2 * FLOAT * shape.hidden_size)
    again = layer + whole + recomputed * inputs - keeps if recomputed else 0
    return keeps, max(layer, again)


def layer_bytes(shape: ModelShape, number: int) -> int:
    """Return what the backward pass keeps of one token in one layer; see the module's docstring."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size

    def read_by(*names: str) -> int:
        return bool(shape.targets & set(names))

    inputs = read_by("q_proj", "k_proj", "v_proj") + read_by("gate_proj", "up_proj")
    inputs = shape.hidden_size * inputs + shape.intermediate_size * read_by("down_proj")
    between = shape.rank * len(shape.targets)
    attention = 2 * queries + 2 * keys  # its output is what o_proj reads
    exact = 2 * (shape.hidden_size + 1) + shape.heads  # the norms; the log-sum-exp
    exact += shape.norms_heads * (queries + keys)
    if shape.own:  # the inputs of the norms' weights
        between += 2 * shape.hidden_size + shape.norms_heads * (queries + keys)
    return number * (inputs + between + attention + 3 * shape.intermediate_size) + FLOAT * exact


def _head(shape: ModelShape, tokens: int, number: int, entropy: bool, device: str) -> int:
    """Return the logits that are computed at once, in float32 with their softmax, and what is kept
    of each token: hidden states, a slope, and another for the entropy."""
    at_once = min(tokens, rows_at_once(shape.vocab_size, device, number < FLOAT))
    logits = at_once * shape.vocab_size * (2 + 2 * entropy) * FLOAT
    return logits + tokens * shape.hidden_size * (number * (4 + entropy) + FLOAT)
