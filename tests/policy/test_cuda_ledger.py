"""Budgets of kernels, host syncs and copies on a GPU, counted on a pretended one."""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from cuda_ledger import Ledger, Settings, decoding, update
from gpu_step import Load
from pretended_cuda import CUDA, pretended

from flowright.policy.fused import compiled, sum_norm, swiglu_backward
from flowright.policy.prefix.attention import merge, merged_outs

LOAD = Load(prompts=3, prompt=40, template=24, size=4, length=12, ragged=True)


def layer_of(one: Ledger, two: Ledger) -> int:
    return two.number("kernel") - one.number("kernel")


def test_an_update_reads_back_its_norm_and_its_sums() -> None:
    settings = Settings(kl=0.001, checkpointing=True)
    one, two = (update("7B", layers, LOAD, settings)[0] for layers in (1, 2))
    assert (two.number("pageable"), two.number("mixed")) == (0, 0)
    assert {site.rpartition(":")[0]: count for site, count in two.sites("wait")} == {
        "copy to the CPU at grpo/step_record.py": 3,
        "number read back at policy/sharding.py": 1,
    }
    assert layer_of(one, two) <= 519
    assert one.number("kernel") - layer_of(one, two) <= 256, "outside of layers"


def test_a_decoded_token_is_read_back_once() -> None:
    one, two = (decoding("7B", layers, LOAD, fill=2)[0] for layers in (1, 2))
    assert [(site.rpartition(":")[0], n) for site, n in two.sites("wait")] == [
        ("copy to the CPU at policy/local.py", 1)
    ]
    assert (two.number("pageable"), two.number("mixed")) == (0, 0)
    assert layer_of(one, two) <= 25
    assert one.number("kernel") - layer_of(one, two) <= 62, "outside of layers"


def test_a_compiled_function_is_a_kernel_for_each_size_of_its_results() -> None:
    """As Inductor's Triton backend generates them."""
    with pretended() as record:
        x, pieces = torch.zeros(4, 8, device=CUDA), torch.zeros(2, 4, 8, device=CUDA)
        compiled(sum_norm)(x, x, x[0], 1e-6)
        compiled(swiglu_backward)(x, x, x)
        attended = [(piece, piece[:, 0]) for piece in pieces]
        merge(*attended)
        merge(*attended, by=merged_outs)
    assert [(event.name, event.bytes) for event in record.events if "fused" in event.name] == [
        ("fused sum_norm", 4 * (2 * 32 + 8 + 2 * 32)),
        ("fused swiglu_backward", 4 * (3 * 32 + 2 * 32)),
        ("fused merged", 4 * (2 * 32 + 2 * 4 + 32)),
        ("fused merged", 4 * (2 * 4 + 4)),
        ("fused merged_outs", 4 * (2 * 32 + 2 * 4 + 32)),
    ]


def test_what_makes_a_host_wait_is_seen() -> None:
    with pretended() as record:
        x = torch.zeros(4, 6, device="cuda", requires_grad=True)
        assert x.device == CUDA and x.is_cuda
        y = (x * 2).detach()
        y[:, torch.tensor([1, 2]).pin_memory().to(CUDA, non_blocking=True)] = 0
        y[0] = 1  # a fill
        assert float(y.sum()) == 1
        (y @ torch.zeros(6, 3).to(CUDA)).tolist()
        y[y > 0]
        (x * 2).sum().backward()
        y.add_(torch.ones(6))  # a CPU tensor
    assert x.grad is not None and x.grad.shape == x.shape
    found = {kind: dict(record.count(kind)) for kind in ("wait", "pageable", "mixed", "pinned")}
    assert found == {
        "wait": {
            "number of the CPU written by index at benchmark": 1,
            "number read back at benchmark": 1,
            "copy to the CPU at benchmark": 1,
            "index by truth values at benchmark": 1,
        },
        "pageable": {"copy at benchmark": 1},
        "mixed": {"add_ at benchmark": 1},
        "pinned": {"copy at benchmark": 1},
    }
    assert sum(event.flops for event in record.events) == 2 * 4 * 6 * 3


def test_memory_is_counted_by_storage_while_it_lives() -> None:
    with pretended() as record:
        x = torch.zeros(1024, device="cuda")
        y = x[:512] + x[512:]
        assert record.live == 4096 + 2048
        del x
        assert (record.live, record.peak) == (2048, 6144)
        record.clear()
        y.mul_(2)
        assert (record.live, record.peak) == (2048, 2048)
