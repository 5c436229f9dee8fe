"""The plan of a run that learns from what its data gives: tokens, and hours at a given rate.

Nothing is sampled and nobody is asked.
"""

from flowright.config.root import Config
from flowright.core.formatting import amount, duration
from flowright.data.mixture import Mixture
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets
from flowright.grpo.fixed_data import groups_of
from flowright.policy.sampling import Tokenizer

COUNTED = 256
"""Rows whose tokens are counted."""


def given_lines(
    config: Config, environment: Environment, tasks: TaskSets, tokenizer: Tokenizer
) -> list[str]:
    """Lines for the dry run. What rows begin with alike counts once. Raises DataError."""
    scores = config.policy.head == "score"

    def mean_tokens(some: list[Task]) -> float:
        groups = [g for task in some for g in groups_of(environment, task, tokenizer, scores)]
        tokens = sum(len(g.prompt_ids) + sum(len(s.token_ids) for s in g.samples) for g in groups)
        return tokens / len(some)

    grpo, every = config.grpo, config.evaluation.every
    each = mean_tokens(Mixture(tasks.train, config.seed).distinct(COUNTED))
    step = each * grpo.prompts_per_step
    lines = [
        f"{amount(each)} tokens a row; {amount(step)} a step, {amount(step * grpo.steps)} the run"
    ]
    if every and tasks.val:
        held = mean_tokens(Mixture(tasks.val, config.seed).distinct(COUNTED)) * len(tasks.val)
        times = 1 + -(-grpo.steps // every)
        lines.append(f"{len(tasks.val):,} held-out rows of {amount(held)} tokens, {times} times")
    rate = config.plan.learner_tokens_per_second
    lines.append(
        f"time: training {duration(step * grpo.steps / rate)}"
        if rate
        else "time: unknown; give plan.learner_tokens_per_second"
    )
    return lines
