"""Checkpoints: everything that the next step depends on, renamed into place as one directory.

``adapter/`` is an ordinary peft adapter that vLLM or transformers can load; with ``policy.train:
full`` it is ``model/``, a Hugging Face folder. ``trainer.pt`` holds the optimizer, torch's random
state, the samples that wait for the learner with hashes of their prompts, and the environment's
memory (:meth:`flowright.environments.base.Environment.state`). ``trained_on.json`` lists the
training data where the environment names it (:mod:`flowright.data.contamination`).
``manifest.json`` has the SHA-256 of every file: a checkpoint that does not match is passed over for
the one before. Mixture, sampling and learning rate are functions of (seed, step) and need no state.
"""

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from flowright.config.root import Config
from flowright.core.errors import RunError
from flowright.core.files import atomic_directory, disk_errors, write_json
from flowright.data.contamination import TrainedOn
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import BatchSource, SourceState, WaitingSamples
from flowright.grpo.ranks import Follower, Ranks, Reporter, interleaved
from flowright.policy.chat_templates import CHAT_TEMPLATE, template_id
from flowright.policy.model import Policy
from flowright.policy.sharding import filled, hollow
from flowright.policy.tuning import whole
from flowright.runs.directory import RunDirectory, check_checkpoints
from flowright.runs.run_files import (
    FORMAT,
    Best,
    best_of,
    keep_best,
    newest_whole,
    read_metrics,
    saved_checkpoints,
    sha256_of,
    step_name,
)


@dataclass(frozen=True, slots=True)
class Restored:
    """A loaded checkpoint: its step, the source's state, and damaged checkpoints passed over."""

    step: int
    path: Path
    passed_over: tuple[str, ...]
    state: SourceState


@dataclass(slots=True)
class Saves:
    """One run's checkpoints. All ranks call its methods alike: the first reads and writes, the
    others take over its weights and optimizer. ``best``: the best evaluation so far, whose
    checkpoint is kept; None where ``run.keep_best`` is off."""

    config: Config
    run: RunDirectory | Follower
    policy: Policy
    learner: Learner
    source: BatchSource
    reporter: Reporter
    ranks: Ranks
    best: Best | None = None
    _trained_on: TrainedOn | None = field(default=None, init=False)

    def is_best(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Return whether a step's evaluation is better than all before it; if so remember it as the
        best, and :meth:`save` has to follow."""
        before = self.best
        if self.config.run.keep_best:
            self.best = best_of([{"step": step, **metrics}], self._unscored_limit, before)
        return self.best != before

    @property
    def _unscored_limit(self) -> float:
        return self.config.grpo.max_unscored

    async def save(self, step: int) -> None:
        """Save everything that the next step depends on. Raises RunError (a full disk)."""
        shares = await self.ranks.all_gather(await self.source.state(step))
        everywhere = [n for n in shares[0].pending if all(n in share.pending for share in shares)]
        pending = {n: interleaved([share.pending[n] for share in shares]) for n in everywhere}
        remembered = [share.remembered for share in shares]
        trained = whole(trained_state(self.policy, self.learner), self.ranks.is_first)
        if self.ranks.is_first:
            root, keep = self.run.checkpoints_path, self.config.run.keep_checkpoints
            state = SourceState(pending, remembered, self.source.tasks_hash)
            trained_on = self._all_trained_on()
            save_checkpoint(
                root, step, self.policy, self.learner, keep, state, trained_on, self.best, trained
            )
        if self.policy.gpus > 1:  # whose passes wait less long for each other than a disk takes
            await self.ranks.all_gather(None)

    def _all_trained_on(self) -> TrainedOn | None:
        """The data of this run, of the run before a resume and of its base model; also written to
        the run's own file."""
        if self._trained_on is None:
            path = self.run.path
            own = self.source.environment.trained_on()
            before = TrainedOn.gathered([path, Path(self.policy.name)])
            self._trained_on = own | before if own and before else own or before
            if self._trained_on is not None:
                with disk_errors(path):
                    self._trained_on.write(path)
        return self._trained_on

    async def restore(self) -> int | None:
        """Load the newest undamaged checkpoint with the samples that waited for the learner, and
        drop later records. Returns its step; None where a run was killed before the first
        checkpoint. Raises RunError, and then nothing was written."""
        restored, trained = self._newest() or (None, {})
        restored = await self.ranks.broadcast(restored)
        if restored is None:
            self.run.resume_after(-1)
            return None
        load_trained(restored.path, await self._shared(trained), self.policy, self.learner)
        lines = self.source.restore(restored.state)
        self.run.resume_after(restored.step)
        self.best = await self.ranks.broadcast(self._best_before())
        self._say(restored, lines)
        return restored.step

    async def load_weights(self, path: Path) -> None:
        """Load the trained weights of a checkpoint on all ranks."""
        weights = read_weights(path, self.policy) if self.ranks.is_first else {}
        self.policy.load((await self._shared({"weights": weights}))["weights"])

    async def _shared(self, trained: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the first rank's state on all ranks; of split weights, each rank's part."""
        if self.ranks.size == 1:
            return trained
        like: Mapping[str, Any] = {}
        if self.policy.gpus > 1:
            weights, moved = self.policy.state(), dict(enumerate(self.policy.trainable()))
            like = {"weights": weights, "reference": weights, "optimizer": {"state": moved}}
        buffer = io.BytesIO()
        torch.save(hollow(trained, like), buffer)
        buffer.seek(0)
        buffer = io.BytesIO(await self.ranks.broadcast(buffer.getvalue()))
        hollowed = torch.load(buffer, weights_only=True, map_location="cpu")
        return filled(hollowed, trained if self.ranks.is_first else None, like)

    def _best_before(self) -> Best | None:
        """Return the best of the evaluations whose checkpoint is still there."""
        if not self.ranks.is_first or not self.config.run.keep_best:
            return None
        there = {path.name for path in saved_checkpoints(self.run.checkpoints_path)}
        rows = [row for row in read_metrics(self.run.path) if step_name(row["step"]) in there]
        best = best_of(rows, self._unscored_limit)
        keep_best(self.run.checkpoints_path, best)
        return best

    def _newest(self) -> tuple[Restored, dict[str, Any]] | None:
        root = self.run.checkpoints_path
        if not self.ranks.is_first:
            return None
        check_checkpoints(self.run.path, self.config)
        if not saved_checkpoints(root):
            return None
        path, passed_over = newest_whole(root)
        return read_checkpoint(path, self.policy, passed_over)

    def _say(self, restored: Restored, lines: Sequence[str]) -> None:
        step = restored.step
        shown = [
            *(f"passed over {problem}" for problem in restored.passed_over),
            f"resumed from {restored.path} (step {step})",
            *(f"not as before: {change}" for change in self.run.changes),
        ]
        if restored.state.outdated:
            shown.append("dropped samples that waited: an older version kept no prompts with them")
        if restored.state.tasks_hash not in (None, self.source.tasks_hash):
            shown.append(
                f"not as before: the problems to train on; step {step + 1} takes its place in the "
                "order of the new ones, so that an epoch may repeat some and miss others"
            )
        for line in (*shown, *lines):
            self.reporter.say(line)


def save_checkpoint(
    root: Path,
    step: int,
    policy: Policy,
    learner: Learner,
    keep: int,
    state: SourceState | None = None,
    trained_on: TrainedOn | None = None,
    best: Best | None = None,
    trained: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``root/step_NNNNNN`` and drop all but the ``keep`` newest and the ``best``. Raises
    RunError (a full disk) and then leaves the older ones as they were. ``trained``: the whole of
    :func:`trained_state`, if it is split."""
    path, state = root / step_name(step), state or SourceState()
    trained = trained or trained_state(policy, learner)
    with atomic_directory(path) as part:
        folder = part / policy.tuning.folder
        policy.save(folder, trained["weights"])
        if policy.template is not None:  # beside an adapter, too: an export has it from here
            (folder / CHAT_TEMPLATE).write_text(policy.template, encoding="utf-8", newline="")
        about = {
            "pending": {
                number: [waiting and asdict(waiting) for waiting in waiting_P]
                for number, waiting_P in state.pending.items()
            },
            "tasks_hash": state.tasks_hash,
            "remembered": json.dumps(list(state.remembered or ()), allow_nan=False),
        }
        moved = {name: part for name, part in trained.items() if name != "weights"}
        buffer = io.BytesIO()  # in memory, since torch turns a full disk into an error of its own
        torch.save({**moved, "step": step, **about}, buffer)
        (part / "trainer.pt").write_bytes(buffer.getvalue())
        if trained_on is not None:
            trained_on.write(part)
        files = sorted(path for path in part.rglob("*") if path.is_file())
        hashes = {str(file.relative_to(part)): sha256_of(file) for file in files}
        manifest = {"format": FORMAT, "step": step, "quantised": policy.quantised}
        manifest["chat_template"] = template_id(policy.template)
        manifest["base"] = policy.base_id
        write_json(part / "manifest.json", {**manifest, "sha256": hashes})
    keep_best(root, best)
    for old in saved_checkpoints(root)[:-keep]:
        if best is None or old.name != step_name(best.step):
            shutil.rmtree(old)
    return path


def restore_newest(root: Path, policy: Policy, learner: Learner) -> Restored:
    """Load the newest undamaged checkpoint. Raises RunError where there is none."""
    path, passed_over = newest_whole(root)
    return restore(path, policy, learner, passed_over)


def restore(
    path: Path, policy: Policy, learner: Learner, passed_over: Sequence[str] = ()
) -> Restored:
    """Load weights and optimizer of an undamaged checkpoint. Raises RunError if they do not fit."""
    restored, trained = read_checkpoint(path, policy, passed_over)
    load_trained(path, trained, policy, learner)
    return restored


def read_checkpoint(
    path: Path, policy: Policy, passed_over: Sequence[str] = ()
) -> tuple[Restored, dict[str, Any]]:
    """Read an undamaged checkpoint and its :func:`trained_state`. Raises RunError if it does not
    fit."""
    weights = read_weights(path, policy)
    with _fitting(path):
        state = torch.load(path / "trainer.pt", weights_only=True, map_location="cpu")
        known = "tasks_hash" in state  # an older format kept no prompts with the samples
        pending = {
            number: [fields and _waiting(fields) for fields in waiting_P]
            for number, waiting_P in (state.get("pending", {}) if known else {}).items()
        }
        remembered = json.loads(state.get("remembered", "[]"))
        step, problems = int(state["step"]), state.get("tasks_hash")
    outdated = not known and bool(state.get("pending"))
    found = SourceState(pending, remembered, problems, outdated)
    trained = {name: state[name] for name in ("optimizer", "random", "reference") if name in state}
    return Restored(step, path, tuple(passed_over), found), {"weights": weights, **trained}


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Raises RunError for a trainer.pt that does not fit."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError, UnpicklingError) as error:
        first = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise RunError(
            f"{path}: its trainer.pt does not fit this run ({type(error).__name__}: {first}); "
            "resume with the configuration and the version that wrote it"
        ) from error


def _waiting(fields: Mapping[str, Any]) -> WaitingSamples:
    if "samples" in fields:  # a format of one turn
        turns = [{"context_ids": (), "sample": s, "observation": None, "answer_ids": ()}
                 for s in fields["samples"]]  # fmt: skip
        episodes = [{"turns": [turn], "stop": "done", "failure": None} for turn in turns]
        return WaitingSamples(fields["task_id"], fields["asked"], episodes)
    return WaitingSamples(**fields)


def trained_state(policy: Policy, learner: Learner) -> dict[str, Any]:
    """Return trained weights, optimizer, the KL's reference and torch's random state."""
    reference = learner.reference_state
    return {
        "weights": policy.state(),
        "optimizer": learner.optimizer.state_dict(),
        "random": torch.get_rng_state(),
        **({"reference": reference} if reference else {}),
    }


def load_trained(path: Path, trained: Mapping[str, Any], policy: Policy, learner: Learner) -> None:
    """Load a :func:`trained_state`, read from ``path``. Raises RunError if it does not fit."""
    policy.load(trained["weights"])
    with _fitting(path):
        learner.optimizer.load_state_dict(trained["optimizer"])
        torch.set_rng_state(trained["random"])
    learner.reference_state = trained.get("reference")


def load_weights(path: Path, policy: Policy) -> None:
    """Load the trained weights of a checkpoint directory; see :func:`read_weights`."""
    policy.load(read_weights(path, policy))


def read_weights(path: Path, policy: Policy) -> dict[str, Tensor]:
    """Return the trained weights of a checkpoint directory.

    Raises RunError where there are none, or of another base model or adapter, which would load and
    mean nothing. The base's quantisation is checked before a model is loaded.
    """
    folder = path / policy.tuning.folder
    if not folder.is_dir():
        raise RunError(f"{path}: no {folder.name} in it; give a checkpoint such as .../step_000050")
    manifest = path / "manifest.json"
    # An adapter that came by itself has none.
    trained = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
    if trained.get("base") not in (None, policy.base_id):
        raise RunError(
            f"{path}: the weights of {policy.name} are not those that it was trained beside; put "
            "them back"
        )
    there, here = trained.get("chat_template"), template_id(policy.template)
    if trained and there != here:
        raise RunError(
            f"{path}: trained with chat template {there or 'of its model'}, this policy has "
            f"{here or 'that of its model'}; set policy.chat_template to a file as it was"
        )
    return policy.tuning.read(folder, policy.name)
