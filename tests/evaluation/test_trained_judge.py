"""The loop closed: a judge is trained and calibrated by a run, served, examined, and rewards a
policy. Everything is real but the size of the models, which are random but for a few steps.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from exam_doubles import items
from judge_serving import served
from tiny_policy import checkpoint, tiny_policy
from toy_run import Outcome, Wrapped, configured, train
from workflow_doubles import task

from flowright.app.launch import train as start_run
from flowright.config.root import Config, JudgeServerConfig
from flowright.config.workflow import SandboxSection
from flowright.core.errors import ConfigError, RunPaused
from flowright.data.task import Task
from flowright.environments.base import TaskSets
from flowright.environments.registry import load_config
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.trained_judge import find_judge, load_judge, load_trained_judge
from flowright.judging.build import OpenJudge
from flowright.judging.measuring.exam_probes import ExamPlan
from flowright.judging.measuring.judge_exam import UNEQUAL, hold_exam, open_exam_judges
from flowright.judging.service.app import create_app
from flowright.judging.verdict import Criterion, JudgeQuery
from flowright.llm.chat import Message
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_rollouts

ROOT = Path(__file__).parents[2]
SAYS = "async def workflow(problem):\n    return {!r}"
ANSWERS = ("42", "41 and more", "beet", "corn mint")
PROBLEM = task()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that trains a judge which scores."""
    out = tmp_path_factory.mktemp("judge")
    given = (
        *(f"strategy_model={checkpoint()}", f"run.output_dir={out}", "run.name=judge"),
        *("judging.known_rule.train=64", "judging.known_rule.held_out=60", "judging.epochs=1"),
        *("grpo.learning_rate=0.05", "policy.lora.rank=4", "evaluation.every=0"),
        *("evaluation.baselines=false", "run.tensorboard=false"),
    )
    config = load_config(ROOT / "config/judge_bradley_terry_small.yaml", given)
    with redirect_stdout(StringIO()) as said:
        assert start_run(config) == 0
    assert "calibrated to temperature" in said.getvalue()
    return out / "judge"


@asynccontextmanager
async def opened(folder: Path, **sections: Any) -> AsyncIterator[OpenJudge]:
    given = {"trained": {"folder": folder, **sections.pop("trained", {})}, **sections}
    async with load_trained_judge(JudgeServerConfig.model_validate(given))() as (judge, ready):
        assert await ready() == []
        yield judge


def test_a_run_calibrates_the_checkpoint_that_is_served(run: Path):
    found = find_judge(run)
    assert found.scores and found.calibration.is_fitted
    assert found.place == run / "checkpoints/step_000002"
    record = json.loads((run / "calibration.json").read_text())
    assert record["temperature"] == found.calibration.temperature
    assert record["fitted"]["pairs"] + record["measured"]["pairs"] == 60
    page = (run / "report.html").read_text()
    assert "Calibration" in page and "expected calibration error" in page


async def test_verdicts_are_computed_together_and_as_alone(run: Path):
    query = [JudgeQuery("Name corn.", answer, "corn") for answer in (*ANSWERS, "42")]
    async with opened(run, judge={"gate": False}) as judge:
        alone = [await judge.judge.judge(one) for one in query]
        together = await asyncio.gather(*map(judge.judge.judge, query))
        rival = replace(query[0], rival=ANSWERS[2])
        won = await judge.judge.judge(rival)
        lost = await judge.judge.judge(replace(rival, answer=ANSWERS[2], rival=ANSWERS[0]))
        long = await judge.judge.judge(replace(query[0], answer="a" * 5000, rival=None))
        rubric = await judge.judge.judge(replace(query[0], criteria=(Criterion("short", 1),)))
    scores = [verdict.score for verdict in alone]
    assert [verdict.score for verdict in together] == pytest.approx(scores, abs=1e-4)
    assert len({*scores[:4]}) > 1 and scores[0] == pytest.approx(scores[4])
    assert all(v.correct == (v.score is not None and v.score >= 0.5) for v in alone)
    assert "average answer (temperature" in alone[0].reason
    assert won.score is not None and lost.score == pytest.approx(1 - won.score, abs=1e-6)
    assert won.correct is not lost.correct and won.parts.keys() == {"answer first", "rival first"}
    assert (long.score, long.source) == (0.0, "floor"), "a text may not buy itself out of a verdict"
    assert "the judge takes 256" in long.reason
    assert (rubric.score, rubric.status) == (None, "refused")


async def test_what_a_judge_writes_and_nobody_can_read_is_no_score(tmp_path: Path):
    tiny_policy().save_merged(tmp_path / "writer")
    asked = {"max_tokens": 8, "second_reading": False}
    how = {"wording": "short", "max_tokens": 2000}
    async with opened(tmp_path / "writer", judge=asked, trained=how) as judge:
        verdicts = await asyncio.gather(
            *(judge.judge.judge(JudgeQuery("Name corn.", a, "")) for a in ANSWERS)
        )
    assert {v.score for v in verdicts} == {None}
    assert {v.status for v in verdicts} <= {"parse_error", "truncated"}
    assert all(v.usage.prompt_tokens > 100 for v in verdicts)


def test_a_judge_that_scores_is_not_asked_of_a_server(run: Path):
    given = {"trained": {"folder": run, "base_url": "http://127.0.0.1:9/v1"}}

    async def enter() -> None:
        async with load_trained_judge(JudgeServerConfig.model_validate(given))():
            pass

    with pytest.raises(ConfigError, match="leave base_url out"):
        asyncio.run(enter())


def test_a_folder_says_what_is_wrong_with_it(run: Path):
    judge = load_judge(find_judge(run), "cpu")
    assert judge.scores and judge.longest == 256
    with pytest.raises(ConfigError, match="writes none"):
        _ = judge.policy.head


class Asking(WorkflowEnvironment):
    """The real environment with one problem and a short prompt."""

    def tasks(self) -> TaskSets:
        return TaskSets([PROBLEM], [PROBLEM])

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", task.question)]


def programs(local: LocalSampler) -> Wrapped:
    """The policy samples and learns its own tokens; what they stand for are programs that run."""

    def change(group: list[Sample]) -> list[Sample]:
        return [replace(s, text=SAYS.format(a)) for s, a in zip(group, ANSWERS, strict=True)]

    return Wrapped(local, change=change)


def asked_at(url: str) -> Config:
    service = {
        "judge_url": url,
        "batch_timeout": 0,
        "max_retries": 0,
        "reconnect_seconds": 0,
        "timeout": 300,
    }
    config = configured(
        {"steps": 2, "prompts_per_step": 1}, evaluation={"every": 0}, judge={"service": service}
    )
    return config.model_copy(update={"sandbox": SandboxSection(workers=1)})


async def rewarded(path: Path, url: str, stack: AsyncExitStack, raises: Any = None) -> Outcome:
    """A policy's run of two steps; ``stack``, which has the judge, is closed before the first."""
    environment = Asking(asked_at(url))
    async with environment.open([PROBLEM]):
        if raises is not None:
            await stack.aclose()
        return await train(path, environment, environment.config, sampler=programs, raises=raises)


async def test_a_served_judge_rewards_a_policy_and_a_dead_one_nobody(run: Path, tmp_path: Path):
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(opened(run))
        app = create_app(judge.judge, JudgeServerConfig(judge={"mode": "rules"}).server)
        url, _ = await stack.enter_async_context(served(app))
        outcome = await rewarded(tmp_path / "alive", url, stack)
        assert outcome.step == 2
        asked = [JudgeQuery(PROBLEM.question, answer, "42", "number") for answer in ANSWERS]
        said = [await judge.judge.judge(one) for one in asked]
        dead = await rewarded(tmp_path / "dead", url, stack, RunPaused)
    for step in (1, 2):
        rows = [*read_rollouts(tmp_path / "alive", step)]
        assert [row["verdict"]["judge"] for row in rows] == ["judge, step_000002"] * 4
        scores = [row["verdict"]["score"] for row in rows]
        assert scores == pytest.approx([one.score for one in said], abs=1e-4)
        assert [row["reward"]["value"] for row in rows] == [float(bool(v.correct)) for v in said]
    lost = [*read_rollouts(tmp_path / "dead", 1)]
    assert [row["reward"]["value"] for row in lost] == [None] * 4
    assert {row["failure"]["reason"] for row in lost} == {"judge_failed"}
    assert "4 of 4 samples could not be scored" in dead.reporter.said[0]


async def test_a_served_judge_is_examined_and_says_what_does_not_apply(run: Path):
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(opened(run))
        app = create_app(
            judge.judge, JudgeServerConfig(judge={"mode": "rules"}).server, notes=judge.notes
        )
        url, _ = await stack.enter_async_context(served(app))
        config = JudgeServerConfig.model_validate({"judge": {"service": {"judge_url": url}}})
        plan = ExamPlan(perturbations=("tone",), repeats=1, resamples=100)
        judges = await stack.enter_async_context(open_exam_judges(config, pairs=True))
        record = await hold_exam(items(4), judges.judge, judges.pair_judge, plan)
    assert record["measures"]["all"]["scored"] == 8 and record["graded"]
    assert record["pairs"][UNEQUAL]["compared"] == 4
    assert record["pairs"][UNEQUAL]["position"]["value"] == 0
    assert record["pairs"][UNEQUAL]["consistency"]["value"] == 1
    assert any("order of two cannot matter" in note for note in judges.notes)
