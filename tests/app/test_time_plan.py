"""The plan of time and money: its arithmetic by hand, what is unknown, how far off it was."""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from monitoring_run import make_run

from flowright.app.plan_basis import (
    Basis,
    batch_seconds,
    busy_seconds,
    find_basis,
    from_run,
)
from flowright.app.preflight_checks import check_start
from flowright.app.time_plan import (
    TimePlan,
    compare_with_plan,
    make_plan,
    plan_lines,
    start_line,
)
from flowright.config.root import Config
from flowright.core.errors import ConfigError, RunError, UserError
from flowright.core.files import write_json
from flowright.data.task import Problem
from flowright.environments.base import (
    Demonstration,
    Environment,
    TaskSets,
    make_environment,
)
from flowright.environments.registry import load_config, make_config
from flowright.runs.directory import RunDirectory
from flowright.viewer.run_report import write_report

ROOT = Path(__file__).resolve().parents[2]


def configured(tmp_path: Path, *more: str) -> Config:
    settings = [f"run.output_dir={tmp_path}", "plan.executor_gpus=2"]
    return load_config(ROOT / "config/quickstart.yaml", [*settings, *more]).on("cpu")


BASIS = Basis(
    "by hand",
    {
        "policy_tokens_in": 100.0, "policy_tokens_out": 50.0,
        "executor_calls": 2.0, "executor_tokens_in": 400.0, "executor_tokens_out": 200.0,
        "judge_calls": 1.0, "judge_tokens_in": 300.0, "judge_tokens_out": 10.0,
    },
    call_seconds={"executor": 1.0, "judge": 1.0},
    sampler=150.0,
    learner=50.0,
)  # fmt: skip
SMALL = (
    *("grpo.steps=10", "grpo.prompts_per_step=4", "grpo.group_size=2", "grpo.epochs=1"),
    *("evaluation.every=4", "evaluation.problems=6", "evaluation.final_problems=8"),
    *("evaluation.samples=2", "llm.max_concurrency=4", "pipeline.max_staleness=0"),
)


SPREAD = 1 + math.sqrt(2 * math.log(8) / 3)
"""The longest of 8 attempts of 3 calls each, over the mean."""


def test_a_batch_takes_as_long_as_its_work_or_its_longest_attempt(tmp_path: Path) -> None:
    """B = calls x seconds / requests in flight, L = the longest chain: sqrt(B^2 + L^2)."""
    config = configured(tmp_path, *SMALL)
    assert busy_seconds(config, BASIS, 8) == 8 * 3 / 4
    assert batch_seconds(config, BASIS, 8) == pytest.approx(math.hypot(6.0, 3.0 * SPREAD))
    assert batch_seconds(config, BASIS, 1) == pytest.approx(math.hypot(3 / 4, 3.0))
    assert batch_seconds(config, BASIS, 0) == 0.0
    wide = configured(tmp_path, *SMALL, "llm.max_concurrency=10000")
    assert batch_seconds(wide, BASIS, 8) == pytest.approx(3.0 * SPREAD, rel=1e-5), "no faster"
    beside = replace(BASIS, path=0.5, own=1.0)  # half of the calls at once, and a second of ours
    spread = 1 + math.sqrt(2 * math.log(8) / 1.5)
    assert batch_seconds(wide, beside, 8) == pytest.approx(1.5 * spread + 8, rel=1e-5)


def test_roles_wait_for_each_other_only_where_they_share_a_model(tmp_path: Path) -> None:
    apart = configured(tmp_path, *SMALL, "judge.model=gpt-oss-120b")
    assert busy_seconds(apart, BASIS, 8) == 8 * 2 / 4
    assert busy_seconds(configured(tmp_path, *SMALL), BASIS, 8) == 8 * 3 / 4


def planned(tmp_path: Path, basis: Basis, *more: str) -> TimePlan:
    config = configured(tmp_path, *SMALL, *more)
    return make_plan(config, basis, validation=7, baselines=3, tried=(5, 6))


def test_the_figures_of_a_small_run_by_hand(tmp_path: Path) -> None:
    """8 attempts a step, 3 calls of 1 s each, 4 in flight: 24 calls keep the servers busy for 6 s,
    and a batch, whose longest attempt takes 3 s x SPREAD, takes the root of both squares.
    Evaluations: steps 0, 4, 8, 10
    of 6 problems x 2; the comparison has 7 problems (all there are) x 2: 2 x 14 of policies,
    (3 + 1) x 14 of baselines, of which 5 are tried on 6 other problems."""
    plan = planned(tmp_path, BASIS)
    assert plan.step["policy_tokens_in"] == 400 and plan.step["policy_tokens_out"] == 400
    assert plan.step["executor_calls"] == 16 and plan.step["judge_tokens_out"] == 80
    assert plan.seconds["sample"] == 4.0 and plan.seconds["update"] == 16.0
    rollout = math.hypot(6.0, 3.0 * SPREAD)
    assert plan.seconds["rollout"] == pytest.approx(rollout) and plan.seconds["busy"] == 6.0
    assert plan.seconds["step"] == pytest.approx(20 + rollout)
    assert plan.seconds["training"] == pytest.approx(10 * (20 + rollout))
    attempts = 80 + 4 * 12 + 2 * 14 + 4 * 14 + 5 * 6
    assert plan.total["executor_calls"] == 2 * attempts
    assert plan.total["policy_tokens_out"] == 50 * (80 + 4 * 12 + 2 * 14)
    assert plan.total["policy_tokens_in"] == 100 * (10 * 4 + 4 * 6 + 2 * 7)
    config = configured(tmp_path, *SMALL)
    twelve, fourteen, six = (batch_seconds(config, BASIS, n) for n in (12, 14, 6))
    assert plan.seconds["evaluations"] == pytest.approx(4 * (6.0 + twelve))
    assert plan.seconds["comparison"] == pytest.approx(2 * 7.0 + 6 * fourteen + 5 * six)
    assert plan.bounds == frozenset() and plan.unknown_without == ()
    served = planned(tmp_path, BASIS, "policy.sampler=vllm", "policy.vllm.model_name=m")
    assert served.seconds["sample"] == 400 / 150, "reading is not counted where others sample"
    more = planned(tmp_path, BASIS, "evaluation.final_samples=5")
    assert more.total["executor_calls"] == 2 * (attempts + (2 + 4) * 7 * (5 - 2))


def test_a_run_for_a_gpu_that_is_not_here_is_planned(tmp_path: Path) -> None:
    """A GPU reads prompts in no time, whichever machine makes the plan."""
    plan = planned(tmp_path, BASIS, "policy.device=cuda")
    assert plan.seconds["sample"] == 400 / 150


def test_stages_overlap_where_rollouts_run_ahead(tmp_path: Path) -> None:
    """S + U = 20 s hide a rollout of 8.8 s. With S + U = 2 s and rollouts that take ten times as
    long one step ahead, two batches wait at once, unless the servers are busy longer."""
    ahead = "pipeline.max_staleness=1"
    plan = planned(tmp_path, BASIS, ahead)
    assert plan.seconds["step"] == 20.0
    rollout = math.hypot(6.0, 3.0 * SPREAD)
    assert plan.seconds["training"] == pytest.approx(9 * 20.0 + 20.0 + rollout)
    slow = {"executor": 10.0, "judge": 10.0}
    quick = replace(BASIS, call_seconds=slow, sampler=600.0, learner=800.0)
    wide = "llm.max_concurrency=64"
    assert planned(tmp_path, quick, ahead, wide).seconds["step"] == pytest.approx(
        (2.0 + math.hypot(240 / 64, 30.0 * SPREAD)) / 2
    )
    assert planned(tmp_path, quick, ahead).seconds["step"] == pytest.approx(60.0)  # 240 s / 4


def test_gpus_that_keep_each_other_busy_and_the_price(tmp_path: Path) -> None:
    """Two executor GPUs are busy 6 of 20 s. With one of them the servers are busy for 12 s, and two
    trainer GPUs need 10. Of eight GPUs, three take 4 s, and five 4 s."""
    prices = ("plan.usd_per_gpu_hour=3.6", "plan.judge.usd_per_million_in=1000")
    plan = planned(tmp_path, BASIS, *prices)
    eight = make_plan(configured(tmp_path, *SMALL), BASIS, 7, 3, gpus=8).balance
    assert "best split of 8 GPUs: 3 for the servers (" in eight[1]
    assert "5 for the trainer, 4.0 s and 4.0 s of a step" in eight[1]
    several = configured(tmp_path, *SMALL, "plan.executor_gpus=3", "physical_gpus=[0,1,2,3,4]")
    slow = replace(BASIS, call_seconds={"executor": 16.0, "judge": 16.0})
    first, second = make_plan(several, slow, 7, 3).balance
    assert first.startswith("bottleneck: the servers, 4.8 to 1")
    assert "6 for the servers (" in second and "2 for the trainer, 48 s and 50 s" in second
    assert plan.usd["GPUs"] == pytest.approx(3 * 3.6 * plan.total["seconds"] / 3600)
    assert plan.usd["tokens"] == pytest.approx(plan.total["judge_tokens_in"] / 1000)
    shown = "\n".join(plan_lines(plan))
    assert "bottleneck: the trainer, 3.3 to 1 (the servers are busy 6.0 s of a step" in shown
    assert "best split of 3 GPUs: 1 for the servers (" in shown
    assert "2 for the trainer, 12 s and 10 s of a step" in shown
    assert "USD" in shown and "at most" not in shown


def test_what_nobody_measured_or_gave_stays_unknown(tmp_path: Path) -> None:
    config = configured(tmp_path, "plan.usd_per_gpu_hour=2")
    environment = make_environment(config)
    plan = planned_by(config, environment, environment.tasks())
    assert "step" not in plan.seconds and "seconds" not in plan.total
    assert not plan.balance and plan.usd == {"GPUs": None}
    assert plan.bounds >= {"policy_tokens_in", "policy_tokens_out", "executor_tokens_out"}
    assert 1.0 < plan.step["executor_calls"] / plan.step["judge_calls"] < 5.0
    shown = "\n".join(plan_lines(plan))
    assert "time: unknown; a first run measures it, or give plan.executor.call_seconds and" in shown
    assert re.search(r"policy tokens in +up to 4,320 +up to 307k\n", shown)
    assert start_line(plan).startswith("time unknown: nothing measured yet; a dry run (--dry-run)")
    assert "price: unknown (GPUs unknown)" in shown


def test_calls_of_a_first_run_are_those_of_the_grammars_programs(tmp_path: Path) -> None:
    """A comprehension counts as often as its range has it, a test asks nobody."""
    environment = make_environment(configured(tmp_path))
    program = """samples = await asyncio.gather(*[answer(problem) for _ in range(5)])
best = await ensemble(problem, samples)
await test(best)
"""
    shown = [Demonstration([], [program])]
    environment.demonstrations = lambda *_: shown  # type: ignore[method-assign]
    assert environment.planned_calls([]) == {"executor": 6.0, "judge": 1}


def planned_by(config: Config, environment: Environment, tasks: TaskSets) -> TimePlan:
    basis = asyncio.run(find_basis(config, environment, tasks))
    return make_plan(config, basis, len(tasks.val), len(environment.baselines()))


def test_given_rates_make_it_known(tmp_path: Path) -> None:
    rates = (
        *("plan.sampler_tokens_per_second=1000", "plan.learner_tokens_per_second=1000"),
        *("plan.executor.call_seconds=2", "plan.judge.tokens_out=64"),
        *("plan.judge.call_seconds=1", "plan.calls_per_attempt=4"),
    )
    config = configured(tmp_path, *rates)
    environment = make_environment(config)
    tasks = environment.tasks()
    basis = asyncio.run(find_basis(config, environment, tasks))
    assert basis.figures["executor_calls"] == 4 and basis.call_seconds["executor"] == 2.0
    assert basis.figures["judge_tokens_out"] == 64 and basis.call_seconds["judge"] == 1.0
    plan = make_plan(config, basis, len(tasks.val), 0)
    assert "seconds" in plan.total
    assert "time: at most" in "\n".join(plan_lines(plan))  # completions of the longest length


class Bare(Environment):
    """An environment that asks nobody and has nothing to show."""

    def tasks(self) -> TaskSets:
        tasks = [Problem(f"t{i}", "math", "toy", f"What is {i}?", str(i)) for i in range(40)]
        return TaskSets(tasks, tasks)


def test_a_probe_without_baselines_says_what_to_set(tmp_path: Path) -> None:
    path = f"{__name__}:Bare"
    config = configured(tmp_path, "plan.probe=2", f"environment={path}")
    bare = Bare(config)
    with pytest.raises(ConfigError, match=r"plan.probe: environment .* has no baselines"):
        asyncio.run(find_basis(config, bare, bare.tasks()))
    calm = config.model_copy(update={"plan": make_config().plan})
    assert "executor_calls" not in planned_by(calm, bare, bare.tasks()).step


def earlier_run(path: Path, **changes: Any) -> Path:
    """TEST DATA: a run of the monitoring's tests with what a plan reads."""
    run = make_run(path, steps=12)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = {
        "time/sample": 2.0, "time/update": 3.0, "time/rollout": 4.0, "time/step": 9.0,
        "tokens/prompt_mean": 100.0, "tokens/completion_mean": 50.0,
        "servers/executor/calls": 60.0, "servers/executor/wire_seconds": 30.0,
        "servers/judge/calls": 30.0, "servers/judge/wire_seconds": 30.0,
        "time/execute": 0.5, "time/judge": 0.5,
    }  # fmt: skip
    kept = [json.dumps({**row, **measured, **changes}) for row in rows if row["step"] > 0]
    (run / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    return run


def test_an_earlier_run_is_the_measure(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "earlier")
    before = json.loads((run / "config.json").read_text())
    size = before["grpo"]["prompts_per_step"] * before["grpo"]["group_size"]
    config = configured(tmp_path, f"plan.earlier_run={run}")
    found = from_run(run, config)
    limit = before["llm"]["max_concurrency_per_server"]
    alone = configured(tmp_path, f"llm.max_concurrency_per_server={limit}")
    assert found.figures["policy_tokens_out"] == 50.0
    read = before["grpo"]["prompts_per_step"] * 100.0
    assert found.sampler == pytest.approx((size * 50.0 + 0.5 * read) / 2.0)
    assert found.learner == pytest.approx(before["grpo"]["epochs"] * (size * 50 + read) / 3.0)
    assert found.figures["executor_calls"] == pytest.approx(60 / size)
    assert found.call_seconds == {"executor": 0.5, "judge": 1.0}
    assert found.path == pytest.approx(min(1.0, 1.0 / (60 / size)))
    assert found.own == pytest.approx(
        max(0.0, 4.0 - batch_seconds(alone, replace(found, own=0.0), size)) / size
    )


def test_a_run_of_other_models_is_not_taken_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "earlier")
    config = configured(tmp_path, "simulated.latency_ms=123")
    environment = make_environment(config)
    plan = planned_by(config, environment, environment.tasks())
    assert plan.source == "nothing measured yet"
    told = from_run(run, config).assumed
    assert any("simulated.latency_ms" in line for line in told)
    (run / "metrics.jsonl").write_text('{"step": 1, "time/update": 3.0}\n')
    with pytest.raises(RunError, match=r"plan.earlier_run: .* its records cannot be read"):
        from_run(run, config)
    with pytest.raises(RunError, match=r"plan.earlier_run: .*no run"):
        from_run(tmp_path / "nowhere", config)
    with pytest.raises(UserError, match=r"plan.earlier_run: .*nowhere: no run"):
        check_start(configured(tmp_path, f"plan.earlier_run={tmp_path / 'nowhere'}"), False)


def test_a_run_says_how_far_off_its_plan_was(tmp_path: Path) -> None:
    given = ("grpo.prompts_per_step=4", "grpo.group_size=2", "plan.usd_per_gpu_hour=3.6")
    config = configured(tmp_path, *given)
    run = RunDirectory(tmp_path / "run", config)
    asked = {"servers/executor/calls": 10.0, "servers/executor/prompt_tokens": 1e6}
    try:
        run.record(0, {"time/evaluate": 5.0, **asked})
        for step in (1, 2):
            lengths = {"tokens/completion_mean": 50.0, "tokens/prompt_mean": 100.0}
            run.record(step, {"time/step": 30.0, "time/evaluate": 5.0, **lengths, **asked})
        run.state(status="finished")
    finally:
        run.close()
    write_json(run.path / "evaluation.json", {"seconds": 7.0, "servers": asked})
    assert compare_with_plan(run.path, config) == []
    plan = make_plan(config, BASIS, 7, 3)
    write_json(run.path / "plan.json", {"planned": plan.to_json()})
    told = compare_with_plan(run.path, config)
    kept = json.loads((run.path / "plan.json").read_text())
    measured: Mapping[str, float] = kept["measured"]
    assert measured["executor_calls"] == 40 and measured["executor_tokens_in"] == 4e6
    assert measured["policy_tokens_out"] == 2 * 8 * 50 and measured["policy_tokens_in"] == 800
    assert measured["training seconds"] == 50.0 and measured["seconds"] == 50 + 15 + 7
    assert kept["compared"]["seconds"]["planned"] == plan.total["seconds"]
    assert kept["compared"]["usd"]["measured"] == pytest.approx(3 * 3.6 * 72 / 3600)
    taken, off = told
    assert re.fullmatch(
        r"plan +took 72 s without loading, planned .*; 0\.22 USD, planned .*", taken
    )
    assert "within 15%: policy tokens in 0.05, " in off and "judge calls 0.00" in off
    page = write_report(run.path).read_text()
    assert "Plan and run" in page and "executor tokens in" in page and "4M" in page
    assert re.search(r"<t[hd][^>]*>usd</t[hd]>", page) and "0.22" in page


def settled(path: Path, basis: Basis, *more: str) -> list[str]:
    """What a run of one step says that took 26 s for training and 36 s for the comparison."""
    small = ("grpo.steps=1", "evaluation.every=0", "evaluation.baselines=false")
    config = configured(path, *SMALL, *small, *more)
    with closing(RunDirectory(path / "run", config)) as run:
        lengths = {"tokens/completion_mean": 50.0, "tokens/prompt_mean": 100.0}
        run.record(1, {"time/step": 26.0, **lengths})
        write_json(run.path / "plan.json", {"planned": make_plan(config, basis, 7, 0).to_json()})
    attempts = 8 + 2 * 14
    asked = {"servers/executor/calls": 2.0 * attempts, "servers/judge/calls": 1.0 * attempts}
    write_json(run.path / "evaluation.json", {"seconds": 36.0, "servers": asked})
    return compare_with_plan(run.path, config)


def test_what_was_near_its_plan_is_not_listed_and_a_bound_is_held_to_its_side(
    tmp_path: Path,
) -> None:
    taken, off = settled(tmp_path / "near", BASIS)
    assert taken == "plan      took 62 s without loading, planned 68 s"
    assert "calls" not in off and "seconds" not in off and "tokens in 0.00" in off
    calls = {name: BASIS.figures[name] for name in ("executor_calls", "judge_calls")}
    figures = {"policy_tokens_in": 300.0, "policy_tokens_out": 20.0, **calls}
    bound = replace(BASIS, figures=figures, bounds=frozenset(figures) - {"judge_calls"})
    taken, off = settled(tmp_path / "bound", bound)
    assert ", planned at most " in taken
    assert "policy tokens in" not in off and "policy tokens out 2.50" in off
    policy = {"policy_tokens_in": 100.0, "policy_tokens_out": 50.0}
    unknown = replace(BASIS, figures={**policy, **calls}, learner=None)
    (only,) = settled(tmp_path / "unknown", unknown)
    assert only.startswith("plan      took 62 s without loading; no time was planned (by hand)")
