"""The run directory: who may write it, what survives a kill, what it refuses."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from flowright.config.root import Config
from flowright.config.run import RunSection
from flowright.core.errors import RunError
from flowright.core.files import atomic_directory, disk_errors, is_held, write_json
from flowright.environments.registry import make_config
from flowright.runs.directory import RunDirectory, check_checkpoints, check_path
from flowright.runs.run_files import (
    free_run_name,
    newest_run,
    read_config,
    read_evaluation,
    read_metrics,
    read_rollouts,
    read_state,
    rollout_steps,
)

CONFIG = make_config(run=RunSection(tensorboard=False))
HOLDER = """
import sys, time
from pathlib import Path
from flowright.config.run import RunSection
from flowright.environments.registry import make_config
from flowright.runs.directory import RunDirectory
run = RunDirectory(Path(sys.argv[1]), make_config(run=RunSection(tensorboard=False)))
run.record(0, {})
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def opened(path: Path, resume: bool = False, config: Config = CONFIG) -> Iterator[RunDirectory]:
    run = RunDirectory(path, config, resume)
    try:
        yield run
    finally:
        run.close()


@contextmanager
def held_elsewhere(path: Path) -> "Iterator[subprocess.Popen[str]]":
    """Another process that has the run directory open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_trainer_refuses_and_kill_9_of_the_first_frees_the_directory(tmp_path: Path):
    path = tmp_path / "run"
    with held_elsewhere(path) as process:
        for resume in (False, True):
            with pytest.raises(RunError, match=f"another trainer \\(process {process.pid}\\)"):
                RunDirectory(path, CONFIG, resume)
        assert is_held(path) is True
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert is_held(path) is False
        with opened(path, resume=True) as run:
            assert is_held(path) is True
            run.resume_after(0)
            run.record(1, {"reward/mean": 0.5})
    assert is_held(path) is False
    assert is_held(tmp_path) is None
    assert [row["step"] for row in read_metrics(path)] == [0, 1]


def test_a_refused_trainer_changes_nothing(tmp_path: Path):
    with opened(tmp_path / "run") as run:
        run.record(0, {})
        before = (tmp_path / "run" / "config.json").read_bytes()
        with pytest.raises(RunError, match="another trainer"):
            RunDirectory(tmp_path / "run", make_config(seed=1), resume=True)
        assert (tmp_path / "run" / "config.json").read_bytes() == before
        assert is_held(tmp_path / "run") is True


def test_a_directory_with_a_run_is_not_started_again(tmp_path: Path):
    with opened(tmp_path) as run:
        run.record(0, {})
    with pytest.raises(RunError, match=r"continue it with --resume, or choose another run\.name"):
        RunDirectory(tmp_path, CONFIG)
    assert is_held(tmp_path) is False


def test_a_run_that_was_killed_before_its_first_line_is_started_again(tmp_path: Path):
    with opened(tmp_path):
        pass
    with opened(tmp_path) as run:
        run.record(0, {})


def test_nothing_to_resume_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(RunError, match="nothing to resume; start without --resume"):
        RunDirectory(tmp_path / "run", CONFIG, resume=True)
    assert not (tmp_path / "run").exists()


def test_the_resolved_config_is_kept(tmp_path: Path):
    with opened(tmp_path / "run", config=CONFIG.model_copy(update={"seed": 5})):
        kept = read_config(tmp_path / "run")
    assert kept["seed"] == 5
    assert make_config(kept).grpo == CONFIG.grpo


def test_a_resumed_run_knows_what_is_not_as_before(tmp_path: Path):
    with opened(tmp_path) as run:
        run.record(0, {})
        assert run.changes == []
    with opened(tmp_path, resume=True) as run:
        assert run.changes == []
    other = make_config({"run": {"tensorboard": False}, "seed": 3, "grpo": {"steps": 7}})
    with opened(tmp_path, resume=True, config=other) as run:
        run.resume_after(0)
        assert sorted(run.changes) == ["grpo.steps: 200 -> 7", "seed: 0 -> 3"]
    assert read_config(tmp_path)["seed"] == 3


def test_a_resumed_run_forgets_what_came_later_of_held_out_problems_too(tmp_path: Path):
    with opened(tmp_path) as run:
        for step in (0, 2, 4):
            run.record(step, {})
            run.keep_rollouts(step, [{"step": step}], "validation")
        run.keep_rollouts(4, [{"step": 4}], "evaluation")
        run.keep_rollouts(1, [{"step": 1}], "baselines")  # the first baseline, at the end of all
    with opened(tmp_path, resume=True) as run:
        run.resume_after(2)
    assert rollout_steps(tmp_path / "validation") == [0, 2]
    assert rollout_steps(tmp_path / "evaluation") == []
    (kept,) = (tmp_path / "replaced").iterdir()
    assert rollout_steps(kept / "validation") == rollout_steps(kept / "evaluation") == [4]
    assert rollout_steps(tmp_path / "baselines") == [] and rollout_steps(kept / "baselines") == [1]
    assert rollout_steps(tmp_path) == rollout_steps(kept) == []


def test_metrics_come_back_exactly(tmp_path: Path):
    rows = [{"reward/mean": 0.1 + 0.2, "policy/kl": 1e-17}, {}, {"reward/mean": -1 / 3}]
    with opened(tmp_path) as run:
        for step, row in enumerate(rows):
            run.record(step, row)
    assert read_metrics(tmp_path) == [{"step": i, **row} for i, row in enumerate(rows)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_refused_and_not_written(tmp_path: Path, value: float):
    with opened(tmp_path) as run:
        run.record(0, {"a": 1.0})
        with pytest.raises(ValueError, match=r"step 1: reward/mean is .*leave out what has no"):
            run.record(1, {"a": 1.0, "reward/mean": value})
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.keep_rollouts(1, [{"reward": value}])
    assert [row["step"] for row in read_metrics(tmp_path)] == [0]
    assert rollout_steps(tmp_path) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_a_line_torn_by_a_kill_is_not_a_step(tmp_path: Path, data: st.DataObject):
    whole = "".join(json.dumps({"step": i, "a/ä": i / 3}) + "\n" for i in range(3)).encode()
    cut = data.draw(st.integers(0, len(whole)))
    (tmp_path / "metrics.jsonl").write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(complete))


def test_after_a_torn_line_a_resumed_run_goes_on_in_a_clean_file(tmp_path: Path):
    with opened(tmp_path) as run:
        run.record(0, {})
        run.record(1, {"a": 0.25})
    with (tmp_path / "metrics.jsonl").open("a") as out:
        out.write('{"step": 2, "a": 0.')
    with opened(tmp_path, resume=True) as run:
        run.resume_after(1)
        run.record(2, {"a": 0.75})
    assert read_metrics(tmp_path) == [
        {"step": 0},
        {"step": 1, "a": 0.25},
        {"step": 2, "a": 0.75},
    ]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": \n{"step": 2}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: no JSON object with a step; take"):
        read_metrics(tmp_path)
    for line in ("[1]", '{"a": 1}', "7"):
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": 0}}\n{line}\n')
        with pytest.raises(RunError, match=r"metrics\.jsonl:2: no JSON object with a step; take"):
            check_checkpoints(tmp_path, CONFIG)


def test_truncate_forgets_the_steps_to_be_done_again(tmp_path: Path):
    with opened(tmp_path) as run:
        for step in range(5):
            run.keep_rollouts(step, [{"step": step, "text": "é\u2028\n"}])
            run.record(step, {"a": step / 7})
        kept = read_metrics(tmp_path)[:3]
        (tmp_path / "rollouts" / "step_000004.jsonl.part").write_bytes(b"torn")
        run.resume_after(2)
        assert read_metrics(tmp_path) == kept
        assert rollout_steps(tmp_path) == [0, 1, 2]
        assert list(read_rollouts(tmp_path, 2)) == [{"step": 2, "text": "é\u2028\n"}]
        assert list(read_rollouts(tmp_path, 3)) == []
        assert len(list((tmp_path / "rollouts").iterdir())) == 3


def test_state_is_what_was_said_so_far(tmp_path: Path):
    assert read_state(tmp_path) == {}
    with opened(tmp_path) as run:
        run.state(status="running", step=0)
        first = read_state(tmp_path)
        run.state(step=1)
        second = read_state(tmp_path)
    assert (second["status"], second["step"], second["pid"]) == ("running", 1, os.getpid())
    assert second["started"] == first["started"] <= first["updated"] <= second["updated"]
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(RunError, match="a JSON object was expected, not a list"):
        read_state(tmp_path)
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(RunError, match=r"evaluation\.json: not JSON"):
        read_evaluation(tmp_path)


def test_names_of_runs(tmp_path: Path):
    assert newest_run(tmp_path) is None
    assert free_run_name(tmp_path, "a") == "a"
    for age, name in ((100, "a"), (300, "a-2"), (200, "b")):
        with opened(tmp_path / name) as run:
            run.record(0, {})
            run.state(status="finished")
        os.utime(tmp_path / name / "state.json", (age, age))
    assert free_run_name(tmp_path, "a") == "a-3"
    newest = newest_run(tmp_path)
    assert newest is not None
    assert newest.name == "a-2"


def test_tensorboard_reads_the_scalars_and_the_texts(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with opened(tmp_path, config=make_config()) as run:
        for step in range(3):
            run.record(step, {"reward/mean": step / 4})
        run.text(2, "workflow/math", "**right**\n```python\npass\n```")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert scalars == [(0, 0.0), (1, 0.25), (2, 0.5)]
    (text,) = events.Tensors("workflow/math")
    assert text.step == 2
    assert text.tensor_proto.string_val == [b"**right**\n```python\npass\n```"]
    metadata: Any = events.SummaryMetadata("workflow/math")
    assert metadata.plugin_data.plugin_name == "text"


def test_tensorboard_shows_a_repeated_step_once(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with opened(tmp_path, config=make_config()) as run:
        for step in range(4):
            run.record(step, {"reward/mean": 0.25})
    with opened(tmp_path, resume=True, config=make_config()) as run:
        run.resume_after(1)
        for step in (2, 3):
            run.record(step, {"reward/mean": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert scalars == [(0, 0.25), (1, 0.25), (2, 0.5), (3, 0.5)]


def test_tensorboard_gets_the_zeros_of_what_did_not_turn_up(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows: list[dict[str, float]] = [
        {"rollout/repaired": 0.5, "repair/dedented": 0.5, "operators/math/answer": 1.0},
        {"rollout/repaired": 0.0, "operators/math/vote": 1.0},
        {"reward/mean": 0.0},  # no workflow at all: nothing was counted
    ]
    with opened(tmp_path, config=make_config()) as run:
        for step, row in enumerate(rows):
            run.record(step, row)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()

    def points(name: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in events.Scalars(name)]

    assert points("repair/dedented") == [(0, 0.5), (1, 0.0)]
    assert points("operators/math/answer") == [(0, 1.0), (1, 0.0)]
    assert points("operators/math/vote") == [(1, 1.0)]
    assert points("reward/mean") == [(2, 0.0)]
    assert read_metrics(tmp_path) == [{"step": step, **row} for step, row in enumerate(rows)]


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "deep" / "step"
    with atomic_directory(path) as part:
        (part / "inner").mkdir()
        (part / "inner" / "file").write_text("one")
        assert not path.exists()
    assert (path / "inner" / "file").read_text() == "one"
    with pytest.raises(KeyError), atomic_directory(path) as part:
        (part / "file").write_text("half of two")
        raise KeyError
    assert [f.name for f in path.parent.iterdir()] == ["step"]
    assert (path / "inner" / "file").read_text() == "one"
    (tmp_path / "deep" / "step.part").mkdir()  # what a kill left behind
    (tmp_path / "deep" / "step.part" / "old").write_text("")
    with atomic_directory(path) as part:
        (part / "file").write_text("two")
    assert [f.name for f in path.iterdir()] == ["file"]
    assert [f.name for f in path.parent.iterdir()] == ["step"]


def test_a_file_is_replaced_at_once(tmp_path: Path):
    file = tmp_path / "state.json"
    write_json(file, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": math.nan})
    assert json.loads(file.read_text()) == {"a": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_that_says_what_to_do(tmp_path: Path):
    with opened(tmp_path) as run:
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(RunError, match=r"the disk is full; free some space and continue"):
            run.record(0, {"a": 1.0})


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EROFS, r"cannot write here \(Read-only file system\)"),
        (errno.EACCES, r"cannot write here \(Permission denied\)"),
    ],
)
def test_errors_of_the_disk(tmp_path: Path, number: int, said: str):
    with pytest.raises(RunError, match=said), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_other_errors_are_not_the_disks(tmp_path: Path):
    with pytest.raises(OSError, match="Interrupted"), disk_errors(tmp_path):
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))


def test_a_place_for_no_run_is_one_line(tmp_path: Path):
    (tmp_path / "outputs").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for path, why in (
        (tmp_path / "outputs" / "run", "Not a directory"),
        (tmp_path / "outputs", "Not a directory|File exists"),
        (tmp_path / "gone" / "run", ".*gone is a link that leads nowhere"),
        (tmp_path / "round" / "run", "Too many levels of symbolic links"),
        (tmp_path / ("x" * 300), "File name too long"),
        (Path("/proc/run"), "Permission denied|Read-only file system"),
    ):
        with pytest.raises(RunError, match=rf"cannot write here \(({why})\)"):
            RunDirectory(path, CONFIG)
        with pytest.raises(RunError, match=rf"cannot write here \(({why})\)"):
            check_path(path)
