"""What the screens conclude from a run's files."""

import fcntl
import json
import socket
import time
from pathlib import Path

import pytest
from monitoring_run import evaluation, make_run

from flowright.core.errors import Reason, RunError
from flowright.core.files import write_json
from flowright.core.formatting import smooth
from flowright.environments.registry import load_config
from flowright.runs.directory import RunDirectory
from flowright.viewer.snapshot import (
    DRIFT,
    Snapshot,
    Watcher,
    edge,
    eta_seconds,
    failures,
    first,
    held_out,
    is_ours,
    kinds,
    last,
    load_rollouts,
    mean_seconds,
    merge_steps,
    take_snapshot,
)

ROWS = [
    {"step": 0, "val/gold": 0.25, "time/evaluate": 9.0},
    {"step": 1, "judge/drift": 0.5, "rollout/failed/type": 0.5, "rollout/failed/syntax": 0.25},
    {"step": 2, "judge/drift": 0.0, "rollout/failed/type": 0.25, "time/step": 4.0},
    {"step": 3, "rollout/unscored": 0.0, "rollout/failed/judge_failed": 0.0, "time/step": 6.0},
]


def running(**state: object) -> Snapshot:
    return Snapshot(Path("run"), {"status": "running", **state}, ROWS)


def test_series_leave_out_steps_without_a_value() -> None:
    now = running()
    assert now.series(DRIFT) == [(1, 0.5), (2, 0.0)]
    assert now.latest("val/gold") == 0.25
    assert now.latest("gold/accuracy") is None
    assert [row["step"] for row in now.training_rows] == [1, 2, 3]


def test_failures_are_means_over_the_steps_and_zeros_are_no_failures() -> None:
    assert failures(ROWS[1:]) == {"type": 0.25, "syntax": pytest.approx(0.25 / 3)}
    assert failures([]) == {}


def test_blame_follows_the_taxonomy() -> None:
    assert [r for r in Reason if is_ours(r.value)] == [
        Reason.LLM_UNAVAILABLE,
        Reason.WORKER_LOST,
        Reason.SANDBOX_LOST,
        Reason.JUDGE_FAILED,
        Reason.REWARD_FAILED,
        Reason.INTERNAL,
    ]
    assert not is_ours("a reason of another version")


def test_ends_and_moving_means() -> None:
    points = [(1, 1.0), (2, 3.0), (3, 5.0), (4, 11.0)]
    assert (first(points, 2), last(points, 2), first([], 2)) == (2.0, 8.0, None)
    assert smooth(points, 3) == [(1, 2.0), (2, 3.0), (3, pytest.approx(19 / 3)), (4, 8.0)]
    assert [edge(n) for n in (0, 5, 29, 100, 4000)] == [1, 1, 2, 10, 10]


def test_rows_of_one_step_become_one() -> None:
    rows = [{"step": 2, "a": 1}, {"step": 1, "a": 0}, {"step": 2, "val/gold": 0.5}]
    assert merge_steps(rows) == [{"step": 1, "a": 0}, {"step": 2, "a": 1, "val/gold": 0.5}]


def test_eta_is_reckoned_from_the_pace() -> None:
    assert eta_seconds(running(step=3, steps=13)) == 50.0
    assert eta_seconds(running()) is None
    finished = Snapshot(Path("run"), {"status": "finished", "step": 3, "steps": 13}, ROWS)
    assert eta_seconds(finished) is None


def test_kinds_and_stages_come_in_their_usual_order() -> None:
    names = {"gold/accuracy/qa": 1, "operators/math/answer": 1, "val/gold/code": 1}
    times = {"time/update": 2.0, "time/sample": 1.0, "time/judge": 0.5}
    now = Snapshot(Path("run"), {}, [{"step": 1, **names, **times}])
    assert kinds(now) == ["math", "code", "qa"]
    assert list(mean_seconds(now).items()) == [("sample", 1.0), ("update", 2.0)]
    assert mean_seconds(now, now.display.seconds) == {"judge": 0.5}


def test_a_running_trainer_is_alive_while_it_holds_the_directory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, status="running")
    assert take_snapshot(run).status == "died"
    holder = RunDirectory(run, load_config(_empty(tmp_path), ["run.tensorboard=false"]), True)
    holder.state(status="running", step=2, steps=4, stage="rollout")
    watcher = Watcher(run)
    assert (watcher.look().status, watcher.look().alive) == ("running", True)
    holder.close()
    assert watcher.look().status == "died"
    # A dead run is asked about once, so that a trainer which resumes it never finds the lock taken:
    # one that holds the lock and has not said so yet goes unnoticed.
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert watcher.look().status == "died"
        assert take_snapshot(run).status == "running"


def test_a_trainer_on_another_host_is_not_declared_dead(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, status="running")
    state = json.loads((run / "state.json").read_text())
    assert state["host"] == socket.gethostname()
    write_json(run / "state.json", {**state, "host": "elsewhere", "updated": time.time() - 3600})
    now = take_snapshot(run)
    assert now.status == "running"
    assert now.quiet_seconds == pytest.approx(3600, abs=60)
    (run / "lock").unlink()
    write_json(run / "state.json", state)
    assert take_snapshot(run).status == "running"  # a copy without a lock: nobody can tell


@pytest.mark.parametrize("status", ["finished", "paused", "interrupted", "failed"])
def test_ended_runs_did_not_die(tmp_path: Path, status: str) -> None:
    assert take_snapshot(make_run(tmp_path / "run", steps=1, status=status)).status == status


def test_a_damaged_file_is_named_and_lost_rollouts_are_missed_quietly(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    path = run / "rollouts" / "step_000001.jsonl.zst"
    assert len(load_rollouts(run, 1)) == 36
    path.write_bytes(path.read_bytes()[:200])
    assert load_rollouts(run, 1) == []
    (run / "evaluation.json").write_text("{")
    with pytest.raises(RunError, match=r"evaluation\.json: not JSON"):
        take_snapshot(run)


def test_simulated_is_said_by_whatever_file_says_so_first() -> None:
    assert not Snapshot(Path("run")).simulated
    assert Snapshot(Path("run"), {"simulated": True}).simulated
    assert Snapshot(Path("run"), evaluation=evaluation()).simulated
    assert Snapshot(Path("run"), config={"aflow_executor_model": "simulated"}).simulated
    assert Snapshot(Path("run"), config={"judge": {"model": "simulated"}}).simulated


def test_a_change_is_told_by_its_paired_interval_where_there_is_one() -> None:
    ends = {"policy": "trained policy", "against": "untrained policy", "low": 0.07, "high": 0.16}
    for low, is_apart in ((0.07, True), (-0.01, False)):
        found = held_out(
            Snapshot(Path("run"), evaluation=evaluation() | {"differences": [ends | {"low": low}]})
        )
        assert found is not None
        assert (found.paired, found.apart) == ((low, 0.16), is_apart)


def _empty(folder: Path) -> Path:
    path = folder / "empty.yaml"
    path.write_text("{}")
    return path
