"""The before/after table of a run or an evaluation, as it is made and shown."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from flowright.app.reward_table import reward_table
from flowright.app.terminal import findings, say, stage_progress, table
from flowright.config.root import Config
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.evaluation.comparison import Comparison, Measure, compare
from flowright.evaluation.ledger import Ledger


async def run_comparison(
    config: Config,
    environment: Environment,
    policies: Mapping[str, Measure],
    problems: Sequence[Task],
    select_on: Sequence[Task],
    console: Console,
    ledger: Ledger | None = None,
) -> Comparison:
    """The before/after table, printed and returned."""
    with stage_progress(console, "comparing") as progress:
        comparison = await compare(
            environment,
            policies,
            problems,
            config.evaluation.baselines,
            select_on,
            progress,
            ledger,
        )
    if comparison.by_reward:
        console.print(reward_table(comparison))
    else:
        console.print(table(comparison))
    for line in findings(comparison):
        say(console, line)
    return comparison
