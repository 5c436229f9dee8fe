"""Batches on their way from the sampler to the learner, as far ahead of it as is allowed.

A batch is sampled (on the device), then rolled out (waiting for large models most of the time),
then trained on. With ``pipeline.max_staleness`` s, batch b is sampled as soon as b - 1 - s updates
are done, and is rolled out while the learner is still busy with those before it. Which policy
samples which batch is thus fixed by their numbers and never by who was faster; with s = 0
everything happens in turn. The trainer samples and updates one after the other, so that the device
has one user.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from flowright.config.root import Config
from flowright.data.mixture import Mixture, tasks_hash
from flowright.data.task import Task
from flowright.environments.environment import Environment
from flowright.environments.rollout import Rollout
from flowright.grpo.problems import Problem, draw_samples, problems_of
from flowright.grpo.ranks import ONE, Ranks, interleaved
from flowright.grpo.scaffolds import Fitting, Shown, shown_to
from flowright.llm.counters import metrics_since
from flowright.policy.prompt import Prompt
from flowright.policy.sampler import Sample, Sampler, Sampling

SEED_STRIDE = 1_000_003
"""Between the sampling seeds of runs: more than any run has steps."""

ROUND_STRIDE = 1 << 40
"""Between the sampling seeds of a step's rounds: more than the seeds of all runs lie apart."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A prompt's samples that wait for the learner. ``asked`` is a hash of the prompt's tokens, of
    what attempts were shown beside, and of how they were sampled: what a resumed run no longer asks
    is not answered by them."""

    task_id: str
    asked: str
    samples: Sequence[Sample]


Pending = Mapping[int, Sequence[Waiting]]
"""What waits for the learner: by step, for each prompt."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts, samples and rollouts: lists over P tasks, the inner ones over G attempts. Those of
    one form of a task have the same prompt and follow each other. That prompt is learned on;
    ``shown_P_G`` is what they were sampled from, None where there are no scaffolds."""

    prompts_P_G: list[list[Prompt]]
    shown_P_G: list[list[Shown | None]]
    samples_P_G: list[list[Sample]]
    rollouts_P_G: list[list[Rollout]]

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.rollouts_P_G for rollout in group]

    def and_then(self, more: "Batch") -> "Batch":
        """This batch with another behind it."""
        return Batch(
            self.prompts_P_G + more.prompts_P_G,
            self.shown_P_G + more.shown_P_G,
            self.samples_P_G + more.samples_P_G,
            self.rollouts_P_G + more.rollouts_P_G,
        )


def whole(shares: Sequence[Batch]) -> Batch:
    """A batch from the ranks' shares of it."""
    return Batch(
        interleaved([share.prompts_P_G for share in shares]),
        interleaved([share.shown_P_G for share in shares]),
        interleaved([share.samples_P_G for share in shares]),
        interleaved([share.rollouts_P_G for share in shares]),
    )


@dataclass(frozen=True, slots=True)
class _Started:
    """A batch that was sampled; ``running`` gives it whole, when its rollouts began and ended."""

    waiting_P: list[Waiting]
    running: asyncio.Task[tuple[Batch, float, float]]


class Batches(Protocol):
    """Where a run's steps come from, as far as its loop and its checkpoints know; see
    :class:`Pipeline`."""

    environment: Environment
    tasks_hash: str

    async def refresh(self, version: int) -> Mapping[str, float]: ...

    def requests(self) -> dict[str, float]: ...

    def pending(self) -> Pending: ...

    def restore(self, pending: Pending) -> list[str]: ...

    def remembered(self) -> Any: ...

    def remember(self, shares: Sequence[Any]) -> None: ...

    async def aclose(self) -> None: ...


class Pipeline:
    """Samples and rolls out this rank's share of the batches of a run. One trainer calls its
    methods, in turn. ``encode`` makes a task's own prompt, ``fitting`` those of its scaffolds."""

    def __init__(
        self,
        config: Config,
        sampler: Sampler,
        environment: Environment,
        encode: Callable[[Task], Prompt],
        fitting: Fitting,
        tasks: Sequence[Task],
        ranks: Ranks = ONE,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._sampler = sampler
        self.environment = environment
        self._encode = encode
        self._fitting = fitting
        self._mixture = Mixture(tasks, config.seed)
        self.tasks_hash = tasks_hash(tasks)
        """Of what the batches are drawn from."""
        self._spare = Mixture(tasks, f"{config.seed}/resampled")
        self._batches: dict[int, _Started] = {}
        self._kept: dict[int, dict[int, list[Sample]]] = {}  # of a resumed run: by step and place
        self._dropped = 0
        self.seconds: dict[str, float] = {}
        """Of the step in progress, by metric; :meth:`begin` empties it."""

    def begin(self) -> None:
        """A new step: its seconds are counted from here."""
        self.seconds = {"time/sample": 0.0, "time/wait_for_llm": 0.0}

    async def refresh(self, version: int) -> Mapping[str, float]:
        """Sample from the learner's weights of this moment from now on, as ``version``; the
        metrics of its proof. Raises RunError where the sampler can't."""
        await self._sampler.refresh(version)
        return self._sampler.metrics

    def requests(self) -> dict[str, float]:
        """What servers were asked since this was last asked for, as metrics ``servers/*``."""
        return metrics_since([*self.environment.counters(), *self._sampler.counters])

    async def run_ahead(self, step: int) -> None:
        """Sample what may be sampled before the update of ``step``, and begin its rollouts."""
        ahead = self._config.pipeline.max_staleness or 0
        last = min(step + ahead, self._config.grpo.steps)
        for number in range(step, last + 1):
            if number not in self._batches:
                problems_P = self._share(self._tasks(number), number)
                kept = self._kept.pop(number, {})
                missing = [problem for problem in problems_P if problem.place not in kept]
                drawn = iter(await self._sample(missing, self._seed(number)))
                samples_P_G = [kept.get(problem.place) or next(drawn) for problem in problems_P]
                self._begin(number, problems_P, samples_P_G)

    async def take(self, step: int) -> Batch:
        """The batch of ``step``; waits for its last attempt. The batch stays
        :meth:`pending` until it is trained on."""
        asked = time.perf_counter()
        batch, began, ended = await self._batches[step].running
        self.seconds["time/wait_for_llm"] += max(0.0, ended - asked)
        self.seconds["time/wait_for_learner"] = max(0.0, asked - ended)
        self.seconds["time/rollout"] = ended - began
        return batch

    async def another_round(self, step: int, number: int, groups: int) -> Batch:
        """This rank's share of so many groups more for a step, from problems kept for this: sampled
        by the policy as it is now and waited for. ``number`` of the round, from 1."""
        size, rounds = self._config.grpo.prompts_per_step, self._config.grpo.resample_rounds
        tasks_P = self._spare.batch((step - 1) * rounds + number - 1, size)[:groups]
        problems_P = self._share(tasks_P, step)
        samples_P_G = await self._sample(problems_P, self._seed(step) + number * ROUND_STRIDE)
        began = time.perf_counter()
        batch = await self._rollout(problems_P, samples_P_G, f"{step}/round-{number}")
        waited = time.perf_counter() - began
        self.seconds["time/wait_for_llm"] += waited
        self.seconds["time/rollout"] += waited
        return batch

    def trained(self, step: int) -> None:
        """The batch of ``step`` has been used."""
        del self._batches[step]

    def pending(self) -> Pending:
        """This rank's samples that are not yet trained on: those of a later policy differ, so a
        resumed run can't draw them again."""
        return {number: batch.waiting_P for number, batch in self._batches.items()}

    def restore(self, pending: Pending) -> list[str]:
        """Take up this rank's share of what was pending on all of them: what is still asked for, in
        the same place, by the same prompt, sampled alike and by a policy that is new enough. The
        rest is dropped and drawn anew. Returns a line for each batch that lost some."""
        lines = []
        for number, waiting_P in pending.items():
            problems_P = self._problems(list(enumerate(self._tasks(number))), number)
            asked_P = [(problem.task.id, self._asked(problem)) for problem in problems_P]
            oldest = number - 1 - (self._config.pipeline.max_staleness or 0)
            fit = {
                place: list(waiting.samples)
                for place, (waiting, asked) in enumerate(zip(waiting_P, asked_P, strict=False))
                if (waiting.task_id, waiting.asked) == asked
                and len(waiting.samples) == self._config.grpo.group_size
                and all(sample.version >= oldest for sample in waiting.samples)
            }
            self._kept[number] = {
                place: fit[place] for place in self._ranks.mine(range(len(asked_P))) if place in fit
            }
            lost = [w for place, w in enumerate(waiting_P) if place not in fit]
            if lost:
                count = sum(len(waiting.samples) for waiting in lost)
                self._dropped += count
                names = ", ".join(waiting.task_id for waiting in lost[:3])
                more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
                lines.append(
                    f"dropped {count} samples that waited for step {number} ({names}{more}): other "
                    "problems, prompts or sampling now; they are drawn anew"
                )
        return lines

    def dropped(self) -> dict[str, float]:
        """How many samples :meth:`restore` dropped, as a metric of the step after it."""
        count, self._dropped = self._dropped, 0
        return {"pipeline/dropped_on_resume": float(count)} if count else {}

    def remembered(self) -> Any:
        """What the environment remembers, but for the batches that are not yet trained on: they
        will be rolled out again, as if for the first time."""
        return self.environment.state([f"{self._config.seed}/{n}/" for n in self._batches])

    def remember(self, shares: Sequence[Any]) -> None:
        """Know again what the ranks remembered: as many as then each their own, else the first's
        (the others' work is done again)."""
        if shares:
            mine = shares[self._ranks.rank] if len(shares) == self._ranks.size else shares[0]
            if mine is not None:
                self.environment.restore(mine)

    async def aclose(self) -> None:
        """Stop whatever is still being rolled out."""
        running = [started.running for started in self._batches.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _tasks(self, step: int) -> list[Task]:
        return self._mixture.batch(step - 1, self._config.grpo.prompts_per_step)

    def _asked(self, problem: Problem) -> str:
        policy = self._config.policy
        how = (policy.temperature, policy.top_p, policy.max_new_tokens)
        asked = hashlib.sha256(str(how).encode())
        for form in problem.forms:
            for token_ids in (form.prompt.token_ids, *(shown.token_ids for shown in form.shown)):
                asked.update(f" {list(token_ids)}".encode())
        return asked.hexdigest()

    def _problems(self, places: Sequence[tuple[int, Task]], step: int) -> list[Problem]:
        grpo, bare_P = self._config.grpo, problems_of(self.environment, self._encode, places)
        show = partial(shown_to, self.environment, self._fitting, step=step, steps=grpo.steps)
        return [problem.scaffolded(show, grpo.group_size) for problem in bare_P]

    def _share(self, tasks_P: Sequence[Task], step: int) -> list[Problem]:
        return self._problems(self._ranks.mine(list(enumerate(tasks_P))), step)

    def _seed(self, step: int) -> int:
        return self._config.seed * SEED_STRIDE + step

    async def _sample(self, problems_P: Sequence[Problem], seed: int) -> list[list[Sample]]:
        policy = self._config.policy
        sampling = Sampling(policy.temperature, policy.top_p, policy.max_new_tokens, seed)
        if not problems_P:  # fewer than there are ranks
            return []
        began = time.perf_counter()
        each_P = [problem.each(self._config.grpo.group_size) for problem in problems_P]
        drawn = await draw_samples(self._sampler, problems_P, each_P, sampling)
        self.seconds["time/sample"] += time.perf_counter() - began
        return drawn

    def _begin(
        self, number: int, problems_P: Sequence[Problem], samples_P_G: list[list[Sample]]
    ) -> None:
        async def run() -> tuple[Batch, float, float]:
            began = time.perf_counter()
            batch = await self._rollout(problems_P, samples_P_G, str(number))
            return batch, began, time.perf_counter()

        waiting_P = [
            Waiting(problem.task.id, self._asked(problem), samples)
            for problem, samples in zip(problems_P, samples_P_G, strict=True)
        ]
        self._batches[number] = _Started(waiting_P, asyncio.create_task(run()))

    async def _rollout(
        self, problems_P: Sequence[Problem], samples_P_G: list[list[Sample]], key: str
    ) -> Batch:
        prefix = f"{self._config.seed}/{key}"
        pairs = list(zip(problems_P, samples_P_G, strict=True))
        rollouts_P_G = await self.environment.rollout(
            [
                problem.completions(samples_G, f"{prefix}/{problem.place}")
                for problem, samples_G in pairs
            ]
        )
        prompts_P_G = [problem.prompts(len(some)) for problem, some in pairs]
        shown_P_G = [problem.shown(len(some)) for problem, some in pairs]
        return Batch(prompts_P_G, shown_P_G, samples_P_G, rollouts_P_G)
