"""A refused --resume changes no byte of a run; an accepted one loses nothing, and trains only on
what belongs together.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clocks import without_clocks
from judged_environment import judged
from tiny_policy import same
from toy_run import TASKS, Killed, Outcome, Toy, Wrapped, configured, train

from flowright.config.root import Config
from flowright.core.errors import UserError
from flowright.core.files import Lock
from flowright.data.task import Problem
from flowright.environments.base import Environment, TaskSets
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.runs.run_files import read_config, read_metrics, read_rollouts

QUIET = {"every": 0}


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file and folder with its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


LIKE_BEFORE = configured(run={"tensorboard": True})


def with_policy(**changes: Any) -> Config:
    config = configured(run={"tensorboard": True})
    return config.model_copy(update={"policy": config.policy.model_copy(update=changes)})


def other_lora(**changes: Any) -> Config:
    return with_policy(lora=configured().policy.lora.model_copy(update=changes))


def corrupt(run: Path) -> None:
    for file in run.glob("checkpoints/*/trainer.pt"):
        file.write_bytes(b"nothing")


def of_the_future(run: Path) -> None:
    for file in run.glob("checkpoints/*/manifest.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))


def without_a_manifest(run: Path) -> None:
    for file in run.glob("checkpoints/*/manifest.json"):
        file.unlink()


def without_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def not_what_it_says(run: Path) -> None:
    """Whole by its hashes, and no state of a trainer."""
    for file in run.glob("checkpoints/*/trainer.pt"):
        file.write_bytes(b"nothing")
        manifest = file.with_name("manifest.json")
        told = json.loads(manifest.read_text())
        told["sha256"]["trainer.pt"] = hashlib.sha256(b"nothing").hexdigest()
        manifest.write_text(json.dumps(told))


def of_another_base(run: Path) -> None:
    for folder in run.glob("checkpoints/*"):
        file = folder / "adapter/adapter_config.json"
        told = json.loads(file.read_text()) | {"base_model_name_or_path": "models/other"}
        file.write_text(json.dumps(told))
        manifest = json.loads((folder / "manifest.json").read_text())
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest["sha256"]["adapter/adapter_config.json"] = digest
        (folder / "manifest.json").write_text(json.dumps(manifest))


def untouched(run: Path) -> None: ...


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    asyncio.run(train(run, config=LIKE_BEFORE))
    return run


@pytest.mark.parametrize(
    ("harm", "config", "said"),
    [
        (untouched, LIKE_BEFORE.model_copy(update={"strategy_model": "other/model"}), "of another"),
        (untouched, LIKE_BEFORE.model_copy(update={"environment": "a.b:C"}), "of another run"),
        (untouched, other_lora(rank=2), "policy.lora.rank: 64 -> 2"),
        (untouched, other_lora(alpha=1), "policy.lora.alpha: 64 -> 1"),
        (of_another_base, LIKE_BEFORE, "was trained on models/other"),
        (corrupt, LIKE_BEFORE, "trainer.pt is corrupt"),
        (without_a_manifest, LIKE_BEFORE, "its manifest cannot be read"),
        (not_what_it_says, LIKE_BEFORE, "its trainer.pt does not fit this run"),
        (of_the_future, LIKE_BEFORE, "its format is 99"),
        (without_checkpoints, LIKE_BEFORE, "there is no checkpoint to resume from"),
    ],
)
async def test_a_refused_resume_changes_no_byte(
    finished: Path, tmp_path: Path, harm: Callable[[Path], None], config: Config, said: str
):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    harm(run)
    before = fingerprint(run)
    with pytest.raises(UserError, match=said):
        await train(run, config=config, resume=True)
    assert fingerprint(run) == before


async def test_a_new_start_and_a_second_trainer_change_no_byte(finished: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = fingerprint(run)
    with pytest.raises(UserError, match="already holds a run"):
        await train(run, config=LIKE_BEFORE)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="already holds a run"):
        await train(run, config=LIKE_BEFORE)
    shutil.copy(finished / "metrics.jsonl", run)
    lock = Lock(run)
    with pytest.raises(UserError, match="another trainer"):
        await train(run, config=LIKE_BEFORE, resume=True)
    lock.release()
    assert fingerprint(run) == before


async def test_a_copy_without_its_lock_is_refused_without_one(finished: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "lock").unlink()
    before = fingerprint(run)
    with pytest.raises(UserError, match="of another run"):
        await train(run, config=other_lora(rank=2), resume=True)
    assert fingerprint(run) == before


async def test_an_accepted_resume_keeps_what_it_replaces(finished: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "checkpoints/step_000004")
    rows, rollouts = read_metrics(run), list(read_rollouts(run, 4))
    config = configured({"learning_rate": 0.5}, run={"tensorboard": True})
    resumed = await train(run, config=config, resume=True)
    assert "not as before: grpo.learning_rate: 0.02 -> 0.5" in resumed.reporter.said
    kept = run / "replaced/step_000002"
    assert read_config(kept)["grpo"]["learning_rate"] == 0.02
    assert read_config(run)["grpo"]["learning_rate"] == 0.5
    assert read_metrics(kept) == rows[3:]
    assert list(read_rollouts(kept, 4)) == rollouts
    assert [row["step"] for row in read_metrics(run)] == [0, 1, 2, 3, 4]


@dataclass
class Own(Toy):
    """Problems of one's own, and a memory of those that it has seen."""

    problems: Sequence[Problem] = tuple(TASKS)
    seen: dict[str, str] = field(default_factory=dict)

    def tasks(self) -> TaskSets:
        return TaskSets(self.problems, self.problems)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        for group in groups:
            for completion in group:
                self.seen.setdefault(completion.task.id, completion.key)
        return await super().rollout(groups)

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        return super().summarise(rollouts) | {"seen": float(len(self.seen))}

    def state(self, without: Sequence[str] = ()) -> Any:
        return {t: k for t, k in self.seen.items() if not k.startswith(tuple(without))}

    def restore(self, state: Any) -> None:
        self.seen = dict(state)


async def killed_while_one_waits(
    run: Path, config: Config, environment: Environment | None = None
) -> Outcome:
    """Killed after step 2 was saved, with the batch of step 3 sampled."""

    def kill(version: int) -> None:
        if version == 3:
            raise Killed

    return await train(
        run,
        environment or Own(),
        config,
        sampler=lambda local: Wrapped(local, refreshed=kill),
        raises=Killed,
    )


STALE = configured({"steps": 5}, evaluation=QUIET, max_staleness=1)


def changed(task: Problem) -> Problem:
    return Problem(task.id, "math", "toy", f"{task.question} Really?", task.reference)


@pytest.mark.parametrize(
    ("problems", "config", "dropped"),
    [
        (TASKS, STALE, 0),
        ([changed(task) for task in TASKS], STALE, 8),
        (TASKS, STALE.model_copy(update={"seed": 7}), None),
        (list(reversed(TASKS)), STALE, None),
        (TASKS, configured({"steps": 5}, evaluation=QUIET, max_staleness=0), 8),
        (TASKS, configured({"steps": 5, "group_size": 3}, evaluation=QUIET, max_staleness=1), 8),
    ],
)
async def test_waiting_samples_are_trained_on_with_their_own_prompt_or_not_at_all(
    tmp_path: Path, problems: Sequence[Problem], config: Config, dropped: int | None
):
    await killed_while_one_waits(tmp_path, STALE)
    shutil.rmtree(tmp_path / "checkpoints/step_000003", ignore_errors=True)
    before = list(read_rollouts(tmp_path, 3))
    resumed = await train(tmp_path, Own(problems=problems), config, resume=True)
    row = next(row for row in read_metrics(tmp_path) if row["step"] == 3)
    after = list(read_rollouts(tmp_path, 3))
    size = config.grpo.group_size
    old = {(r["task"]["id"], r["task"]["problem"], r["completion"]) for r in before}
    kept = [
        r for r in after if r["policy_version"] == 1
    ]  # sampled before: the resumed policy is that of step 2
    assert {(r["task"]["id"], r["task"]["problem"], r["completion"]) for r in kept} <= old
    assert len(after) == 2 * size
    if dropped is not None:
        assert row.get("pipeline/dropped_on_resume", 0) == dropped
    assert row.get("pipeline/dropped_on_resume", 0) == len(before) - len(kept)
    told = [line for line in resumed.reporter.said if line.startswith("dropped")]
    assert bool(told) == (len(kept) < len(before))
    assert all("pipeline/dropped_on_resume" not in row for row in read_metrics(tmp_path)[4:])


async def test_other_problems_are_named(tmp_path: Path):
    await killed_while_one_waits(tmp_path, STALE)
    resumed = await train(tmp_path, Own(problems=TASKS[:4]), STALE, resume=True)
    assert any("the problems to train on; step 3 takes" in line for line in resumed.reporter.said)


@pytest.mark.parametrize("kl", [{}, {"kl_in": "reward"}])
async def test_a_reference_that_followed_the_policy_is_resumed(tmp_path: Path, kl: dict[str, Any]):
    options = {"steps": 5, "kl_coefficient": 0.5, **kl}
    config = configured({**options, "reference_every": 2}, evaluation=QUIET)
    whole = await train(tmp_path / "whole", Own(), config)
    await killed_while_one_waits(tmp_path / "run", config)
    resumed = await train(tmp_path / "run", Own(), config, resume=True)
    assert [without_clocks(row) for row in resumed.metrics] == whole.metrics
    assert same(resumed.weights, whole.weights)
    fixed = await train(tmp_path / "fixed", Own(), configured(options, evaluation=QUIET))
    assert not same(fixed.weights, whole.weights)


@pytest.mark.parametrize("staleness", [0, 1])
async def test_what_the_environment_remembers_is_resumed(tmp_path: Path, staleness: int):
    config = configured({"steps": 5}, evaluation=QUIET, max_staleness=staleness)
    whole = await train(tmp_path / "whole", Own(), config)
    await killed_while_one_waits(tmp_path / "run", config)
    resumed = await train(tmp_path / "run", Own(), config, resume=True)
    assert [without_clocks(row) for row in resumed.metrics] == whole.metrics
    assert same(resumed.weights, whole.weights)


async def test_records_of_equal_answers_are_those_of_the_whole_run(tmp_path: Path):
    """Whichever of them was judged first before the kill."""
    whole = await train(tmp_path / "whole", judged(), STALE)
    await killed_while_one_waits(tmp_path / "run", STALE, judged("backwards"))
    resumed = await train(tmp_path / "run", judged(), STALE, resume=True)
    verdicts: list[list[dict[str, Any]]] = []
    for run in (whole, resumed):
        found = [record for step in range(1, 6) for record in read_rollouts(run.path, step)]
        verdicts.append([{**record["verdict"], "seconds": 0.0} for record in found])
    assert verdicts[1] == verdicts[0]
    assert {verdict["source"] for verdict in verdicts[0]} == {"llm", "cache"}
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
