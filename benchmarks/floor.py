"""The time that no implementation of an update can undercut here: its products alone.

FLOPs are those of matrix products, two for a multiplication and an addition; on the shared path
each token of a prefix counts once. The base is frozen, so a weight costs a product forward and one
for the gradient of its input, and none for its own; LoRA's own weights cost all three. Attention
counts the scores that are seen, with two products forward and five backward, as the scores are made
anew there (Dao et al. 2022, arXiv 2205.14135, algorithm 4). The head costs one product for the
logits and one for the slope. The rate is the best of torch's float32 products at the sizes that
occur, one thread.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from shapes import RANK
from transformers import PreTrainedConfig

from flowright.grpo.batch import Group
from flowright.policy.prefix.tree import shared_length


def linears(model: PreTrainedConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of a layer's linear maps, all of them adapted."""
    hidden, intermediate = model.hidden_size, model.intermediate_size
    keys = hidden // model.num_attention_heads * model.num_key_value_heads
    attention = [(hidden, hidden), (hidden, keys), (hidden, keys), (hidden, hidden)]
    return [*attention, (hidden, intermediate), (hidden, intermediate), (intermediate, hidden)]


def update_flops(model: PreTrainedConfig, groups: Sequence[Group], sharing: bool) -> float:
    """Of one update."""
    tokens, seen, predicted = (_shared_counts if sharing else _plain_counts)(groups)
    weights = sum(a * b for a, b in linears(model))
    adapters = sum(RANK * (a + b) for a, b in linears(model))
    layer = tokens * (2 * 2 * weights + 3 * 2 * adapters) + 7 * 2 * seen * model.hidden_size
    head = 2 * 2 * predicted * model.hidden_size * model.vocab_size
    return model.num_hidden_layers * layer + head


def _plain_counts(groups: Sequence[Group]) -> tuple[int, int, int]:
    """Tokens computed, pairs of query and key that see each other, tokens predicted: of a row for
    each completion, padding left out."""
    pairs = [(len(g.prompt_ids), len(s.token_ids)) for g in groups for s in g.samples]
    seen = sum(_own(prompt + length) for prompt, length in pairs)
    return sum(map(sum, pairs)), seen, sum(length for _, length in pairs)


def _shared_counts(groups: Sequence[Group]) -> tuple[int, int, int]:
    """The same, of each text once."""
    template = shared_length([group.prompt_ids for group in groups])
    tokens, seen, predicted = template, _own(template), 0
    for group in groups:
        prompt = len(group.prompt_ids)
        problem = prompt - template
        tokens += problem
        seen += _own(problem) + problem * template
        for sample in group.samples:
            inputs = len(sample.token_ids) - 1
            tokens += inputs
            seen += _own(inputs) + inputs * prompt
            predicted += len(sample.token_ids)
    return tokens, seen, predicted


def _own(length: int) -> int:
    """Pairs in a text that sees itself."""
    return length * (length + 1) // 2


def rate(model: PreTrainedConfig, rows: int) -> float:
    """FLOPs a second of the fastest product that occurs, of ``rows`` tokens, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return max(_speed(*sizes) for sizes in _products(model, rows))
    finally:
        torch.set_num_threads(before)


def _products(model: PreTrainedConfig, rows: int) -> Iterator[tuple[int, int, int]]:
    for inputs, outputs in {*linears(model), (model.hidden_size, model.vocab_size)}:
        yield rows, inputs, outputs


def _speed(rows: int, inputs: int, outputs: int, repeats: int = 5) -> float:
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    product = 2 * rows * inputs * outputs
    times = max(1, int(2e9 // product))
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(times):
            x @ weight.T
        best = min(best, time.process_time() - began)
    return times * product / best
