"""Training that samples from a real server: every step's adapter, and a server that is killed."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_vllm import PATIENCE, POLICY, ROOT, SHORT_COLD_START, RealVllm, end_group, served_models

from flowright.runs.run_files import read_metrics, read_rollouts, read_state

pytestmark = pytest.mark.real

SMALL = (
    *("grpo.prompts_per_step=4", "grpo.group_size=4", "grpo.minibatches=1"),
    *("evaluation.every=0", "evaluation.final_problems=4", "evaluation.samples=1"),
    *("evaluation.baselines=false", "run.checkpoint_every=1", "sandbox.workers=1"),
)
PAUSED = 3  # exit code


class Training:
    """`train.py` in a process of its own, its screen in a file."""

    def __init__(self, server: RealVllm, name: str, logs: Path, *changes: str) -> None:
        self.path = logs / name
        self.screen = logs / f"{name}.screen"
        self._command = [
            *(sys.executable, "train.py", "--config", "config/quickstart.yaml"),
            *(*SHORT_COLD_START, *SMALL, f"run.output_dir={logs}", f"run.name={name}"),
            *("policy.sampler=vllm", f"policy.vllm.base_urls=[{server.url}]"),
            *(f"policy.vllm.model_name={POLICY}", *changes),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        with self.screen.open("ab") as screen:
            self._process = subprocess.Popen(
                [*self._command, *more],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def stop(self) -> None:
        if self._process is not None:
            end_group(self._process)

    @property
    def said(self) -> str:
        return self.screen.read_text(encoding="utf-8", errors="replace")

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in read_metrics(self.path) if row["step"] > 0]

    def sum_of(self, metric: str) -> float:
        """Over all steps; one that had nothing to do with it lacks it."""
        return sum(row.get(metric, 0.0) for row in read_metrics(self.path))


@pytest.fixture
def training(
    policy_server: RealVllm, request: pytest.FixtureRequest, logs: Path
) -> Iterator[Training]:
    """With a folder of its own below the logs, and the changes of the test's parameter."""
    number = len(list(logs.glob("training*.screen"))) + 1
    changes = [change.format(folder=policy_server.folder) for change in request.param]
    run = Training(policy_server, f"training-{number}", logs, *changes)
    try:
        yield run
    finally:
        run.stop()


@pytest.mark.parametrize(
    "training",
    [("pipeline.max_staleness=1", "grpo.steps=3", "run.keep_logprobs=true")],
    indirect=True,
)
def test_three_steps_are_sampled_from_the_adapter_of_their_turn(
    training: Training, policy_server: RealVllm
) -> None:
    """What the run wrote down, and what the server did."""
    before = policy_server.log.stat().st_size
    training.start()
    assert training.wait() == 0, training.said
    assert training.steps == [1, 2, 3]
    for step, version in ((1, 0), (2, 0), (3, 1)):
        rows = list(read_rollouts(training.path, step))
        assert len(rows) == 16 and {row["policy_version"] for row in rows} == {version}
        assert all(row["reward"] is not None for row in rows)
        assert all("".join(row["token_logprobs"]["texts"]) == row["completion"] for row in rows)
    assert training.sum_of("rollout/unscored") == training.sum_of("servers/policy/failures") == 0
    first = read_metrics(training.path)[1]  # drawn from the weights that then learn from it
    assert abs(first["policy/sampler_logp_diff"]) < 1e-4
    kept = [row["token_logprobs"] for row in read_rollouts(training.path, 1)]
    learnt = [tokens for tokens in kept if tokens["learner"] is not None]
    assert learnt
    for tokens in learnt:
        assert len(tokens["ids"]) == len(tokens["texts"])
        assert tokens["sampler"] == pytest.approx(tokens["learner"], abs=2e-4)
    assert read_state(training.path)["status"] == "finished"

    with policy_server.log.open("rb") as log:
        log.seek(before)
        requests = re.findall(r'POST (/v1/\S+) HTTP/1.1" (\d+)', log.read().decode())
    assert requests.count(("/v1/load_lora_adapter", "200")) == 5, "a trial, then versions 0 to 3"
    assert requests.count(("/v1/unload_lora_adapter", "200")) == 5
    assert requests.count(("/v1/completions", "200")) >= 3 * 16
    assert served_models(policy_server.url) == [POLICY]
    assert not (training.path / "adapters").exists()


@pytest.mark.parametrize(
    "training",
    [("workflow.turns=2", "strategy_model={folder}", "grpo.steps=3", "grpo.learning_rate=2e-3")],
    indirect=True,
)
def test_three_steps_of_two_turns_train_on_what_the_server_has_sampled(
    training: Training, figure: Callable[[str], None]
) -> None:
    """Each with the adapter of the step before, which answers all turns of its batch."""
    training.start()
    assert training.wait() == 0, training.said
    assert training.steps == [1, 2, 3]
    for step in training.steps:
        rows = list(read_rollouts(training.path, step))
        assert len(rows) == 16 and {row["policy_version"] for row in rows} == {step - 1}
    assert training.sum_of("rollout/unscored") == training.sum_of("servers/policy/failures") == 0
    for row in read_metrics(training.path)[1:]:
        assert row["tokens/trained_as_sampled"] == 1.0 and row["turns/max"] == 2
        gaps = [row[f"policy/logprob_gap/turn_{turn}"] for turn in (1, 2)]
        assert max(gaps) < 2e-4
        shown = " and ".join(f"{gap:.1e}" for gap in gaps)
        figure(f"two turns, step {row['step']}: sampler against learner {shown} nats a token")


@pytest.mark.parametrize("training", [("grpo.steps=4",)], indirect=True)
def test_a_run_outlives_an_engine_that_is_killed(
    training: Training, policy_server: RealVllm
) -> None:
    """It waits, or pauses and says how to go on; no step is lost and nothing unscored."""
    training.start()
    until(lambda: training.steps or training.ended is not None)
    policy_server.kill_engine()
    policy_server.wait_until_dead()
    policy_server.start()
    if (code := training.wait()) == PAUSED:
        assert "policy.vllm" in training.said and "--resume" in training.said
        training.start("--resume")
        code = training.wait()
    assert code == 0, training.said
    assert training.steps == [1, 2, 3, 4]
    assert training.sum_of("rollout/unscored") == 0 < training.sum_of("servers/policy/failures")


def until(condition: Callable[[], object]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)
