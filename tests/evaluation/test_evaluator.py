"""Measuring policies: who counts, how sure the figures are, and which baseline is the best."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowright.app.comparison_tables import findings
from flowright.config.policy import PolicySection
from flowright.config.root import Config, EvaluationSection
from flowright.core.errors import Failure, Reason
from flowright.core.statistics import bootstrap, pass_at
from flowright.data.task import Kind, Problem, Task
from flowright.environments.base import Baseline
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.environments.rollout import (
    UNSCORED,
    Reward,
    Rollout,
    Spent,
    to_record,
)
from flowright.environments.workflow.environment import MOST_SAMPLES, WorkflowEnvironment
from flowright.environments.workflow.reward import WorkflowDetails
from flowright.evaluation.comparison import (
    BEST,
    BEST_BRANCHING,
    BEST_BY_CLASS,
    BEST_BY_KIND,
    MIXTURE,
    NEAREST,
    ORACLE,
    TRAINED,
    UNTRAINED,
    Comparison,
    _choices,
    compare,
    summarise,
)
from flowright.evaluation.evaluator import (
    AT_ONCE,
    Evaluator,
    TableRow,
    make_row,
    row_of,
    score,
)
from flowright.grading import Gold
from flowright.judging.verdict import Verdict
from flowright.policy.sampling import Prompt, Sample, Sampling
from flowright.workflows.grammar import branching_workflows, fixed_workflows
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
    lost = TableRow(
        "fixed: lost", "baseline", {"all": found}, {}, outcomes=((None,),) * 3, costs=(1.0,) * 3
    )
    compared = summarised([lost, row("fixed: a", [0], [0], [0])])
    best = compared.best(BEST)
    # Nothing right is still more than nothing known.
    assert best is not None and best.choice == {"all": "fixed: a"}


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


SOME = [task(0, "math"), task(1, "math"), task(2, "code")]


def row(
    name: str, *outcomes: Sequence[float | None], tokens: float = 100.0, baseline: bool = True
) -> TableRow:
    """A row of attempts at some problems of SOME, in their order."""
    groups = [
        [graded(bool(value), of=of, tokens=int(tokens)) for value in some]
        for some, of in zip(outcomes, itertools.cycle(SOME), strict=False)
    ]
    return make_row(name, "baseline" if baseline else "policy", groups, Table())


def summarised(
    rows: Sequence[TableRow],
    picks: Sequence[TableRow] = (),
    tasks: Sequence[Problem] = SOME,
    branching: Sequence[str] = (),
    environment: WorkflowEnvironment | None = None,
) -> Comparison:
    environment = environment or Table()
    fixed = picks or [row for row in rows if row.group == "baseline"]
    baselines = [Baseline(row.name, "", branches=row.name in branching) for row in fixed]
    choices = _choices(environment, baselines, tasks, fixed)
    return summarise(environment, tasks, rows, choices, picks)


def test_the_best_fixed_workflows_and_the_way_gone_towards_them():
    rows = [
        row(UNTRAINED, [1, 0, 0], [0, 0, 0], [0, 0, 0], baseline=False),
        row(TRAINED, [1, 1, 1], [1, 0, 0], [1, 1, 1], baseline=False),
        row("fixed: a", [1, 1, 1], [1, 1, 1], [0, 0, 0]),
        row("fixed: b", [0, 0, 1], [1, 1, 1], [1, 1, 1]),
    ]
    found = summarised(rows, branching=["fixed: a"])
    assert {best.name: best.choice for best in found.bests} == {
        BEST: {"all": "fixed: b"},  # (1/3 + 1 + 1) / 3 = 0.778 against 0.667
        BEST_BRANCHING: {"all": "fixed: a"},
        BEST_BY_KIND: {"math": "fixed: a", "code": "fixed: b"},
    }
    by_kind = found.bests[-1]
    assert by_kind.gold["all"].value == 1.0 and by_kind.gold["code"].value == 1.0
    # From 1/9 to 7/9 of 1: (7/9 - 1/9) / (1 - 1/9) = 3/4.
    assert found.gap_closed is not None
    closed = found.gap_closed
    assert closed.value == pytest.approx(0.75)
    assert closed.low is not None and closed.high is not None
    assert 1 / 3 <= closed.low < 0.75 < closed.high <= 1
    summary = found.to_json()["summary"]
    assert summary["best_by_kind"] == {"math": "fixed: a", "code": "fixed: b"}
    assert summary["chosen_on"] == "the same problems" and summary["best_single"] == "fixed: b"


def test_every_policy_is_compared_with_each_row_problem_by_problem():
    """Marginal intervals of 60 and 70 % of 20 problems overlap; two problems gained and none lost
    is what is known."""
    before, after = [[1]] * 12 + [[0]] * 8, [[1]] * 14 + [[0]] * 6
    tasks = [task(number) for number in range(20)]
    rows = [row(UNTRAINED, *before, baseline=False), row(TRAINED, *after, baseline=False)]
    groups = [[graded(bool(x), of=of, tokens=30)] for (x,), of in zip(before, tasks, strict=True)]
    lost = [[failed(Reason.LLM_UNAVAILABLE)], *groups[1:]]
    rows.append(make_row("fixed: a", "baseline", lost, Table()))
    found = summarised(rows, tasks=tasks)
    pairs = {(one.policy, one.against): one for one in found.differences}
    assert {names for names in pairs if names[0] == UNTRAINED} == {
        (UNTRAINED, name) for name in ("fixed: a", BEST, BEST_BY_KIND)
    }
    change = pairs[TRAINED, UNTRAINED]
    assert change.value == pytest.approx(0.1) and change.problems == 20
    assert change.low == 0.0 and change.high is not None and 0.2 <= change.high <= 0.25
    # Two of four tosses have both signs alike: p = 1/2.
    assert change.p == pytest.approx(0.5, abs=0.05)
    assert pairs[TRAINED, "fixed: a"].problems == 19, "an unscored problem has no difference"
    assert pairs[TRAINED, "fixed: a"].tokens.value == pytest.approx((19 * 70 + 100) / 20)
    same = pairs[UNTRAINED, BEST]
    assert (same.value, same.p) == (0.0, 1.0) and same.low is not None and same.low < 0


def test_the_interval_of_a_difference_covers_it_about_as_often_as_it_says():
    """90 problems of differing difficulty, two draws each, a true difference of 10 points."""
    rng, covered, tasks = np.random.default_rng(3), 0, [task(n) for n in range(90)]
    for _ in range(60):
        base = rng.uniform(0.1, 0.8, 90)
        outcomes = {
            UNTRAINED: rng.random((90, 2)) < base[:, None],
            TRAINED: rng.random((90, 2)) < base[:, None] + 0.1,
        }
        rows = [
            TableRow(
                name,
                "policy",
                {"all": score([[graded(True)]])},
                {},
                outcomes=tuple(tuple(map(float, some)) for some in values),
                costs=(1.0,) * 90,
            )
            for name, values in outcomes.items()
        ]
        (change,) = [d for d in summarised(rows, tasks=tasks).differences if d.policy == TRAINED]
        assert change.low is not None and change.high is not None
        covered += change.low <= 0.1 <= change.high
    assert 52 <= covered <= 60  # 95 % of 60 are 57


def test_pass_at_k_is_unbiased():
    """The mean of all ways to draw k of n attempts, at four right of ten by hand and by count."""
    attempts = [1.0] * 4 + [0.0] * 6
    for k in (1, 2, 3, 10):
        drawn = [max(some) for some in itertools.combinations(attempts, k)]
        assert pass_at(attempts, k) == pytest.approx(sum(drawn) / len(drawn))
    assert pass_at([1.0, None, 0.0], 2) == 1.0 and pass_at([1.0, None], 2) is None
    found = row("p", [1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], baseline=False)
    assert list(found.pass_at) == ["2", "4", "5"]
    assert found.pass_at["2"].value == pytest.approx((1 - 3 / 10 + 0 + 1) / 3)
    assert found.kinds["all"].gold == pytest.approx((0.4 + 0 + 1) / 3), "mean@5"
    assert row("p", [1], [0], [1]).pass_at == {}
    assert row_of(json.loads(json.dumps(asdict(found)))) == found


def test_past_the_best_baseline_the_way_is_no_share():
    ends = [row(UNTRAINED, [0], [0], [0], baseline=False), row(TRAINED, [1], [1], [1])]
    ends[1] = replace(ends[1], group="policy")
    said = findings(summarised([*ends, row("fixed: a", [1], [0], [0])]))
    assert f"training went past the {BEST_BY_KIND}" in said
    said = findings(summarised([*ends, row("fixed: a", [1], [1], [1])]))
    assert any(line.startswith("training went 100% of the way") for line in said)


def test_workflows_picked_on_other_problems_are_reported_on_these():
    rows = [row("fixed: a", [1], [1], [0]), row("fixed: b", [0], [1], [1])]
    picks = [row("fixed: a", [0], [1], [1]), row("fixed: b", [1], [1], [0])]
    found = summarised(rows, picks)
    by_kind = found.best(BEST_BY_KIND)
    assert by_kind is not None and by_kind.choice == {"math": "fixed: b", "code": "fixed: a"}
    assert by_kind.gold["all"].value == pytest.approx(1 / 3)
    assert found.chosen_on == "3 other problems"
    assert [(one.name, one.gold) for one in found.tried] == [
        ("fixed: a", pytest.approx(2 / 3)),
        ("fixed: b", pytest.approx(2 / 3)),
    ]


def test_of_equally_good_workflows_the_cheaper_is_the_best():
    rows = [row("fixed: a", [1], [1], [0], tokens=200), row("fixed: b", [1], [0], [1], tokens=90)]
    best = summarised(rows).best(BEST)
    assert best is not None and best.choice == {"all": "fixed: b"} and best.tokens == 90


def test_the_best_of_each_class_where_the_environment_has_classes():
    class Classes(Table):
        def problem_class(self, task: Task) -> str:
            return "even" if int(task.id[-1]) % 2 == 0 else "odd"

    rows = [row("fixed: a", [1], [0], [1]), row("fixed: b", [0], [1], [0])]
    found = summarised(rows, environment=Classes())
    by_class = found.best(BEST_BY_CLASS)
    assert by_class is not None and by_class.choice == {"even": "fixed: a", "odd": "fixed: b"}
    assert by_class.gold["all"].value == 1.0
    assert summarised(rows).best(BEST_BY_CLASS) is None, "kinds are no classes of their own"


def test_without_a_gap_there_is_no_share_of_it():
    policies = [
        row(UNTRAINED, [1], [1], [0], baseline=False),
        row(TRAINED, [1], [1], [1], baseline=False),
    ]
    assert summarised([*policies, row("fixed: a", [1], [0], [0])]).gap_closed is None
    nothing = summarised(policies)
    assert (nothing.bests, nothing.gap_closed, nothing.to_json()["summary"]) == ((), None, {})


def test_self_consistency_gets_the_policys_tokens():
    one = row("fixed: step_by_step", [1], [0], [1], tokens=100.0)
    spent = {one.name: one.kinds["all"].tokens}
    found = [Table().equal_tokens(tokens, spent) for tokens in (10, 240, 260, 9000)]
    assert [baseline.name for baseline in found if baseline] == [
        f"fixed: vote of {samples}, same tokens" for samples in (1, 2, 3, MOST_SAMPLES)
    ]


@dataclass
class Table(WorkflowEnvironment):
    """An environment in which a table says what a program earns; it keeps what it was asked."""

    config: Config = field(default_factory=make_config)
    right: frozenset[tuple[str, str]] = frozenset()
    keys: list[str] = field(default_factory=list)
    largest: int = 0

    @property
    def simulated(self) -> bool:
        return True

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        await asyncio.sleep(0)
        self.largest = max(self.largest, sum(len(group) for group in groups))
        self.keys += [c.key for group in groups for c in group]
        return [
            [graded((c.task.kind, c.sample.text) in self.right, of=c.task) for c in group]
            for group in groups
        ]


class Priced(Table):
    """A program costs its length."""

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        done = await super().rollout(groups)
        return [
            [replace(r, spent=Spent(money=len(e.sample.text))) for r, e in zip(*pair, strict=True)]
            for pair in zip(done, groups, strict=True)
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
    environment, sampler = Table(right=frozenset({("qa", "7")})), Repeater()
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
    environment = Table(right=frozenset(right))
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
    assert names[1:-1] == [f"fixed: {name}" for name in (*programs, *branching_workflows())]
    assert names[-1].startswith("fixed: vote of 1,")  # for as many tokens as the policy
    assert {row.kinds["all"].problems for row in found.rows} == {len(TASKS)}
    by_kind = found.best(BEST_BY_KIND)
    assert by_kind is not None and by_kind.choice["math"] == "fixed: step_by_step"
    assert by_kind.choice["code"] == "fixed: write_code"
    assert by_kind.gold["all"].value == pytest.approx(2 / 3)
    assert [done for done, _, _ in seen] == list(range(len(found.rows)))
    assert {total for _, total, _ in seen} == {len(found.rows)}


async def test_the_best_baselines_are_chosen_elsewhere_and_drawn_as_often_as_the_policy():
    programs = fixed_workflows()
    right = {("math", programs["self_consistency"]), ("code", programs["write_vote"])}
    environment = Table(right=frozenset(right))
    config = make_config(evaluation=EvaluationSection(samples=2))
    evaluator = Evaluator(environment, lambda task: Prompt((1,), False), config)
    elsewhere = [task(i, kind) for i in range(50, 53) for kind in ("math", "code", "qa")]
    kept: list[tuple[int, str, str, int]] = []

    async def policy(tasks: Sequence[Problem]) -> TableRow:
        return await evaluator.row(TRAINED, Repeater(), tasks)

    found = await compare(
        environment,
        {TRAINED: policy},
        TASKS,
        with_baselines=True,
        select_on=elsewhere,
        samples=2,
        keep=lambda number, name, key, groups: kept.append(
            (number, name, key, sum(map(len, groups)))
        ),
    )
    tried = [f"fixed: {name}" for name in (*programs, *branching_workflows())]
    assert [one.name for one in found.tried] == tried
    measured = [row.name for row in found.rows if row.group == "baseline"]
    assert {"fixed: direct", "fixed: step_by_step", "fixed: self_consistency"} < set(measured)
    assert "fixed: write_vote" in measured and "fixed: programmer" not in measured
    assert {len(some) for row in found.rows for some in row.outcomes} == {2}
    assert [name for _, name, _, _ in kept] == measured
    assert kept[0] == (1, "fixed: direct", "fixed/direct", 2 * len(TASKS))
    assert kept[-1][0] == len(tried) + 1, "the vote at equal tokens has the last number"
    assert len(set(environment.keys)) == len(environment.keys), "no draw is taken twice"


async def test_priced_baselines_are_routed_by_text_among_those_that_are_measured_anyway():
    environment = Priced()
    evaluator = Evaluator(environment, lambda task: Prompt((1,), False), make_config())

    async def policy(tasks: Sequence[Problem]) -> TableRow:
        return await evaluator.row(TRAINED, Repeater(), tasks)

    elsewhere = [task(i, kind) for i in range(50, 53) for kind in ("math", "code", "qa")]
    found = await compare(environment, {TRAINED: policy}, TASKS, True, elsewhere)
    assert [one.name for one in found.at_money] == [MIXTURE, ORACLE, NEAREST]
    (*_, (_, choice)) = found.at_money[-1].mixture
    assert [*choice] == [task.id for task in TASKS]
    assert {*choice.values()} <= {row.name for row in found.rows}


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
