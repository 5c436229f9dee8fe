"""The environment of a configuration for other trainers: for TRL a dataset and a reward function.

TRL itself is not imported; flowright_env is for verifiers. docs/extending/environment.md.
"""

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from datasets import Dataset

from flowright.config.root import Config
from flowright.core.errors import ConfigError, UserError
from flowright.data.task import Task
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode
from flowright.environments.registry import load_config
from flowright.environments.remote import with_workers
from flowright.environments.rollout import Rollout
from flowright.grpo.trainer import check_agreement, check_scored
from flowright.judging.payloads import completion_text
from flowright.judging.reward.patience import LEAST_OF_A_CALL, WINDOW
from flowright.policy.sampling import Sample

_log = logging.getLogger("flowright")


class TasksElsewhere:
    """The environment of a configuration, with its tasks, in another trainer's process. Raises
    UserError for what cannot be used."""

    def __init__(self, config: Config | Path | str, overrides: Sequence[str] = ()) -> None:
        made = config if isinstance(config, Config) else load_config(config, overrides)
        self.config, environment = made, make_environment(made)
        if not environment.rolls_out:
            raise ConfigError(f"environment {made.environment}: its completions cannot be graded")
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.environment = with_workers(environment, made.rollout, _log.warning, ranks=ranks)
        self.tasks = self.environment.tasks()
        self.all = {task.id: task for task in (*self.tasks.train, *self.tasks.val)}
        if note := environment.simulated_note():
            _log.warning(note)

    def open(self) -> AbstractAsyncContextManager[None]:
        return self.environment.open([*self.all.values()])

    def prompts(self, held_out: bool) -> Iterator[tuple[Task, list[dict[str, str]]]]:
        for task in self.tasks.val if held_out else self.tasks.train:
            yield task, [asdict(message) for message in self.environment.messages(task)]


class EnvironmentReward(TasksElsewhere):
    """Awaitable reward function for TRL's GRPOTrainer (TRL >= 1.0); its :meth:`dataset` has the
    prompts.

    Completions are graded as in a run; where a failure of ours ended one it gets None, and TRL
    leaves it out (law 1). Cut ones are read as far as they go. Of a group that several processes
    share, ``reward.cost_weight`` and ``judge.group`` compare parts. Raises UserError for what
    cannot be used, and RunPaused where more than ``grpo.max_unscored`` of the latest 256 attempts
    have no reward.
    """

    __name__ = "environment_reward"

    def __init__(self, config: Config | Path | str, overrides: Sequence[str] = ()) -> None:
        super().__init__(config, overrides)
        if (turns := self.environment.max_turns) > 1:
            raise ConfigError(
                f"environment {self.config.environment}: attempts of {turns} turns; TRL's reward "
                "functions get one completion: set one turn, or use verifiers"
            )
        self._opened = ExitStack()
        self._portal: BlockingPortal | None = None
        self._attempts = Counter[str]()
        self._latest = deque[Rollout](maxlen=WINDOW)

    def dataset(self, held_out: bool = False) -> Dataset:
        """Return prompts and task ids."""
        prompts = self.prompts(held_out)
        return Dataset.from_list([{"prompt": p, "task": task.id} for task, p in prompts])

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        if (ids := columns.get("task")) is None:
            raise UserError("no column task in the dataset; train on reward.dataset()")
        state = columns.get("trainer_state")
        step = 0 if state is None else state.global_step
        tokens = columns.get("completion_ids") or [()] * len(ids)
        attempts = map(self._episode, [step] * len(ids), ids, completions, tokens)
        groups = [list(group) for _, group in groupby(attempts, key=lambda one: one.task.id)]
        work = self._open().start_task_soon(self.environment.rollout, groups)
        rollouts = [r for group in await asyncio.wrap_future(work) for r in group]
        self._latest.extend(rollouts)
        if len(self._latest) >= LEAST_OF_A_CALL:
            check_scored(step, self._latest, self.config.grpo.max_unscored)
        if warning := check_agreement(step, rollouts, self.config.judge):
            _log.warning(warning)
        if (log_metric := columns.get("log_metric")) is not None:
            for metric, value in self.environment.summarise(rollouts).items():
                log_metric(metric, value)
        return [rollout.reward.value for rollout in rollouts]

    def close(self) -> None:
        self._portal = None
        self._opened.close()

    def _episode(self, step: int, id: str, completion: Any, tokens: Sequence[int]) -> Episode:
        # Unlike in a run, a task may come twice in a step, and a group in several processes.
        self._attempts[id] += 1
        key = f"{step}/{id}/{os.environ.get('RANK', '0')}.{self._attempts[id]}"
        sample = Sample(tuple(tokens), (), completion_text(completion), "stop", step)
        return Episode.single(self.all[id], sample, key)

    def _open(self) -> BlockingPortal:
        if self._portal is None:
            portal = self._opened.enter_context(start_blocking_portal())
            self._opened.enter_context(portal.wrap_async_context_manager(self.open()))
            self._portal = portal
        return self._portal
