"""An environment of what befalls a worker, by the name `worker_environment:Fated`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flowright.config.root import Config
from flowright.core.errors import ConfigError, UserError
from flowright.data.task import Task
from flowright.environments.base import (
    Environment,
    EnvironmentStatus,
    TaskSets,
    make_environment,
)
from flowright.environments.episode import Episode, Observation
from flowright.environments.registry import make_config
from flowright.environments.rollout import Reward, Rollout
from flowright.llm.counters import Counters
from flowright.policy.sampling import Sample

TASKS = [Task(f"t{i}", "word", "words", f"Say it, {i % 6}.", "y") for i in range(8)]
"""Tasks of six problems: two of them stand twice."""


def is_socket(link: Path) -> bool:
    return str(link.readlink()).startswith("socket:")


class Fated(Environment):
    """A completion is what happens while it is rolled out: ``kill``, ``stop`` (by signals) or
    ``hang``, the first time that the folder ``run.output_dir`` sees it; ``always_kill`` every
    time; ``kill_again`` and ``raise_again``, an answer that fails, the second time; ``wait``;
    ``lambda``, a rollout that cannot be sent. ``judge.model`` is what happens while
    it is made or opened. A problem is known from its first rollout on, which is what it remembers,
    and the reward is 1 for a known one."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._folder = config.run.output_dir
        self._known: dict[str, str] = {}
        self._counters = Counters(["http://127.0.0.1:1/v1"])
        if config.judge.model == "refuse" and not self._first("made"):
            raise ConfigError("judge.model: not in a worker")

    @asynccontextmanager
    async def open(self, tasks: Sequence[Task]) -> AsyncIterator[None]:
        if self.config.judge.model == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config.judge.model == "once" and not self._first("opened"):
            raise UserError("its server is down")
        assert [*tasks] == TASKS
        if sys.argv[0].endswith("environments/worker.py"):
            links = {int(link.name): link for link in Path("/proc/self/fd").iterdir()}
            sockets = [n for n, link in links.items() if link.is_symlink() and is_socket(link)]
            assert not any(map(os.get_inheritable, sockets)), "children would have its channel"
        yield

    def tasks(self) -> TaskSets:
        return TaskSets(TASKS, TASKS)

    def status(self) -> EnvironmentStatus:
        return EnvironmentStatus(notes=(f"{self.config.llm.in_flight(1)} requests",))

    @property
    def max_turns(self) -> int:
        return 2

    async def respond(self, episode: Episode) -> Observation | None:
        await self._befall(episode.sample.text)
        text = episode.sample.text
        if text == "raise" or (text == "raise_again" and not self._first(text)):
            raise ValueError("no answer")
        return Observation(f"after {len(episode.turns)}")

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return [[await self._one(episode) for episode in group] for group in groups]

    async def _one(self, episode: Episode) -> Rollout:
        self._counters.role("executor")["calls"] += 1
        await self._befall(episode.sample.text)
        asker = self._known.setdefault(episode.task.problem, episode.key)
        value = float(asker != episode.key)
        details = (lambda: None) if episode.sample.text == "lambda" else asker
        return Rollout(episode.task, episode.sample, Reward(value, {"x": value}), details=details)

    async def _befall(self, text: str) -> None:
        if text == "always_kill" or (text == "kill" and self._first(text)):
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "kill_again" and not self._first(text) and self._first("killed again"):
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "stop" and self._first(text):
            os.kill(os.getpid(), signal.SIGSTOP)
        if text == "hang" and self._first(text):
            await asyncio.Event().wait()
        await asyncio.sleep(0.2 if text == "wait" else 0)

    def _first(self, name: str) -> bool:
        try:
            (Path(self._folder) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def counters(self) -> Sequence[Counters]:
        return (self._counters,)

    def state(self, without: Sequence[str] = ()) -> Any:
        return [[p, k] for p, k in self._known.items() if not k.startswith(tuple(without))]

    def restore(self, state: Any) -> None:
        self._known |= dict(state)


def fated(folder: Path, **judge: Any) -> Environment:
    return make_environment(
        make_config(environment="worker_environment:Fated", run={"output_dir": folder}, judge=judge)
    )


def groups_of(step: int, texts: dict[int, str] | None = None) -> list[list[Episode]]:
    """Two attempts at each task; ``texts`` are those of first attempts by the task's number."""
    found = []
    for number, task in enumerate(TASKS):
        shown = ((texts or {}).get(number, ""), "wait")
        samples = [Sample((1,), (0.0,), text, "stop", 0) for text in shown]
        key = f"0/{step}/{number}"
        found.append([Episode.single(task, s, f"{key}/{n}") for n, s in enumerate(samples)])
    return found


def seen(rollouts: Sequence[Sequence[Rollout]]) -> list[list[tuple[Any, ...]]]:
    return [[(r.task.id, r.reward.value, r.details) for r in group] for group in rollouts]
