"""What is trained, and what the policy was before: adapters, whole decoders, a base in 4 bits."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tiny_policy import random_groups, same, tiny_policy, weights, whole_logits
from torch import nn
from transformers import AutoModelForCausalLM

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import ConfigError, RunError
from flowright.grpo.checkpoint import load_weights, restore_newest, save_checkpoint
from flowright.grpo.learner import Learner
from flowright.grpo.selfcheck import check_adapter, check_sampler, check_sharing
from flowright.policy.local import LocalSampler
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy, load_policy
from flowright.policy.sampling import Sampling

IDS = [60, 61, 62, 70]
NF4 = pytest.param(
    {"quantised": "nf4"},
    marks=pytest.mark.skipif(
        find_spec("bitsandbytes") is None,
        reason="bitsandbytes is not installed (requirements-quantised.txt)",
    ),
    id="nf4",
)
STABLE = LoraSection(rank=4, alpha=8, rank_stabilised=True)
FULL = pytest.param({"train": "full"}, id="full")
IN_HALF = pytest.param(
    {"train": "full", "dtype": "bfloat16", "gradient_checkpointing": True}, id="full-bfloat16"
)
MODES = [pytest.param({"lora": STABLE}, id="rslora"), FULL, IN_HALF, NF4]


def trainee(given: dict[str, Any], **grpo: Any) -> tuple[Policy, Learner]:
    policy = tiny_policy(trained=False, **given)
    section = {"learning_rate": 0.01, "epochs": 2, "kl_coefficient": 0.1, **grpo}
    return policy, Learner(policy, GrpoSection(**section), 1.0, 0)


def teach(learner: Learner, step: int) -> dict[str, float]:
    return learner.update(random_groups(step, [(3, [2, 4]), (5, [3, 1])]), step, 8)


@pytest.mark.parametrize("given", MODES)
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, given: dict[str, Any]) -> None:
    policy, learner = trainee(given)
    for step in (1, 2):
        teach(learner, step)
        save_checkpoint(tmp_path, step, policy, learner, 2)
    other, follower = trainee(given)
    restore_newest(tmp_path, other, follower)
    assert same(weights(other), weights(policy))
    assert teach(follower, 3) == teach(learner, 3)
    assert same(weights(other), weights(policy))
    assert torch.equal(whole_logits(other, IDS), whole_logits(policy, IDS))


@pytest.mark.parametrize("given", MODES)
def test_the_reference_is_the_base_after_updates(given: dict[str, Any]) -> None:
    policy, learner = trainee(given)
    base = whole_logits(policy, IDS)
    assert teach(learner, 1)["policy/kl"] == 0.0
    moved = whole_logits(policy, IDS)
    assert not torch.equal(moved, base)
    with policy.reference():
        assert torch.equal(whole_logits(policy, IDS), base)
    with pytest.raises(RuntimeError, match="in the middle"), policy.reference():
        raise RuntimeError("in the middle")
    assert torch.equal(whole_logits(policy, IDS), moved)
    assert teach(learner, 2)["policy/kl"] > 0.0
    untrained = tiny_policy(trained=False, **given)
    drawn = [
        LocalSampler(each, 8, trained=trained).draw([IDS], 4, Sampling(1.0, 1.0, 6, 0))
        for each, trained in ((policy, False), (untrained, True), (policy, True))
    ]
    tokens = [[sample.token_ids for sample in group[0]] for group in drawn]
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.parametrize("given", MODES)
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_what_is_decoded_is_what_is_trained(architecture: str, given: dict[str, Any]) -> None:
    """And before a run the self-checks say so, and leave everything as it was."""
    policy = tiny_policy(architecture, trained=False, **given)
    before = weights(policy)
    check_sharing(policy, GrpoSection())
    check_adapter(policy, 1e-5)
    check_sampler(policy, GrpoSection(), 1.0)
    assert same(weights(policy), before)
    teach(Learner(policy, GrpoSection(learning_rate=0.01), 1.0, 0), 1)
    with torch.no_grad(), policy.decoding():
        decoded = whole_logits(policy, IDS)
    half = given.get("dtype") == "bfloat16"
    torch.testing.assert_close(decoded, whole_logits(policy, IDS), rtol=0, atol=0 if half else 1e-4)


def test_all_of_the_decoder_is_trained_in_float32_and_no_embedding() -> None:
    policy, learner = trainee({"train": "full", "dtype": "bfloat16"}, learning_rate=1e-6)
    frozen = [p.clone() for p in policy.model.parameters() if not p.requires_grad]
    before = weights(policy)
    assert len(frozen) == 1, "embeddings, and the head that is tied to them"
    assert {p.dtype for p in policy.trainable()} == {torch.float32}
    names = set(before)
    assert {"model.norm.weight", "model.layers.1.self_attn.q_proj.bias"} <= names
    assert not any("embed" in name or "lm_head" in name for name in names)
    teach(learner, 1)
    moved = [(before[n] != w).float().mean() for n, w in weights(policy).items()]
    assert torch.stack(moved).mean() > 0.9, "steps that bfloat16 would not hold"
    assert torch.equal(frozen[0], next(p for p in policy.model.parameters() if not p.requires_grad))
    assert whole_logits(policy, IDS).dtype == torch.bfloat16


@pytest.mark.parametrize("given", [FULL, IN_HALF])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_a_whole_model_is_saved_as_others_load_it(
    tmp_path: Path, architecture: str, given: dict[str, Any]
) -> None:
    policy = tiny_policy(architecture, **given)
    policy.save(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.dtype == policy.causal_lm.dtype
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([IDS])).logits[0]
    assert torch.equal(logits, whole_logits(policy, IDS))
    assert (tmp_path / "model" / "tokenizer.json").is_file()


@pytest.mark.parametrize("given", MODES)
def test_a_merged_model_is_the_policy_as_it_was_trained(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    policy = tiny_policy(**given)
    trained, dtype = whole_logits(policy, IDS), policy.causal_lm.dtype
    policy.save_merged(tmp_path)
    again = load_policy(str(tmp_path), PolicySection(device="cpu", dtype=given.get("dtype")), 0)
    assert again.causal_lm.dtype == dtype
    with again.reference():
        torch.testing.assert_close(whole_logits(again, IDS), trained, rtol=0, atol=1e-4)


def test_a_checkpoint_of_another_kind_or_base_is_refused(tmp_path: Path) -> None:
    policy, learner = trainee({"train": "full"})
    path = save_checkpoint(tmp_path, 1, policy, learner, 2)
    with pytest.raises(RunError, match="no adapter in it"):
        load_weights(path, tiny_policy())
    with pytest.raises(RunError, match="not those that it was trained beside"):
        load_weights(path, tiny_policy("llama", train="full"))
    other = tiny_policy(train="full", trained=False)
    with torch.no_grad():
        other.causal_lm.model.norm.parametrizations.weight.original.add_(1)
    load_weights(path, other)
    assert same(weights(other), weights(policy))
    with pytest.raises(ConfigError, match=r"weights do not fit this policy, for instance model"):
        other.load({})


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        policy, learner = trainee({"train": "full"})
        with pytest.raises(RunError, match="the disk is full; free some space"):
            save_checkpoint(disk, 1, policy, learner, 2)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_rank_stabilised_adapter_is_scaled_by_the_root_and_says_so(tmp_path: Path) -> None:
    """alpha/sqrt(r) = 8/2, where alpha/r would be 2 (arXiv 2312.03732, theorem 3.2)."""
    policy = tiny_policy(lora=STABLE)
    layers = [m for m in policy.model.modules() if isinstance(m, LoraLinear)]
    assert {layer.scaling["default"] for layer in layers} == {4.0}
    policy.save(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["use_rslora"] is True
    with pytest.raises(RunError, match=r"has policy.lora.rank_stabilised True, this policy False"):
        load_weights(tmp_path, tiny_policy())
    plain = tiny_policy()
    for layer in (m for m in plain.model.modules() if isinstance(m, LoraLinear)):
        layer.scaling["default"] = 4.0
    torch.testing.assert_close(whole_logits(plain, IDS), whole_logits(policy, IDS))


@pytest.mark.parametrize("given", [NF4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_in_4_bits_is_the_same_for_all(given: dict[str, Any], dtype: str) -> None:
    policy = tiny_policy(trained=False, dtype=dtype, **given)
    layers = [m for m in policy.model.modules() if isinstance(m, LoraLinear)]
    assert len(layers) == 14
    assert {layer.get_base_layer().weight.dtype for layer in layers} == {torch.uint8}
    assert {parameter.dtype for parameter in policy.trainable()} == {torch.float32}
    assert {layer.base_dtype for layer in layers} == {getattr(torch, dtype)}
    packed = [layer.get_base_layer().weight.clone() for layer in layers]
    base = whole_logits(policy, IDS)
    with policy.reference():
        assert torch.equal(whole_logits(policy, IDS), base)
    # The same weights, unpacked into ordinary layers.
    whole: Any = tiny_policy(trained=False, dtype=dtype)
    for theirs, ours in zip(_bases(whole), _bases(policy), strict=True):
        state = ours.weight.quant_state
        from bitsandbytes.functional import dequantize_4bit

        theirs.weight.data = dequantize_4bit(ours.weight.data, state)
    assert torch.equal(whole_logits(whole, IDS), base)
    assert not torch.equal(whole_logits(tiny_policy(trained=False, dtype=dtype), IDS), base)
    teach(Learner(policy, GrpoSection(learning_rate=0.01), 1.0, 0), 1)
    assert all(
        torch.equal(a, b.get_base_layer().weight) for a, b in zip(packed, layers, strict=True)
    )


def _bases(policy: Policy) -> list[nn.Linear]:
    return [m.get_base_layer() for m in policy.model.modules() if isinstance(m, LoraLinear)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": "full", "quantised": "nf4"}, "weights in 4 bits cannot be trained"),
        ({"quantised": "nf4", "sharded": True}, "quantised with sharded is not built"),
        ({"quantised": "nf4", "sampler": "vllm"}, "quantised with sampler vllm is not built"),
    ],
)
def test_what_is_not_built_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PolicySection(**given)
