"""The GPU benchmark, on the CPU: the same code on a tiny shape, and its count of FLOPs."""

import sys
from pathlib import Path

import pytest
import tiny_policy  # one thread

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gpu_step

from flowright.config.policy import LoraSection, PolicySection
from flowright.policy.memory import shape_of


def test_it_measures_both_paths(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--tiny", "--sizes", "2", "--repeats", "1", "--peak", "1"]
    gpu_step.main([*arguments, "--template", "0.5"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("CPU, torch ")
    gaps = [float(line.rpartition(" ")[2]) for line in lines[1:7]]
    assert len(gaps) == 6
    assert max(gaps) < 0.02, "attention in bfloat16 is not that in float32"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[0] == "|"]
    assert {len(row) for row in rows} == {8}
    assert [row[2] for row in rows[2:]] == ["sampling", "update, shared", "update, plain"]
    assert all(row[:2] == ["2 x (24 + 24)", "2 x 8"] and float(row[3]) > 0 for row in rows[2:])


def test_what_a_path_must_compute() -> None:
    section = PolicySection(lora=LoraSection(rank=64, alpha=64), device="cpu")
    policy = tiny_policy.tiny_policy()
    shape = shape_of(policy.causal_lm, section)
    load = gpu_step.Load(prompts=1, prompt=4, template=0, size=2, length=3)
    a_token = 4 * shape.adapted + 6 * shape.adapter
    a_pair = 12 * 2 * 4 * 4  # layers, heads, head size
    the_head = 2 * 3 * 4 * 16 * shape.vocab_size
    # Of a completion's three tokens the last is no input: 4 + 2 + 2 tokens.
    pairs = 10 + 2 * (3 + 2 * 4)
    assert gpu_step.flops(shape, load, True) == 8 * a_token + pairs * a_pair + the_head
    assert gpu_step.flops(shape, load, False) == 14 * a_token + 2 * 28 * a_pair + the_head
    # The reference: a third of attention's products, half of the head's, no adapter.
    reference = 8 * 2 * shape.adapted + pairs * a_pair / 3 + the_head / 2
    assert gpu_step.flops(shape, load, True, True) == pytest.approx(
        gpu_step.flops(shape, load, True) + reference
    )


def test_a_card_is_known_by_its_name() -> None:
    def peak(gpu: str) -> float | None:
        return next((p for name, p in gpu_step.PEAKS.items() if name in gpu), None)

    assert peak("NVIDIA H100 PCIe") == 756
    assert peak("NVIDIA H100 80GB HBM3") == 989
    assert peak("Some GPU") is None
