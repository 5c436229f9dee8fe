"""The checkpoint of the best evaluation stays, whatever comes after it, and is found by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_run import Killed, Lines, Toy, configured, train

from flowright.app.preflight_checks import check_checkpoint
from flowright.app.terminal import note_best
from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import RunError
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.runs.directory import check_checkpoints
from flowright.runs.run_files import Best, best_of, checkpoint_of, chosen_as_best, read_best

CONFIG = configured(
    {"steps": 6, "epochs": 1, "minibatches": 1},
    {"checkpoint_every": 1, "keep_checkpoints": 2},
    {"every": 1},
)


def right_in(*evaluations: int) -> Callable[[Episode], float]:
    """All right in these evaluations, all wrong in others; one in two while training."""

    def reward(completion: Episode) -> float:
        _, kind, *rest = completion.key.split("/")
        if kind == "evaluation":
            return float(int(rest[0]) in evaluations)
        return float(completion.sample.token_ids[0] % 2)

    return reward


async def test_it_survives_what_is_newer_and_the_earlier_of_equals_is_kept(tmp_path: Path) -> None:
    done = await train(tmp_path / "run", Toy(reward=right_in(2, 4)), CONFIG)
    assert done.checkpoints == [2, 5, 6]
    assert read_best(done.path) == Best(2, "val/gold", 1.0)
    told = json.loads((done.path / "best.json").read_text())
    assert done.path / told["checkpoint"] == checkpoint_of(done.path)
    assert checkpoint_of(done.path).name == "step_000002"
    assert chosen_as_best(checkpoint_of(done.path)) == Best(2, "val/gold", 1.0)
    assert chosen_as_best(done.path / "checkpoints/step_000006") is None


async def test_a_killed_and_resumed_run_has_the_same_best(tmp_path: Path) -> None:
    def kill(step: int) -> None:
        if step == 5:
            raise Killed

    reward = right_in(2, 4)
    await train(tmp_path / "run", Toy(reward=reward, before=kill), CONFIG, raises=Killed)
    done = await train(tmp_path / "run", Toy(reward=reward), CONFIG, resume=True)
    assert done.checkpoints == [2, 5, 6]
    assert read_best(done.path) == Best(2, "val/gold", 1.0)


async def test_an_evaluation_between_checkpoints_is_saved_where_it_is_the_best(
    tmp_path: Path,
) -> None:
    run = CONFIG.run.model_copy(update={"checkpoint_every": 10})
    config = CONFIG.model_copy(update={"run": run})
    done = await train(tmp_path / "kept", Toy(reward=right_in(3)), config)
    assert done.checkpoints == [3, 6]
    off = run.model_copy(update={"keep_best": False})
    done = await train(
        tmp_path / "off", Toy(reward=right_in(3)), config.model_copy(update={"run": off})
    )
    assert done.checkpoints == [0, 6]
    assert not (done.path / "best.json").exists()
    assert checkpoint_of(done.path).name == "step_000006", "the newest, where no best is known"


def test_the_metric_and_what_was_not_scored() -> None:
    rows = [
        {"step": 0, "val/gold": 0.5, "val/judge": 0.1, "val/unscored": 0.0},
        {"step": 1},
        {"step": 2, "val/gold": 0.9, "val/unscored": 0.3},
        {"step": 3, "val/judge": 0.99, "val/unscored": 0.0},
        {"step": 4, "val/gold": 0.6, "val/judge": 0.0, "val/unscored": 0.2},
        {"step": 5, "val/gold": 0.6},
    ]
    assert best_of(rows, 0.2) == Best(4, "val/gold", 0.6)
    assert best_of(rows[3:4], 0.2) == Best(3, "val/judge", 0.99)
    assert best_of(rows[1:3], 0.2) is None
    assert best_of(rows[5:], 0.2, Best(4, "val/gold", 0.6)) == Best(4, "val/gold", 0.6)


def test_it_is_said_at_the_end_where_it_is_not_the_last() -> None:
    reporter, best = Lines(), Best(2, "val/gold", 0.7)
    note_best(Path("runs/one"), best, 2, reporter)
    note_best(Path("runs/one"), None, 2, reporter)
    assert reporter.said == []
    note_best(Path("runs/one"), best, 6, reporter)
    (line,) = reporter.said
    assert "step 2 by val/gold 70.0%" in line and "runs/one/checkpoints/step_000002" in line
    assert "its score there is too high" in line


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="no usable checkpoint"):
        checkpoint_of(tmp_path)
    assert checkpoint_of(tmp_path / "elsewhere") == tmp_path / "elsewhere"


async def test_a_checkpoint_to_be_measured_is_of_its_configuration(tmp_path: Path) -> None:
    """The model's folder, the adapter's scale and how its base was quantised, before torch."""
    done = await train(tmp_path / "run", Toy(), CONFIG)
    path = checkpoint_of(done.path)
    has = {"lora": LoraSection(rank=4, alpha=8)}

    def look(**policy: Any) -> None:
        check_checkpoint(path, make_config(policy=PolicySection(**{**has, **policy})))

    look()
    stable = LoraSection(rank=4, alpha=8, rank_stabilised=True)
    with pytest.raises(RunError, match="use_rslora: False -> True"):
        look(lora=stable)
    with pytest.raises(RunError, match=r"policy\.quantised: None -> nf4"):
        look(quantised="nf4")
    with pytest.raises(RunError, match="no model in it"):
        look(train="full")
    (path / "model").mkdir()
    (path / "model" / "model.safetensors").touch()
    look(train="full")


async def test_a_run_resumes_only_what_it_trained(tmp_path: Path) -> None:
    """One that did not know these keys trained an adapter of a plain base, scaled by alpha/r."""
    config = configured({"steps": 2})
    done = await train(tmp_path / "run", Toy(), config)
    known = json.loads((done.path / "config.json").read_text())
    del known["policy"]["train"], known["policy"]["quantised"]
    del known["policy"]["lora"]["rank_stabilised"]
    (done.path / "config.json").write_text(json.dumps(known))
    check_checkpoints(done.path, config)
    for change, said in (
        ({"train": "full"}, "policy.train: lora -> full"),
        ({"quantised": "nf4"}, "policy.quantised: None -> nf4"),
    ):
        policy = config.policy.model_copy(update=change)
        with pytest.raises(RunError, match=said):
            check_checkpoints(done.path, config.model_copy(update={"policy": policy}))
