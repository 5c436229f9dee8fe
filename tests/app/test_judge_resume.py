"""Training judges, each way as a whole run: killed and resumed, and shared by two processes."""

import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from clocks import without_clocks
from judge_runs import GIVEN, METHODS, STEPS, config_of, run
from safetensors.torch import load_file
from tiny_policy import checkpoint
from torch import Tensor

from flowright.policy.tuning import ADAPTER_FILE
from flowright.runs.run_files import read_evaluation, read_metrics, read_rollouts, read_state

Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judges")


@pytest.fixture(scope="module")
def whole(base: Path) -> Whole:
    """By method an uninterrupted run of one process, made once."""
    made: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in made:
            made[method] = finished(method, base, base / method)
        return made[method]

    return of


def finished(method: str, base: Path, folder: Path, processes: int = 1, **changes: Any) -> Path:
    """A run to the end; its directory."""
    folder.mkdir(exist_ok=True)
    config = config_of(method, base, folder, checkpoint("llama"), **changes)
    codes = run(config, folder / "log", processes=processes)
    assert codes == [0] * processes, (folder / "log").read_text()
    assert read_state(folder / "run")["status"] == "finished"
    return folder / "run"


def records(path: Path) -> list[Any]:
    """All that a run says of itself but the time of day."""
    rollouts = [[*read_rollouts(path, step)] for step in range(1, STEPS + 1)]
    measured = (read_evaluation(path) or {"rows": []})["rows"]
    return [[without_clocks(row) for row in read_metrics(path)], rollouts, measured]


def last(path: Path) -> Path:
    return path / f"checkpoints/step_{STEPS:06d}"


def state(path: Path) -> dict[str, Any]:
    """What was trained, the optimizer's means and torch's random state."""
    saved = torch.load(last(path) / "trainer.pt", weights_only=True)
    return {"optimizer": saved["optimizer"], "random": saved["random"], **adapter(path)}


def adapter(path: Path) -> dict[str, Tensor]:
    """What was trained: an adapter, or a whole model."""
    model = last(path) / "model/model.safetensors"
    return load_file(model if model.exists() else last(path) / "adapter" / ADAPTER_FILE)


FIRST, *OTHERS = METHODS


@pytest.mark.parametrize(
    "method", [FIRST, *(pytest.param(m, marks=pytest.mark.slow) for m in OTHERS)]
)
def test_kill_9_and_resume_repeat_the_uninterrupted_run(
    method: str, whole: Whole, base: Path, tmp_path: Path
):
    uninterrupted = whole(method)
    config = config_of(method, base, tmp_path, checkpoint("llama"))
    log = tmp_path / "log"
    assert run(config, log, kill_at=4) == [-signal.SIGKILL]
    killed = tmp_path / "run"
    before = [row["step"] for row in read_metrics(killed)]
    assert 2 < len(before) < STEPS + 1, before
    assert run(config, log, resume=True) == [0], log.read_text()
    assert records(killed) == records(uninterrupted)
    assert any("policy/loss" in row for row in read_metrics(killed))
    assert state(killed).keys() >= {"optimizer", "random", *adapter(killed)}
    torch.testing.assert_close(state(killed), state(uninterrupted), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", [*GIVEN, "pairwise"])
def test_two_processes_train_the_judge_of_one(
    method: str, whole: Whole, base: Path, tmp_path: Path
):
    compare(whole(method), finished(method, base, tmp_path, processes=2))


@pytest.mark.slow
@pytest.mark.parametrize("method", GIVEN)
def test_two_processes_that_split_the_weights_train_the_judge_of_one(
    method: str, whole: Whole, base: Path, tmp_path: Path
):
    split = {"policy": {"sharded": True}}
    compare(whole(method), finished(method, base, tmp_path, processes=2, **split))
    assert "split among 2 processes" in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("method", [*GIVEN, "pairwise"])
def test_a_run_that_splits_all_weights_among_two_goes_on_among_three(
    method: str, base: Path, tmp_path: Path
):
    full: dict[str, Any] = {"train": "full"}
    one = finished(method, base, tmp_path / "one", policy=full)
    config = config_of(method, base, tmp_path, checkpoint("llama"), policy=full | {"sharded": True})
    log = tmp_path / "log"
    assert run(config, log, kill_at=4, processes=2) == [-signal.SIGKILL] * 2, log.read_text()
    assert run(config, log, resume=True, processes=3) == [0] * 3, log.read_text()
    assert "split among 3 processes" in log.read_text()
    compare(one, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="pip install -r requirements-ray.txt")
def test_two_workers_of_a_ray_cluster_train_the_judge_of_one(
    whole: Whole, base: Path, tmp_path: Path
):
    """About a minute, most of it the cluster's start."""
    ray = {"ray": {"workers": 2, "gpus_per_worker": 0}}
    config = config_of("bradley_terry", base, tmp_path, checkpoint("llama"), **ray)
    log = tmp_path / "log"
    assert run(config, log, on_ray=True) == [0], log.read_text()
    assert "2 processes share each batch" in log.read_text()
    compare(whole("bradley_terry"), tmp_path / "run")


def compare(one: Path, two: Path) -> None:
    ours, theirs = ([without_clocks(row) for row in read_metrics(path)] for path in (two, one))
    for row, expected in zip(ours, theirs, strict=True):
        assert row == pytest.approx(expected, rel=1e-6, abs=1e-6)
    # AdamW divides a gradient by its own size: of one near zero the last bit of a sum is a share of
    # a whole step, which is 1e-3 here.
    for name, tensor in adapter(one).items():
        torch.testing.assert_close(adapter(two)[name], tensor, rtol=1e-6, atol=1e-5)
