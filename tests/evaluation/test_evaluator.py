"""Measuring policies: who counts, how sure the figures are, and which baseline is the best."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowright.app.comparison_tables import findings
from flowright.config.policy import PolicySection
from flowright.config.root import EvaluationSection
from flowright.core.errors import Failure, Reason
from flowright.core.statistics import bootstrap
from flowright.data.task import Kind, Problem, Task
from flowright.environments.registry import make_config
from flowright.environments.rollout import (
    UNSCORED,
    Completion,
    Reward,
    Rollout,
    Spent,
    to_record,
)
from flowright.environments.workflow.environment import MOST_SAMPLES, WorkflowEnvironment
from flowright.environments.workflow.reward import WorkflowDetails
from flowright.evaluation.comparison import (
    TRAINED,
    UNTRAINED,
    compare,
    summarise,
)
from flowright.evaluation.evaluator import (
    AT_ONCE,
    Evaluator,
    Score,
    TableRow,
    make_row,
    score,
)
from flowright.grading import Gold
from flowright.judging.verdict import Verdict
from flowright.policy.sampling import Prompt, Sample, Sampling
from flowright.workflows.grammar import fixed_workflows
from flowright.workflows.source import Workflow

NOTHING = Sample((), (), "", "stop", -1)


def task(number: int = 0, kind: Kind = "math", source: str = "s") -> Problem:
    tests = ("assert True",) if kind == "code" else ()
    return Problem(f"{kind}-{number}", kind, source, "q", "a", hidden_tests=tests)


def graded(
    gold: bool, judged: bool | None = None, of: Problem | None = None, tokens: int = 10
) -> Rollout:
    """An attempt that gave an answer; the judge agrees with gold unless told otherwise."""
    said = gold if judged is None else judged
    return Rollout(
        of or task(),
        NOTHING,
        Reward(float(said), {"correctness": float(said)}),
        verdict=Verdict(float(said), said, "llm", "ok"),
        gold=Gold(gold, "test"),
        spent=Spent(2, tokens, 0.5),
        details=WorkflowDetails(Workflow("", "", "function", calls=("answer", "answer"))),
    )


def failed(reason: Reason, of: Problem | None = None) -> Rollout:
    failure = Failure(reason, "why")
    ours = failure.blame == "infrastructure"
    reward = UNSCORED if ours else Reward(-0.2, {"validity": -0.2})
    return Rollout(of or task(), NOTHING, reward, failure)


def unjudged(gold: bool) -> Rollout:
    """An attempt that the gold check saw and the judge did not."""
    return Rollout(
        task(),
        NOTHING,
        UNSCORED,
        Failure(Reason.JUDGE_FAILED, "timeout"),
        verdict=Verdict(None, None, "llm", "timeout"),
        gold=Gold(gold, "test"),
    )


def test_the_bootstrap_by_hand():
    # Means over attempts: 1, 0, 1/2 and, for the problem without a score, none: their mean is 1/2.
    mean, low, high = bootstrap([[1.0, 1.0], [0.0], [1.0, None, 0.0], [None, None]])
    assert mean == 0.5 and low is not None and high is not None
    assert 0.0 <= low < mean < high <= 1.0
    assert bootstrap([[None], []]) == (None, None, None)


@pytest.mark.parametrize(
    ("outcome", "low", "high"), [(0.0, 0.0, 0.2425), (1.0, 0.7575, 1.0)], ids=["none", "all"]
)
def test_none_and_all_of_twelve_have_the_interval_of_wilson(
    outcome: float, low: float, high: float
):
    """z^2 / (n + z^2) with z = 1.96 and n = 12 problems, whatever the attempts at each."""
    shown = score([[graded(bool(outcome))] * 3] * 12)
    assert shown.gold == outcome
    assert (shown.gold_low, shown.gold_high) == pytest.approx((low, high), abs=1e-4)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, truth, covered = np.random.default_rng(5), 0.6, 0
    for _ in range(200):
        _, low, high = bootstrap([[float(x)] for x in rng.random(90) < truth])
        assert low is not None and high is not None
        covered += low <= truth <= high
    assert 180 <= covered <= 199  # 95 % of 200 are 190


def test_the_interval_is_of_problems_not_of_attempts():
    """Eight attempts at each problem that always agree are no more evidence than one."""
    outcomes = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert bootstrap([[x] * 8 for x in outcomes]) == bootstrap([[x] for x in outcomes])


@given(st.lists(st.lists(st.none() | st.sampled_from([0.0, 1.0]), max_size=4), max_size=8))
def test_the_mean_lies_in_its_interval(groups: list[list[float | None]]):
    mean, low, high = bootstrap(groups)
    if mean is None or low is None or high is None:
        assert all(value is None for group in groups for value in group)
        return
    assert 0.0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1.0


def test_an_attempt_that_could_not_be_scored_does_not_count():
    lost = failed(Reason.LLM_UNAVAILABLE)
    found = score([[graded(True), lost], [graded(False)], [lost, lost]])
    assert (found.problems, found.gold, found.judge) == (3, 0.5, 0.5)
    assert found.unscored == pytest.approx(3 / 5)
    assert found.valid == 1.0


def test_where_nothing_could_be_scored_there_is_no_accuracy():
    found = score([[failed(Reason.LLM_UNAVAILABLE)], [failed(Reason.SANDBOX_LOST)]])
    assert (found.gold, found.gold_low, found.judge, found.judge_high) == (None,) * 4
    assert (found.valid, found.unscored) == (None, 1.0)
    lost = TableRow("fixed: lost", "baseline", {"all": found, "math": found}, {})
    compared = summarise([lost, row("fixed: a", 0.0, 0.0)], 3, False)
    assert compared.best_single == "fixed: a"  # nothing right is still more than nothing known


def test_a_failure_of_the_policy_is_a_wrong_answer():
    found = score([[graded(True)], [failed(Reason.SYNTAX)], [failed(Reason.CRASHED)]])
    assert (found.gold, found.judge, found.valid) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert found.unscored == 0.0


def test_gold_and_judge_are_counted_apart():
    found = score([[graded(True, judged=False)], [graded(False, judged=True)], [unjudged(True)]])
    assert found.gold == pytest.approx(2 / 3)  # the gold check of the unjudged one stands
    assert found.judge == 0.5
    assert found.unscored == pytest.approx(1 / 3)


def test_costs_are_means_per_attempt():
    found = score([[graded(True, tokens=10), graded(True, tokens=30)], [failed(Reason.SYNTAX)]])
    assert (found.llm_calls, found.tokens, found.seconds) == (2.0, 20.0, 0.5)


def test_a_row_splits_by_kind_and_by_dataset():
    groups = [
        [graded(True, of=task(0, "math", "gsm8k"))],
        [graded(False, of=task(1, "math", "aqua"))],
        [graded(True, of=task(0, "qa", "drop"))],
    ]
    row = make_row("x", "policy", groups, Table())
    assert {k: s.gold for k, s in row.kinds.items()} == {
        "all": pytest.approx(2 / 3),
        "math": 0.5,
        "qa": 1.0,
    }
    assert {k: s.gold for k, s in row.sources.items()} == {"aqua": 0.0, "drop": 1.0, "gsm8k": 1.0}
    assert row.mix == {"math": {"answer": 2.0}, "qa": {"answer": 2.0}}
    assert row.kinds["qa"].problems == 1


def row(
    name: str, math: float, code: float, tokens: float = 100.0, baseline: bool = True
) -> TableRow:
    """A row of 2 problems of maths and 1 of code."""

    def cell(gold: float, problems: int) -> Score:
        return Score(problems, gold, gold, gold, gold, gold, gold, 1.0, 0.0, 1.0, tokens, 1.0)

    kinds = {"all": cell((2 * math + code) / 3, 3), "math": cell(math, 2), "code": cell(code, 1)}
    return TableRow(name, "baseline" if baseline else "policy", kinds, {})


def test_the_best_fixed_workflows_and_the_way_gone_towards_them():
    rows = [
        row(UNTRAINED, 0.3, 0.3, baseline=False),
        row(TRAINED, 0.75, 0.9, baseline=False),
        row("fixed: a", 0.9, 0.0),
        row("fixed: b", 0.6, 1.0),
    ]
    found = summarise(rows, 3, simulated=True)
    assert found.best_single == "fixed: b"  # (2 * 0.6 + 1) / 3 = 0.733 against 0.6
    assert found.best_by_kind == {"math": "fixed: a", "code": "fixed: b"}
    # (2 * 0.9 + 1 * 1.0) / 3 = 0.933333; from 0.3 to 0.8 of it: 0.5 / 0.633333 = 0.789474.
    assert found.best_by_kind_gold == pytest.approx(0.933333, rel=1e-5)
    assert found.gap_closed == pytest.approx(0.789474, rel=1e-5)
    summary = found.to_json()["summary"]
    assert summary["best_by_kind"] == {"math": "fixed: a", "code": "fixed: b"}
    assert summary["chosen_on"] == "the same problems"


def test_past_the_best_baseline_the_way_is_no_share():
    ends = [row(UNTRAINED, 0.3, 0.3, baseline=False), row(TRAINED, 0.9, 0.9, baseline=False)]
    said = findings(summarise([*ends, row("fixed: a", 0.4, 0.4)], 3, simulated=True))
    assert "training went past the best baseline of each kind" in said
    said = findings(summarise([*ends, row("fixed: a", 1.0, 1.0)], 3, simulated=True))
    assert any(line.startswith("training went 86% of the way") for line in said)


def test_workflows_picked_on_other_problems_are_reported_on_these():
    rows = [row("fixed: a", 0.9, 0.0), row("fixed: b", 0.6, 1.0)]
    picks = [row("fixed: a", 0.1, 0.2), row("fixed: b", 0.8, 0.1)]
    found = summarise(rows, 3, False, picks)
    assert found.best_single == "fixed: b"
    assert found.best_by_kind == {"math": "fixed: b", "code": "fixed: a"}
    assert found.best_by_kind_gold == pytest.approx((2 * 0.6 + 0.0) / 3)
    assert found.chosen_on == "other problems"


def test_without_a_gap_there_is_no_share_of_it():
    policies = [row(UNTRAINED, 0.9, 0.9, baseline=False), row(TRAINED, 1.0, 1.0, baseline=False)]
    assert summarise([*policies, row("fixed: a", 0.5, 0.5)], 3, False).gap_closed is None
    nothing = summarise(policies, 3, False)
    assert (nothing.best_single, nothing.best_by_kind, nothing.gap_closed) == ("", {}, None)


def test_self_consistency_gets_the_policys_tokens():
    one = row("fixed: step_by_step", 0.5, 0.5, tokens=100.0)
    spent = {one.name: one.kinds["all"].tokens}
    found = [Table().equal_tokens(tokens, spent) for tokens in (10, 240, 260, 9000)]
    assert [baseline.name for baseline in found if baseline] == [
        f"fixed: vote of {samples}, same tokens" for samples in (1, 2, 3, MOST_SAMPLES)
    ]


@dataclass
class Table(WorkflowEnvironment):
    """An environment in which a table says what a program earns; it keeps what it was asked."""

    right: frozenset[tuple[str, str]] = frozenset()
    keys: list[str] = field(default_factory=list)
    largest: int = 0

    @property
    def simulated(self) -> bool:
        return True

    async def rollout(self, groups: Sequence[Sequence[Completion]]) -> list[list[Rollout]]:
        await asyncio.sleep(0)
        self.largest = max(self.largest, sum(len(group) for group in groups))
        self.keys += [c.key for group in groups for c in group]
        return [
            [graded((c.task.kind, c.sample.text) in self.right, of=c.task) for c in group]
            for group in groups
        ]


@dataclass
class Repeater:
    """A sampler whose completions are the prompt's first token, as text."""

    seeds: list[int] = field(default_factory=list)
    version: int = 0

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        self.seeds.append(sampling.seed)
        return [[Sample((p[0],), (0.0,), str(p[0]), "stop", 0)] * n for p in prompts]

    async def refresh(self, version: int) -> None:
        self.version = version


TASKS = [task(i, kind) for i in range(4) for kind in ("math", "code", "qa")]


async def test_an_evaluation_never_uses_a_training_steps_draws():
    config = make_config(seed=3, evaluation=EvaluationSection(samples=2), policy=PolicySection())
    environment, sampler = Table(frozenset({("qa", "7")})), Repeater()
    evaluator = Evaluator(environment, lambda task: Prompt((7,), False), config)
    rows = [await evaluator.row("p", sampler, TASKS, draw) for draw in (0, 1, 0)]
    training = {config.seed * 1_000_003 + step for step in range(1, 100_000)}
    assert len(set(sampler.seeds)) == 2
    assert not training & set(sampler.seeds)
    assert rows[0] == rows[2]
    assert {k: s.gold for k, s in rows[0].kinds.items()} == {
        "all": pytest.approx(1 / 3),
        "math": 0.0,
        "code": 0.0,
        "qa": 1.0,
    }
    assert len(environment.keys) == 3 * 2 * len(TASKS)
    assert len(set(environment.keys)) == 2 * 2 * len(TASKS)  # the third repeated the first


async def test_a_comparison_measures_every_fixed_workflow_on_the_same_problems():
    programs = fixed_workflows()
    right = {("math", programs["step_by_step"]), ("code", programs["write_code"])}
    environment = Table(frozenset(right))
    evaluator = Evaluator(environment, lambda task: Prompt((1,), False), make_config())
    seen: list[tuple[int, int, str]] = []

    async def policy(tasks: Sequence[Problem]) -> TableRow:
        return await evaluator.row(UNTRAINED, Repeater(), tasks)

    found = await compare(
        environment,
        {UNTRAINED: policy},
        TASKS,
        with_baselines=True,
        progress=lambda *at: seen.append(at),
    )
    names = [row.name for row in found.rows]
    assert names[0] == UNTRAINED
    assert names[1:-1] == [f"fixed: {name}" for name in programs]
    assert names[-1].startswith("fixed: vote of 1,")  # for as many tokens as the policy
    assert {row.kinds["all"].problems for row in found.rows} == {len(TASKS)}
    assert found.best_by_kind["math"] == "fixed: step_by_step"
    assert found.best_by_kind["code"] == "fixed: write_code"
    assert found.best_by_kind_gold == pytest.approx(2 / 3)
    assert [done for done, _, _ in seen] == list(range(len(found.rows)))
    assert {total for _, total, _ in seen} == {len(found.rows)}


async def test_a_prompt_that_was_cut_is_kept_as_the_policy_saw_it():
    kept: list[Rollout] = []

    def encode(task: Task) -> Prompt:
        return Prompt((1,), True, "begin ... end") if task is TASKS[0] else Prompt((1,), False)

    def keep(key: str, groups: Sequence[Sequence[Rollout]]) -> None:
        kept.extend(rollout for group in groups for rollout in group)

    row = await Evaluator(Table(), encode, make_config(), keep=keep).row("p", Repeater(), TASKS)
    assert row.cut == 1
    assert {r.task.id: r.cut_prompt for r in kept if r.cut_prompt} == {TASKS[0].id: "begin ... end"}
    records = [to_record(rollout, {}, 1, 0, 0, None) for rollout in kept]
    assert sum("cut_prompt" in record for record in records) == len(kept) // len(TASKS)


async def test_without_baselines_only_the_policies_are_measured():
    environment = Table()
    evaluator = Evaluator(environment, lambda task: Prompt((1,), False), make_config())

    async def policy(tasks: Sequence[Problem]) -> TableRow:
        return await evaluator.row(TRAINED, Repeater(), tasks)

    found = await compare(environment, {TRAINED: policy}, TASKS, with_baselines=False)
    assert [row.name for row in found.rows] == [TRAINED]


async def test_a_large_evaluation_is_rolled_out_in_parts():
    environment = Table()
    config = make_config(evaluation=EvaluationSection(samples=3))
    evaluator = Evaluator(environment, lambda task: Prompt((1,), False), config)
    tasks = [task(i) for i in range(400)]
    found = await evaluator.row("p", Repeater(), tasks)
    assert found.kinds["all"].problems == 400
    assert len(environment.keys) == 1200
    assert environment.largest <= AT_ONCE
