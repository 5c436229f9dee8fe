"""Loggers beside metrics.jsonl: what they are told, and that a run goes on without them."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowright.config.root import Config
from flowright.config.run import RunSection
from flowright.core.errors import ConfigError
from flowright.environments.registry import make_config
from flowright.runs.directory import RunDirectory
from flowright.runs.loggers import Loggers, check_loggers
from flowright.runs.run_files import read_metrics, read_state

PACKAGES = Path(__file__).parents[1] / "doubles/packages"
CONFIG = make_config(
    run=RunSection(name="mine", tensorboard=False, loggers=("trackio",), project="p")
)

Told = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What the double of trackio was told."""
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    monkeypatch.setenv("LOGGED", str(tmp_path / "told.jsonl"))

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]

    yield read
    sys.modules.pop("trackio", None)


def train(
    path: Path, steps: range, resume: bool = False, config: Config = CONFIG
) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines that a run of these steps says, and the metrics that it keeps."""
    said: list[str] = []
    run = RunDirectory(path, config, resume, said.append)
    try:
        if resume:
            run.resume_after(steps.start - 1)
        run.state(status="running")
        for step in steps:
            run.record(step, {"reward/mean": step / 4, "val/gold": 1.0})
            run.text(step, "workflow/math", "**a text**")
        run.state(status="finished")
    finally:
        run.close()
    return said, read_metrics(path)


def test_a_logger_is_told_the_names_and_steps_of_the_metrics_file(tmp_path: Path, told: Told):
    said, rows = train(tmp_path / "run", range(3))
    first, *logged, last = told()
    assert (first["project"], first["config"]["run_name"]) == ("p", "mine")
    assert first["config"]["grpo"] == json.loads(CONFIG.model_dump_json())["grpo"]
    assert [{"step": row["step"], **row["metrics"]} for row in logged] == rows
    assert (said, last) == ([], {"finished": True})
    assert not (tmp_path / "run/tensorboard").exists()


def test_a_resumed_run_goes_on_under_the_same_name(tmp_path: Path, told: Told):
    train(tmp_path / "run", range(3))
    _, rows = train(tmp_path / "run", range(2, 5), resume=True)
    train(tmp_path / "other", range(1))
    mine, again, other = [row["name"] for row in told() if "name" in row]
    assert mine == again != other
    assert {row["resume"] for row in told() if "name" in row} == {"allow"}
    logged = {row["step"]: {"step": row["step"], **row["metrics"]} for row in told()[:-3]
              if "step" in row}  # fmt: skip
    assert list(logged.values()) == rows


@pytest.mark.parametrize(
    ("does", "steps_logged", "why"),
    [
        ("no_init", [], "trackio: ValueError: no such project"),
        ("no_step_2", [0, 1], "trackio: ConnectionError: the server is gone"),
        ("exits", [], "it exits: 1"),
    ],
)
def test_a_run_goes_on_when_a_logger_fails_and_says_so_once(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, does: str, steps_logged: list[int],
    why: str,
):  # fmt: skip
    monkeypatch.setenv("DOES", does)
    (tmp_path / "told.jsonl").touch()
    said, rows = train(tmp_path / "run", range(5))
    line = f"run.loggers: trackio is off from here on ({why}); metrics.jsonl has every step"
    assert said == [f"WARNING: {line}"]
    assert [row["step"] for row in rows] == [*range(5)]
    state = read_state(tmp_path / "run")
    assert (state["status"], state["warnings"]) == ("finished", [line])
    assert [row["step"] for row in told() if "metrics" in row] == steps_logged


def test_a_package_that_cannot_be_imported_ends_no_run(tmp_path: Path, told: Told):
    config = make_config(run=RunSection(loggers=("wandb",)))
    said, rows = train(tmp_path / "run", range(2), config=config)
    assert [row["step"] for row in rows] == [0, 1]
    assert len(said) == 1 and "wandb: RuntimeError: imported, and not configured" in said[0]
    assert any((tmp_path / "run/tensorboard").iterdir())  # as without loggers


def test_a_server_that_hangs_holds_up_neither_a_step_nor_the_end(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DOES", "hangs")
    loggers = Loggers(tmp_path, CONFIG, {}, last_seconds=0.01)
    for step in range(3):
        loggers.do(lambda one, step=step: one.scalars(step, {}))
    loggers.close("finished")
    assert [line[:60] for line in loggers.failures()] == [
        "run.loggers: trackio is off from here on (not done 0 seconds"
    ]
    sys.modules["trackio"].NEVER.set()


def test_a_missing_package_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder of the package's name, such as W&B leaves in the working directory, is none."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "wandb").mkdir()
    section = RunSection(loggers=("tensorboard", "wandb", "mlflow"))
    with pytest.raises(ConfigError) as caught:
        check_loggers(section)
    assert caught.value.problems == tuple(
        f"run.loggers: {name} is not installed; pip install -r requirements-loggers.txt, or leave "
        "it out"
        for name in ("wandb", "mlflow")
    )


def test_tensorboard_may_be_named_and_must_not_be_contradicted():
    assert check_loggers(RunSection()) == ""
    assert RunSection(loggers=("tensorboard", "wandb", "wandb")).packages == ("wandb",)
    with pytest.raises(ValueError, match="tensorboard: false, and loggers name it"):
        RunSection(tensorboard=False, loggers=("tensorboard",))
