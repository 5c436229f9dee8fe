"""Several processes of one run: the same update as one, and one end for all."""

import asyncio
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from processes import run_ranks
from rank_worker import Update, updates

from flowright.grpo.ranks import ONE, Part, Ranks, even_shares, interleaved


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_shares_make_the_whole_again(count: int):
    items = list(range(count))
    shares = [Ranks(rank, 3).mine(items) for rank in range(3)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert interleaved(shares) == items


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(1, 9), max_size=4)), max_size=4),
    st.integers(1, 4),
)
def test_shares_of_an_update_are_as_even_as_their_order_allows(
    costs: list[tuple[int, list[int]]], size: int
):
    def largest(shares: list[list[Part]]) -> int:
        return max(sum(costs[n][0] + sum(costs[n][1][i:j]) for n, i, j in one) for one in shares)

    found = even_shares(costs, size)
    every = [(n, i) for n, (_, samples) in enumerate(costs) for i in range(len(samples))]
    assert len(found) == size
    assert [(n, k) for share in found for n, i, j in share for k in range(i, j)] == every
    # Against all ways to cut the samples, in their order, in as many runs.
    best = None
    for cuts in combinations_with_replacement(range(len(every) + 1), size - 1):
        edges = [0, *cuts, len(every)]
        runs = [every[a:b] for a, b in pairwise(edges)]
        load = max(
            sum(costs[n][1][k] for n, k in run) + sum(costs[n][0] for n in {n for n, _ in run})
            for run in runs
        )
        best = load if best is None else min(best, load)
    assert largest(found) == best


async def test_one_process_gathers_from_itself():
    assert await ONE.all_gather("x") == ["x"]
    assert await ONE.broadcast("x") == "x"
    assert ONE.is_first and ONE.speaks()
    tensor = torch.ones(2)
    ONE.sum([tensor])
    assert tensor.tolist() == [1.0, 1.0]


def test_two_processes_give_the_update_of_one(tmp_path: Path):
    assert asyncio.run(run_ranks("rank_worker.py", str(tmp_path))) == [0, 0]
    alone = updates(ONE)
    first, second = (
        [Update(**fields) for fields in torch.load(tmp_path / f"{rank}.pt")] for rank in (0, 1)
    )
    for one, update, other in zip(alone, first, second, strict=True):
        nats_P = interleaved([update.nats_P, other.nats_P])
        assert nats_P == pytest.approx(one.nats_P, rel=1e-4, abs=1e-5)
        largest = max(float(gradient.abs().max()) for gradient in one.gradients)
        for ours, theirs in zip(update.gradients, one.gradients, strict=True):
            # Shares are rounded before they are summed: 2e-6 of the largest with torch 2.13.
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=4e-6 * largest)
        for name, tensor in one.weights.items():
            # Adam divides by a gradient's size, so that one that is 0 but for rounding moves, too.
            torch.testing.assert_close(update.weights[name], tensor, rtol=1e-6, atol=2e-6)
            assert torch.equal(update.weights[name], other.weights[name]), "one policy, bit for bit"
        assert update.metrics == pytest.approx(one.metrics, rel=1e-5, abs=1e-6)
        assert update.metrics == other.metrics
        assert not update.found.keys() & other.found.keys(), "each has its own samples"
        together = update.found | other.found
        assert together.keys() == one.found.keys()
        for place, logprobs in together.items():
            assert logprobs == pytest.approx(one.found[place], rel=1e-4, abs=1e-5)
