"""Checkpoints: everything comes back bit for bit, or the one before is used and it is said."""

import json
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny_policy import checkpoint, random_groups, same, tiny_policy, weights, whole_logits
from transformers import AutoModelForCausalLM

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection
from flowright.core.errors import ConfigError, RunError
from flowright.grpo.checkpoint import (
    load_weights,
    restore,
    restore_newest,
    save_checkpoint,
)
from flowright.grpo.learner import Learner
from flowright.policy.model import Policy
from flowright.runs.run_files import find_damage

KEEP = 9


def trainee(**given: Any) -> tuple[Policy, Learner]:
    policy = tiny_policy(trained=False, **given)
    return policy, Learner(policy, GrpoSection(learning_rate=0.01, epochs=2), 1.0, 0)


def teach(learner: Learner, step: int) -> dict[str, float]:
    return learner.update(random_groups(step, [(3, [2, 4]), (5, [3, 1])]), step, 8)


def train(root: Path, steps: int, keep: int = KEEP) -> tuple[Policy, Learner]:
    policy, learner = trainee()
    for step in range(1, steps + 1):
        teach(learner, step)
        save_checkpoint(root, step, policy, learner, keep)
    return policy, learner


def equal(one: Any, other: Any) -> bool:
    """Equality of nested state with tensors compared bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def test_saved_and_restored_bit_for_bit(tmp_path: Path):
    torch.manual_seed(42)
    policy, learner = train(tmp_path, 2)
    random = torch.get_rng_state()
    torch.manual_seed(0)
    other, follower = trainee()
    restored = restore_newest(tmp_path, other, follower)
    assert (restored.step, restored.passed_over) == (2, ())
    assert restored.path == tmp_path / "step_000002"
    assert same(weights(other), weights(policy))
    assert equal(follower.optimizer.state_dict(), learner.optimizer.state_dict())
    assert torch.equal(torch.get_rng_state(), random)
    # And what is learnt next is the same, too.
    assert teach(follower, 3) == teach(learner, 3)
    assert same(weights(other), weights(policy))


def test_only_the_newest_are_kept(tmp_path: Path):
    train(tmp_path, 4, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000004"]


def test_a_step_saved_again_replaces_the_first(tmp_path: Path):
    policy, learner = train(tmp_path, 1)
    teach(learner, 2)
    save_checkpoint(tmp_path, 1, policy, learner, KEEP)
    other, follower = trainee()
    restore_newest(tmp_path, other, follower)
    assert same(weights(other), weights(policy))


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("adapter/adapter_model.safetensors", "flip", "is corrupt"),
        ("trainer.pt", "cut", "is corrupt"),
        ("trainer.pt", "remove", "is missing"),
        ("manifest.json", "cut", "its manifest cannot be read"),
        ("manifest.json", "remove", "its manifest cannot be read"),
        ("manifest.json", "list", "its manifest cannot be read"),
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, name: str, harm: str, said: str
):
    train(tmp_path, 2)
    damage(tmp_path / "step_000002" / name, harm)
    policy, learner = trainee()
    restored = restore_newest(tmp_path, policy, learner)
    assert restored.step == 1
    (problem,) = restored.passed_over
    assert problem.startswith(str(tmp_path / "step_000002"))
    assert problem.endswith(said)
    assert find_damage(tmp_path / "step_000001") is None


def damage(file: Path, harm: str) -> None:
    data = bytearray(file.read_bytes())
    if harm == "remove":
        file.unlink()
    elif harm == "list":
        file.write_text("[1, 2]")
    elif harm == "cut":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[-5] ^= 1
        file.write_bytes(data)


def test_without_a_usable_checkpoint_it_says_what_was_wrong_with_each(tmp_path: Path):
    train(tmp_path, 2)
    for step in (1, 2):
        damage(tmp_path / f"step_00000{step}" / "trainer.pt", "flip")
    policy, learner = trainee()
    before = weights(policy)
    with pytest.raises(RunError) as error:
        restore_newest(tmp_path, policy, learner)
    assert str(error.value).count("trainer.pt is corrupt") == 2
    assert same(weights(policy), before)


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path):
    train(tmp_path, 1)
    (tmp_path / "step_000002.part").mkdir()
    policy, learner = trainee()
    assert restore_newest(tmp_path, policy, learner).step == 1


def test_the_adapter_is_one_that_peft_loads(tmp_path: Path):
    policy, _ = train(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        base = AutoModelForCausalLM.from_pretrained(checkpoint())
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "step_000001" / "adapter"))
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([[60, 61, 62]])).logits[0]
    torch.testing.assert_close(logits, whole_logits(policy, [60, 61, 62]))


def test_the_adapter_alone_is_loaded_for_an_evaluation(tmp_path: Path):
    policy, _ = train(tmp_path, 1)
    other = tiny_policy(trained=False)
    load_weights(tmp_path / "step_000001", other)
    assert same(weights(other), weights(policy))
    with pytest.raises(RunError, match="no adapter in it"):
        load_weights(tmp_path, other)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path):
    train(tmp_path, 1)
    other = replace(tiny_policy(), name="models/other")
    with pytest.raises(RunError, match=r"was trained on .*, this policy is models/other"):
        load_weights(tmp_path / "step_000001", other)


def test_an_adapter_of_the_same_model_in_another_folder_is_loaded(tmp_path: Path):
    """As after an update of this package, which names the embedded policy anew."""
    policy, _ = train(tmp_path, 1)
    moved = tmp_path / "tiny-of-another-name"
    shutil.copytree(checkpoint(), moved)
    other = replace(tiny_policy(trained=False), name=str(moved))
    load_weights(tmp_path / "step_000001", other)
    assert same(weights(other), weights(policy))
    (moved / "model.safetensors").write_bytes(b"of other weights")
    with pytest.raises(RunError, match="was trained on"):
        load_weights(tmp_path / "step_000001", other)


def test_an_adapter_of_other_layers_is_refused(tmp_path: Path):
    train(tmp_path, 1)
    policy, learner = trainee(lora=LoraSection(rank=4, alpha=8, target_modules=("q_proj",)))
    with pytest.raises(ConfigError, match=r"resume with the policy\.lora it was trained with"):
        restore(tmp_path / "step_000001", policy, learner)


def test_an_adapter_of_another_rank_is_refused(tmp_path: Path):
    train(tmp_path, 1)
    policy, learner = trainee(lora=LoraSection(rank=2, alpha=8))
    with pytest.raises(ConfigError, match=r"resume with the policy\.lora it was trained with"):
        restore(tmp_path / "step_000001", policy, learner)


def test_an_adapter_that_lacks_layers_is_refused(tmp_path: Path):
    policy, learner = trainee(lora=LoraSection(rank=4, alpha=8, target_modules=("q_proj",)))
    save_checkpoint(tmp_path, 1, policy, learner, KEEP)
    policy, learner = trainee()
    with pytest.raises(ConfigError, match=r"resume with the policy\.lora it was trained with"):
        restore(tmp_path / "step_000001", policy, learner)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("room", [0, 20, 60])
def test_a_disk_that_fills_up_while_saving_leaves_the_older_checkpoints(
    small_disk: Path, room: int
):
    """``room``: how many KiB are left when the second checkpoint begins; it needs about 90."""
    policy, learner = train(small_disk, 1)
    saved = weights(policy)
    free = int(subprocess.check_output(["df", "--output=avail", small_disk]).split()[-1])
    (small_disk / "ballast").write_bytes(bytes((free - room) * 1024))
    teach(learner, 2)
    with pytest.raises(RunError, match="the disk is full; free some space"):
        save_checkpoint(small_disk, 2, policy, learner, keep=2)
    names = sorted(path.name for path in small_disk.iterdir())
    assert names == ["ballast", "step_000001"]
    other, follower = trainee()
    assert restore_newest(small_disk, other, follower).passed_over == ()
    assert same(weights(other), saved)


def test_the_manifest_names_every_other_file(tmp_path: Path):
    train(tmp_path, 1)
    path = tmp_path / "step_000001"
    files = {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 1
    assert {*manifest["sha256"], "manifest.json"} == files
