"""Several processes of one run: the same update as one, and one end for all."""

import asyncio
from pathlib import Path

import pytest
import torch
from processes import run_ranks
from rank_worker import Update, updates

from flowright.grpo.ranks import ONE, Ranks, interleaved


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_shares_make_the_whole_again(count: int):
    items = list(range(count))
    shares = [Ranks(rank, 3).mine(items) for rank in range(3)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert interleaved(shares) == items


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
