"""Steps on what the data gives: nothing is sampled and nothing rolled out. Loop, learner and
checkpoints are those of every run.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.config.root import Config
from flowright.core.errors import DataError
from flowright.data.mixture import Mixture, tasks_hash
from flowright.data.task import Task
from flowright.environments.environment import Environment
from flowright.grpo.batch import Group
from flowright.grpo.learner import Learner
from flowright.grpo.lessons import joined, lesson_groups, pair_group
from flowright.grpo.pipeline import Pending
from flowright.grpo.step_metrics import memory
from flowright.grpo.trainer import Trainer
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.prompt import Tokenizer
from flowright.policy.scalar import ScalarHead


class GivenBatches:
    """The batches of a run that learns from its data, in the place of a
    :class:`flowright.grpo.pipeline.Pipeline`: they are a function of the tasks, the seed and the
    step, and nothing of them has to be saved."""

    def __init__(
        self, config: Config, environment: Environment, policy: Policy, tasks: Sequence[Task]
    ) -> None:
        self.environment = environment
        self.tasks_hash = tasks_hash(tasks)
        self._policy = policy
        self._size = config.grpo.prompts_per_step
        self._mixture = Mixture(tasks, config.seed)

    def batch(self, step: int) -> list[Group]:
        """What a step learns from; the first is 1."""
        return self.groups(self._mixture.batch(step - 1, self._size))

    def groups(self, tasks: Sequence[Task]) -> list[Group]:
        """Raises DataError, with the task's id, for what cannot be learned from."""
        found: list[Group] = []
        for task in tasks:
            try:
                found += groups_of(self.environment, task, self._policy.tokenizer, self._scores)
            except DataError as error:
                raise DataError(f"{task.id}: {error}") from error
        return found if self._scores else joined(found)

    @property
    def _scores(self) -> bool:
        return isinstance(self._policy.output, ScalarHead)

    async def refresh(self, version: int) -> Mapping[str, float]:
        return {}

    def requests(self) -> dict[str, float]:
        return {}

    def pending(self) -> Pending:
        return {}

    def restore(self, pending: Pending) -> list[str]:
        return []

    def remembered(self) -> Any:
        return None

    def remember(self, shares: Sequence[Any]) -> None:
        """There is nothing."""

    async def aclose(self) -> None:
        """There is nothing that runs."""


def groups_of(
    environment: Environment, task: Task, tokenizer: Tokenizer, scores: bool
) -> list[Group]:
    """What a task gives to learn from, for a policy that ``scores`` or one that writes. Raises
    DataError as :mod:`flowright.grpo.lessons`."""
    given = environment.given(task)
    if scores:
        return [pair_group(given, tokenizer)]
    return [group for one in given for group in lesson_groups(one, tokenizer)]


class GivenTrainer(Trainer[GivenBatches]):
    """A run of such steps."""

    async def _step(self, step: int) -> dict[str, float]:
        self._stage("update", step)
        began = time.perf_counter()
        groups = self.batches.batch(step)
        longest = self.config.policy.max_new_tokens
        metrics = await on_model_thread(self.learner.update, groups, step, longest)
        named = {f"train/{name}": metrics.get(f"policy/{name}") for name in ("loss", "accuracy")}
        return {
            **metrics,
            **{name: value for name, value in named.items() if value is not None},
            **_token_metrics(groups),
            "time/update": time.perf_counter() - began,
            **memory(self.learner.device),
        }


@dataclass(frozen=True, slots=True)
class GivenValidation:
    """The metrics ``val/*`` of a step: the loss, and where pairs are scored the share that is
    scored as people said, over all of some held-out tasks, each weighing the same."""

    learner: Learner
    batches: GivenBatches
    tasks: Sequence[Task]

    async def __call__(self, step: int) -> dict[str, float]:
        groups = self.batches.groups(self.tasks)
        metrics = await on_model_thread(self.learner.measure, groups)
        return {name.replace("policy/", "val/", 1): value for name, value in metrics.items()}


def _token_metrics(groups: Sequence[Group]) -> dict[str, float]:
    lengths = [len(sample.token_ids) for group in groups for sample in group.samples]
    return {
        "tokens/completion_mean": math.fsum(lengths) / len(lengths),
        "tokens/completion_max": float(max(lengths)),
        "tokens/prompt_mean": sum(len(group.prompt_ids) for group in groups) / len(groups),
    }
