"""Evaluations where rewards are a matter of degree: mean rewards in the place of accuracies."""

from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO

import pytest
from rich.console import Console

from flowright.app.comparison_tables import comparison_section
from flowright.core.errors import Failure, Reason
from flowright.data.task import Task
from flowright.environments.base import Baseline, Environment
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.evaluation.comparison import TRAINED, UNTRAINED, Comparison, compare
from flowright.evaluation.evaluator import Evaluator, Score, TableRow, Validation, row_of, score
from flowright.policy.sampling import Prompt, Sample, Sampling
from flowright.runs.run_files import Best, best_of
from flowright.viewer.rendering.report import section_text

TASKS = [Task(str(n), "essay", ("letters", "poems")[n % 2], "Write.", "") for n in range(8)]


class Essays(Environment):
    """Earns what a completion says, and a poem half of it; ``lost`` is what the judge never sees.
    It keeps how many completions it rolled out."""

    rolled = 0

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        return (-1.0, 1.0)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        self.rolled += sum(map(len, groups))
        return [[rolled(c.task, c.sample.text) for c in group] for group in groups]

    def baselines(self) -> Sequence[Baseline]:
        return [Baseline("nothing", "-1"), Baseline("all", "1")]


def rolled(task: Task, said: str) -> Rollout:
    sample = Sample((), (), said, "stop", -1)
    if said == "lost":
        return Rollout(task, sample, UNSCORED, Failure(Reason.JUDGE_FAILED, "down"))
    value = float(said) / (2 if task.source == "poems" else 1)
    return Rollout(task, sample, Reward(value, {"correctness": value}))


class Sayings:
    """A sampler that says the same few things of every prompt."""

    def __init__(self, *said: str) -> None:
        self._said = said

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        assert n == len(self._said)
        return [[Sample((1,), (0.0,), said, "stop", 0) for said in self._said] for _ in prompts]

    async def refresh(self, version: int) -> None:
        pass


def evaluator(samples: int) -> Evaluator:
    config = make_config({"evaluation": {"samples": samples}})
    return Evaluator(Essays(config), lambda task: Prompt((1,), False), config)


async def compared(select_on: Sequence[Task] = ()) -> tuple[Comparison, int]:
    """Two policies and both baselines; how many completions were rolled out."""
    asked = evaluator(2)

    async def before(tasks: Sequence[Task]) -> TableRow:
        return await asked.row(UNTRAINED, Sayings("0", "0.2"), tasks)

    async def after(tasks: Sequence[Task]) -> TableRow:
        return await asked.row(TRAINED, Sayings("0.8", "lost"), tasks)

    policies = {UNTRAINED: before, TRAINED: after}
    found = await compare(asked.environment, policies, TASKS, True, select_on)
    assert isinstance(asked.environment, Essays)
    return found, asked.environment.rolled


async def test_a_mean_reward_is_of_what_was_scored_and_its_interval_of_problems() -> None:
    row = await evaluator(2).row("p", Sayings("0.8", "lost"), TASKS)
    every = row.kinds["all"]
    # Letters earn 0.8 and poems 0.4; half of the attempts are lost, and are no zeros.
    assert row.by_reward and every.headline.value == pytest.approx(0.6)
    low, high = every.headline.low, every.headline.high
    assert low is not None and high is not None and 0.4 <= low < 0.6 < high <= 0.8
    assert (every.unscored, every.gold) == (0.5, None)
    assert {name: cell.headline.value for name, cell in row.sources.items()} == {
        "letters": 0.8,
        "poems": 0.4,
    }
    assert row_of(asdict(row)) == row
    nothing = (await evaluator(1).row("p", Sayings("lost"), TASKS)).kinds["all"].headline
    assert (nothing.value, nothing.low, nothing.high) == (None, None, None)


def test_rewards_below_zero_have_intervals_below_zero() -> None:
    found = score([[rolled(task, "-1")] for task in TASKS], (-1.0, 1.0)).headline
    assert found.value == pytest.approx(-0.75)
    assert found.low is not None and found.high is not None
    assert -1 <= found.low < -0.75 < found.high < 0


def test_other_environments_tell_no_rewards() -> None:
    found = score([[rolled(task, "1")] for task in TASKS])
    assert type(found) is Score and "reward" not in asdict(found)


async def test_no_baseline_is_picked_where_there_is_no_right_and_wrong() -> None:
    found, completions = await compared(select_on=TASKS)
    assert found.by_reward and found.bests == () and found.gap_closed is None
    told = found.to_json()
    assert told["summary"] == {}
    cells = [row["kinds"]["all"]["reward"] for row in told["rows"]]
    assert cells == pytest.approx([0.075, 0.6, -0.75, 0.75])
    assert completions == len(TASKS) * (2 + 2 + 1 + 1), "none to choose a baseline by"


async def test_the_terminal_shows_every_row_and_its_datasets() -> None:
    found, _ = await compared()
    out = StringIO()
    Console(file=out, width=80).print(section_text(comparison_section(found)))
    title, head, *lines = [line.split() for line in out.getvalue().splitlines()]
    assert " ".join(title) == "Mean reward on 8 held-out problems"
    assert head == ["all", "95", "%", "tokens", "diff.", "95", "%", "p"]
    assert [line[0] for line in lines[:12]] == [
        *("untrained", "letters", "poems", "trained", "letters", "poems"),
        *("nothing", "letters", "poems", "all", "letters", "poems"),
    ]
    assert lines[4][:2] == ["letters", "0.800"]
    # 0.8 and 0.4 less 0.1 and 0.05, problem by problem.
    assert lines[0][7] == "+0.53" and 0.004 < float(lines[0][-1]) < 0.012, "2 of 256 tosses"


async def test_the_best_checkpoint_is_that_of_the_highest_mean_reward() -> None:
    rows = []
    for step, said in ((1, "0.2"), (2, "0.6"), (3, "0.4")):
        validation = Validation(evaluator(1), Sayings(said), TASKS)
        rows.append({"step": step, **await validation(step)})
    assert [row["val/reward"] for row in rows] == pytest.approx([0.15, 0.45, 0.3])
    assert "val/gold" not in rows[0]
    best = best_of([{**row, "val/judge": -row["val/reward"]} for row in rows], 0.2)
    assert best == Best(2, "val/reward", rows[1]["val/reward"])
    assert best_of([{**row, "val/gold": -row["val/reward"]} for row in rows], 0.2) == best
    assert str(best) == "step 2 by val/reward 0.45"
