"""Checkpoints: everything that the next step depends on, renamed into place as one directory.

``adapter/`` is an ordinary peft adapter that vLLM or transformers can load. ``trainer.pt`` holds
the optimizer, torch's random state, the counters and the samples that wait for the learner.
``manifest.json`` has the SHA-256 of every file: a checkpoint that does not match it is passed over
for the one before. Mixture, sampling and learning rate are functions of (seed, step) and need no
state of their own.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file

from flowright.config import RunSection
from flowright.errors import RunError
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import Pending, Pipeline
from flowright.grpo.ranks import Follower, Ranks, Reporter, interleaved
from flowright.policy.model import ADAPTER_FILE, CONFIG_FILE, Policy
from flowright.policy.sampler import Sample
from flowright.runs import RunDirectory, atomic_directory, step_name, write_json


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a run goes on: the last completed step, what was passed over to get there, and samples
    that were drawn and not yet trained on (:meth:`flowright.grpo.pipeline.Pipeline.pending`)."""

    step: int
    path: Path
    passed_over: tuple[str, ...]
    pending: Pending


@dataclass(frozen=True, slots=True)
class Saves:
    """One run's checkpoints. All ranks call its methods alike: the first reads and writes, the
    others take over from it what only their own device has."""

    config: RunSection
    run: RunDirectory | Follower
    policy: Policy
    learner: Learner
    pipeline: Pipeline
    reporter: Reporter
    ranks: Ranks

    async def save(self, step: int) -> None:
        """Everything that the step after this one depends on. Raises RunError (a full disk)."""
        shares = await self.ranks.all_gather(self.pipeline.pending())
        everywhere = [n for n in shares[0] if all(n in share for share in shares)]
        pending = {n: interleaved([share[n] for share in shares]) for n in everywhere}
        if self.ranks.is_first:
            root, keep = self.run.checkpoints_path, self.config.keep_checkpoints
            save_checkpoint(root, step, self.policy, self.learner, keep, pending)

    async def restore(self) -> int | None:
        """Put back the newest checkpoint that is whole, roll out again what was waiting for the
        learner, and forget what was recorded later. Returns its step; None where a run was killed
        before there was one."""
        restored = await self.ranks.broadcast(self._newest())
        if restored is None:
            return None
        state = portable_state(self.policy, self.learner) if self.ranks.size > 1 else b""
        state = await self.ranks.broadcast(state)
        if not self.ranks.is_first:
            take_over(state, self.policy, self.learner)
        self.pipeline.restore(restored.pending)
        return restored.step

    def _newest(self) -> Restored | None:
        if not self.ranks.is_first:
            return None
        if not _checkpoints(self.run.checkpoints_path):
            self.run.truncate(-1)
            return None
        restored = restore_newest(self.run.checkpoints_path, self.policy, self.learner)
        for problem in restored.passed_over:
            self.reporter.say(f"passed over {problem}")
        self.run.truncate(restored.step)
        self.reporter.say(f"resumed from {restored.path} (step {restored.step})")
        for change in self.run.changes:
            self.reporter.say(f"not as before: {change}")
        return restored


def save_checkpoint(
    root: Path,
    step: int,
    policy: Policy,
    learner: Learner,
    keep: int,
    pending: Pending = MappingProxyType({}),
) -> Path:
    """Write ``root/step_NNNNNN`` and drop all but the ``keep`` newest.

    Raises RunError (a full disk, say) and then leaves the older ones as they were.
    """
    path = root / step_name(step)
    with atomic_directory(path) as part:
        policy.save_adapter(part / "adapter")
        waiting = {
            number: [[asdict(sample) for sample in group] for group in groups]
            for number, groups in pending.items()
        }
        (part / "trainer.pt").write_bytes(_saved(learner, step=step, pending=waiting))
        files = sorted(path for path in part.rglob("*") if path.is_file())
        hashes = {str(file.relative_to(part)): _sha256(file) for file in files}
        write_json(part / "manifest.json", {"step": step, "sha256": hashes})
    for old in _checkpoints(root)[:-keep]:
        shutil.rmtree(old)
    return path


def restore_newest(root: Path, policy: Policy, learner: Learner) -> Restored:
    """Load the newest checkpoint that is whole. Raises RunError when there is none."""
    passed_over: list[str] = []
    for path in reversed(_checkpoints(root)):
        damage = find_damage(path)
        if damage:
            passed_over.append(f"{path}: {damage}")
            continue
        return restore(path, policy, learner, passed_over)
    listed = "".join(f"; {problem}" for problem in passed_over)
    raise RunError(f"{root}: no usable checkpoint to resume from{listed}; start a new run")


def restore(
    path: Path, policy: Policy, learner: Learner, passed_over: Sequence[str] = ()
) -> Restored:
    """Put back the adapter and the optimizer of a whole checkpoint."""
    load_adapter(path, policy)
    state = _loaded(path / "trainer.pt", learner)
    pending = {
        number: [[Sample(**fields) for fields in group] for group in groups]
        for number, groups in state.get("pending", {}).items()
    }
    return Restored(int(state["step"]), path, tuple(passed_over), pending)


def portable_state(policy: Policy, learner: Learner) -> bytes:
    """Adapter, optimizer and torch's random state, for another rank to :func:`take_over`."""
    return _saved(learner, adapter=policy.adapter_state())


def take_over(state: bytes, policy: Policy, learner: Learner) -> None:
    """Put another rank's state in the place of this one's."""
    policy.load_adapter_state(_loaded(io.BytesIO(state), learner)["adapter"])


def _saved(learner: Learner, **more: Any) -> bytes:
    """Optimizer and random state with ``more``. Made in memory: to a file, torch's own writer turns
    a full disk into an error of its own."""
    buffer = io.BytesIO()
    state = {"optimizer": learner.optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save({**state, **more}, buffer)
    return buffer.getvalue()


def _loaded(file: Path | io.BytesIO, learner: Learner) -> dict[str, Any]:
    """What was :func:`_saved`; optimizer and random state are put back."""
    state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    learner.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return state


def load_adapter(path: Path, policy: Policy) -> None:
    """The adapter of a checkpoint directory, for evaluation as for training.

    Raises RunError where there is none, or one of another base model: it would load and mean
    nothing. Models are told apart by the last part of their name or path.
    """
    file = path / "adapter" / ADAPTER_FILE
    if not file.is_file():
        raise RunError(f"{path}: no adapter in it; give a checkpoint such as .../step_000050")
    config = json.loads(file.with_name(CONFIG_FILE).read_text(encoding="utf-8"))
    trained_on = str(config.get("base_model_name_or_path"))
    if Path(trained_on).name != Path(policy.name).name:
        raise RunError(
            f"{path}: its adapter was trained on {trained_on}, this policy is {policy.name}; "
            "evaluate or resume with the configuration of that run"
        )
    policy.load_adapter_state(load_file(file))


def _checkpoints(root: Path) -> list[Path]:
    """By step, the oldest first."""
    return sorted(root.glob("step_??????"))


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint: a missing or altered file; None when it is whole."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        expected: dict[str, str] = dict(manifest["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    for name, digest in expected.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if _sha256(file) != digest:
            return f"{name} is corrupt"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
