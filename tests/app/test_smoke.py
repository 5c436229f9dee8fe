"""train.py as a user starts it, everything real: embedded server, policy, interpreter, sandbox.

The embedded policy is made smaller than the shipped one and taught two dozen programs by heart, so
that it writes some that run. What its answers earn is simulated.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from clocks import without_clocks

from flowright.app.replaying import ReplayRequest, replay
from flowright.core.errors import UserError
from flowright.runs.run_files import (
    read_evaluation,
    read_metrics,
    read_rollouts,
    read_state,
    rollout_steps,
)

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
STAGES = ("sample", "rollout", "update")
OVERRIDES = (
    *("policy.temperature=0.6", "policy.tiny.hidden_size=96", "policy.tiny.layers=1"),
    *("policy.tiny.heads=4", "policy.tiny.examples=24", "policy.tiny.steps=150"),
    *("policy.tiny.batch_size=8", f"grpo.steps={STEPS}", "grpo.prompts_per_step=6"),
    *("grpo.group_size=4", "run.checkpoint_every=2", "evaluation.every=2"),
    *("evaluation.problems=3", "evaluation.final_problems=3", "evaluation.baselines=false"),
    "run.keep_logprobs=true",
)


def command(output: Path, cache: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "train.py", "--config", "config/quickstart.yaml", *OVERRIDES),
        *(f"run.output_dir={output}", f"policy.tiny.cache_dir={cache}", *more),
    ]


@contextmanager
def started(arguments: list[str], log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("wb") as out:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # the machine is shared
        )
        try:
            yield process
        finally:
            for pid in descendants(process.pid):  # torchrun's workers would outlive it
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def finished(arguments: list[str], log: Path) -> str:
    """Run to the end; what was printed."""
    with started(arguments, log) as process:
        code = process.wait(timeout=1800)
    text = log.read_text()
    assert code == 0, text
    return text


def metrics(run: Path) -> list[dict[str, float]]:
    """All but those of the clock."""
    return [without_clocks(row) for row in read_metrics(run)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """An uninterrupted run: its directory, the cache of the embedded policy, what it printed."""
    base = tmp_path_factory.mktemp("whole")
    printed = finished(command(base, base / "cache", "run.tensorboard=true"), base / "log")
    return base / "quickstart", base / "cache", printed


def test_a_run_ends_and_leaves_what_it_should(whole: tuple[Path, Path, str]):
    run, _, printed = whole
    assert "SIMULATED" in printed
    assert "trained policy" in printed
    assert "Traceback" not in printed
    assert "Warning" not in printed
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert all(0.0 <= row["rollout/unscored"] <= 0.2 for row in rows[1:])
    assert max(row["rollout/valid_frac"] for row in rows[1:]) > 0.0
    assert sum("policy/loss" in row for row in rows) >= 2  # it did train
    assert all(row["sandbox/sufficient"] == 1.0 and "sandbox/retried" in row for row in rows[1:])
    assert all("rollout/failed/unsupported" in row for row in rows[1:])
    assert all(row.get("policy/sampler_logp_diff", 0.0) < 1e-4 for row in rows)
    assert rollout_steps(run) == list(range(1, STEPS + 1))
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        f"step_{step:06d}" for step in (0, 2, 4)
    ]
    assert any((run / "tensorboard").iterdir())
    assert "</html>" in (run / "report.html").read_text()
    assert read_state(run)["status"] == "finished"
    assert read_state(run)["simulated"] is True
    assert len(read_state(run)["judge_wording"]) == 12
    evaluation = read_evaluation(run)
    assert evaluation is not None
    assert [row["name"] for row in evaluation["rows"]] == ["untrained policy", "trained policy"]
    assert not list(run.rglob("*.part"))


def test_a_rollout_has_its_tokens_as_sampler_and_learner_saw_them(whole: tuple[Path, Path, str]):
    run, _, _ = whole
    rollouts = [row for step in rollout_steps(run) for row in read_rollouts(run, step)]
    for row in rollouts:
        told = row["token_logprobs"]
        assert "".join(told["texts"]) == row["completion"]
        assert len(told["ids"]) == len(told["texts"]) == len(told["sampler"]) == row["tokens"]
        if told["learner"] is not None:  # on policy: nothing is sampled ahead on a CPU
            assert told["learner"] == pytest.approx(told["sampler"], abs=1e-3)
    assert any(row["token_logprobs"]["learner"] for row in rollouts)


def test_a_rollout_tells_the_whole_story(whole: tuple[Path, Path, str]):
    run, _, _ = whole
    rollouts = [row for step in rollout_steps(run) for row in read_rollouts(run, step)]
    assert len(rollouts) == STEPS * 6 * 4
    judged = [row for row in rollouts if row["verdict"] is not None]
    assert judged
    for row in judged:
        assert row["execution"]["trace"]
        assert row["gold"]["method"]
        assert row["reward"]["value"] == sum(row["reward"]["parts"].values())
    for row in rollouts:
        assert (row["failure"] is None) == (row["verdict"] is not None)


def test_its_policy_answers_a_question(whole: tuple[Path, Path, str]):
    run, cache, _ = whole
    rollouts = [row for step in rollout_steps(run) for row in read_rollouts(run, step)]
    task = next(row["task"] for row in rollouts if row["task"]["kind"] == "math")
    asked = [sys.executable, "scripts/run_workflow.py", str(run), task["problem"], "--json"]
    asked += ["--kind", "math", "--samples", "16", f"policy.tiny.cache_dir={cache}"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    told = json.loads(done.stdout)
    assert (done.returncode == 0) == (told["failure"] is None), done.stderr
    assert told["simulated"] is True and told["attempts"]
    assert told["usage"]["policy"]["calls"] == 16
    if told["failure"] is None:
        assert told["program"] and told["answer"] and told["trace"]
    else:
        assert told["failure"]["blame"] == "policy"


def timeless(value: Any) -> Any:
    """A record's value without what a clock said."""
    if isinstance(value, dict):
        clocks = ("seconds", "own_seconds", "started")
        return {key: timeless(inner) for key, inner in value.items() if key not in clocks}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def test_an_attempt_is_played_again(
    whole: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
):
    run, _, _ = whole
    rollouts = [row for step in rollout_steps(run) for row in read_rollouts(run, step)]
    then = next(row for row in rollouts if row["verdict"] and row["task"]["kind"] == "math")
    place = f"{then['step']}/{then['group']}/{then['index']}"
    assert replay(ReplayRequest(run, place, None, False, True, ())) == 0
    now = json.loads(capsys.readouterr().out)["now"]
    for key in ("completion", "workflow", "execution", "verdict", "gold", "reward"):
        assert timeless(now[key]) == timeless(then[key]), key

    for place in (f"validation/{STEPS}/1/0", "evaluation/0/2/0", f"evaluation/{STEPS}/2/0"):
        assert replay(ReplayRequest(run, place, None, False, True, ())) == 0
        both = json.loads(capsys.readouterr().out)
        for key in ("completion", "execution", "verdict", "gold", "reward"):
            assert timeless(both["now"][key]) == timeless(both["recorded"][key]), (place, key)

    program = "async def workflow(problem):\n    return 'mine'\n"
    assert replay(ReplayRequest(run, place, program, False, False, ())) == 0
    told = capsys.readouterr().out.splitlines()
    assert "    +    return 'mine'" in told
    (answer,) = [line for line in told if line.startswith("answer")]
    assert answer.endswith("mine  *")

    for wrong, why in (
        ("1/2", "STEP/GROUP/INDEX"),
        ("99/0/0", "step 99 kept no"),
        ("1/0/99", "not 1/0/99"),
    ):
        with pytest.raises(UserError, match=why):
            replay(ReplayRequest(run, wrong, None, False, False, ()))


def test_a_run_is_not_started_twice(whole: tuple[Path, Path, str], tmp_path: Path):
    run, cache, _ = whole
    before = (run / "metrics.jsonl").read_bytes()
    again = subprocess.run(
        command(run.parent, cache), cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert again.returncode == 2
    assert again.stderr.startswith(f"{run}: already holds a run; continue it with --resume")
    assert len(again.stderr.splitlines()) == 1
    resumed = subprocess.run(
        command(run.parent, cache, "--resume"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert resumed.returncode == 0 and f"finished  {run}, all {STEPS} steps" in resumed.stdout
    assert (run / "metrics.jsonl").read_bytes() == before


def descendants(pid: int) -> set[int]:
    """The processes started by ``pid`` and theirs."""
    children: dict[int, set[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        children.setdefault(int(fields[1]), set()).add(int(stat.parent.name))
    found, new = set(), {pid}
    while new:
        new = {child for parent in new for child in children.get(parent, ())} - found
        found |= new
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_and_resume_repeat_the_uninterrupted_run(
    whole: tuple[Path, Path, str], tmp_path: Path, workers: int
):
    run, cache, _ = whole
    output, killed = tmp_path / "out", tmp_path / "out" / "quickstart"
    log = tmp_path / "log"

    again = command(output, cache, f"rollout.workers={workers}")
    with started(again, log) as process:

        def in_the_middle_of_the_last_step() -> bool:
            assert process.poll() is None, log.read_text()
            state = read_state(killed)
            return (state.get("step"), state.get("stage")) in [(STEPS, s) for s in STAGES]

        wait_for(in_the_middle_of_the_last_step, 1800)
        helpers = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [row["step"] for row in read_metrics(killed)] == list(range(STEPS))
    assert helpers
    wait_for(lambda: not any(map(is_running, helpers)), 600)  # nobody outlives the trainer

    printed = finished([*again, "--resume"], log)
    assert "(step 2)" in printed
    own = {"rollout/workers_lost"}
    rows = [{name: row[name] for name in row.keys() - own} for row in metrics(killed)]
    assert rows == metrics(run)
    assert read_state(killed)["status"] == "finished"
    assert accuracies(killed) == accuracies(run)
    for step in range(1, STEPS + 1):
        assert outcomes(killed, step) == outcomes(run, step)


def outcomes(run: Path, step: int) -> list[tuple[object, ...]]:
    names = ("completion", "reward", "advantage", "failure")
    return [tuple(row[name] for name in names) for row in read_rollouts(run, step)]


def accuracies(run: Path) -> list[tuple[str, float]]:
    evaluation = read_evaluation(run)
    assert evaluation is not None
    return [(row["name"], row["kinds"]["all"]["gold"]) for row in evaluation["rows"]]


def by_two(arguments: list[str]) -> list[str]:
    """The same command, by two processes."""
    python, *rest = arguments
    return [python, "-m", "torch.distributed.run", "--nproc_per_node", "2", *rest]


@pytest.mark.slow
def test_two_processes_train_the_run_of_one(whole: tuple[Path, Path, str], tmp_path: Path):
    """The same samples and rewards, and an update that is the same but for rounding."""
    run, cache, _ = whole
    printed = finished(
        by_two(command(tmp_path, cache, "pipeline.max_staleness=0")), tmp_path / "log"
    )
    assert "ranks     2 processes share each batch" in printed
    assert printed.count("report    ") == 1, "one of them speaks"
    assert outcomes(tmp_path / "quickstart", 1) == outcomes(run, 1)
    (_, alone, *_), (_, shared, *_) = metrics(run), metrics(tmp_path / "quickstart")
    alone |= {name: shared[name] for name in alone if name.startswith("sandbox/")}  # of one rank
    assert shared == pytest.approx(alone, rel=1e-4, abs=1e-6)
    pairs = zip(read_rollouts(run, 1), read_rollouts(tmp_path / "quickstart", 1), strict=True)
    for one, other in pairs:  # what either process's learner found is in the record
        told, again = one["token_logprobs"], other["token_logprobs"]
        assert (told["ids"], told["texts"]) == (again["ids"], again["texts"])
        for key in ("sampler", "learner"):
            assert again[key] == pytest.approx(told[key], abs=1e-3)
    assert accuracies(run)[0] == accuracies(tmp_path / "quickstart")[0], "measured by both"
    assert read_state(tmp_path / "quickstart")["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_dies_ends_the_run_with_one_message_and_resume_goes_on(
    whole: tuple[Path, Path, str], tmp_path: Path, lost: int
):
    _, cache, _ = whole
    log, run = tmp_path / "log", tmp_path / "quickstart"
    endless = command(tmp_path, cache, "grpo.steps=500", "evaluation.every=0")
    with started(by_two(endless), log) as process:
        wait_for(lambda: (run / "metrics.jsonl").exists() and len(read_metrics(run)) > 3, 1800)
        (victim,) = (pid for pid in descendants(process.pid) if rank_of(pid) == lost)
        os.kill(victim, signal.SIGKILL)
        assert process.wait(timeout=600) != 0
    assert log.read_text().count("another process of this run has gone") == 1
    saved = max(int(path.name.split("_")[1]) for path in (run / "checkpoints").iterdir())
    more = [f"grpo.steps={saved + 1}", "evaluation.every=0", "--resume"]
    printed = finished(command(tmp_path, cache, *more), log)  # by one process, for a change
    assert f"(step {saved})" in printed
    assert read_state(run)["status"] == "finished"


def rank_of(pid: int) -> int | None:
    """Of a process that torchrun started; None for all others."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    ranks = [int(v.removeprefix(b"RANK=")) for v in variables if v.startswith(b"RANK=")]
    return ranks[0] if ranks and b"train.py" in words else None
