"""Batches on their way from the sampler to the learner, as far ahead of it as is allowed.

A batch is sampled (on the device), then rolled out (waiting for large models most of the time),
then trained on. With ``pipeline.max_staleness`` s, batch b is sampled as soon as b - 1 - s updates
are done, and is rolled out while the learner is still busy with those before it. Which policy
samples which batch is thus fixed by their numbers and never by who was faster; with s = 0
everything happens in turn. The trainer samples and updates one after the other, so that the device
has one user.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flowright.config import Config
from flowright.data.mixture import Mixture
from flowright.data.task import Task
from flowright.environments.environment import Environment
from flowright.environments.rollout import Completion, Rollout
from flowright.grpo.ranks import ONE, Ranks, interleaved
from flowright.llm.counters import metrics_since
from flowright.policy.prompt import Prompt
from flowright.policy.sampler import Sample, Sampler, Sampling

SEED_STRIDE = 1_000_003
"""Between the sampling seeds of runs: more than any run has steps."""

ROUND_STRIDE = 1 << 40
"""Between the sampling seeds of a step's rounds: more than the seeds of all runs lie apart."""


Pending = Mapping[int, list[list[Sample]]]
"""Samples that wait for the learner: by step, for each prompt."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts, samples and rollouts: lists over P prompts, the inner ones over G attempts."""

    prompts_P: list[Prompt]
    samples_P_G: list[list[Sample]]
    rollouts_P_G: list[list[Rollout]]

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.rollouts_P_G for rollout in group]

    def and_then(self, more: "Batch") -> "Batch":
        """This batch with another behind it."""
        return Batch(
            self.prompts_P + more.prompts_P,
            self.samples_P_G + more.samples_P_G,
            self.rollouts_P_G + more.rollouts_P_G,
        )


def whole(shares: Sequence[Batch]) -> Batch:
    """A batch from the ranks' shares of it."""
    return Batch(
        interleaved([share.prompts_P for share in shares]),
        interleaved([share.samples_P_G for share in shares]),
        interleaved([share.rollouts_P_G for share in shares]),
    )


@dataclass(frozen=True, slots=True)
class _Problem:
    """``place`` is its number in the batch of all ranks."""

    place: int
    task: Task
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class _Started:
    """A batch that was sampled; ``running`` gives it whole, when its rollouts began and ended."""

    samples_P_G: list[list[Sample]]
    running: asyncio.Task[tuple[Batch, float, float]]


class Pipeline:
    """Samples and rolls out this rank's share of the batches of a run. One trainer calls its
    methods, in turn."""

    def __init__(
        self,
        config: Config,
        sampler: Sampler,
        environment: Environment,
        encode: Callable[[Task], Prompt],
        tasks: Sequence[Task],
        ranks: Ranks = ONE,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._sampler = sampler
        self.environment = environment
        self._encode = encode
        self._mixture = Mixture(tasks, config.seed)
        self._spare = Mixture(tasks, f"{config.seed}/resampled")
        self._batches: dict[int, _Started] = {}
        self.seconds: dict[str, float] = {}
        """Of the step in progress, by metric; :meth:`begin` empties it."""

    def begin(self) -> None:
        """A new step: its seconds are counted from here."""
        self.seconds = {"time/sample": 0.0, "time/wait_for_llm": 0.0}

    async def refresh(self, version: int) -> None:
        """Sample from the learner's weights of this moment from now on, as ``version``. Raises
        RunError where the sampler can't."""
        await self._sampler.refresh(version)

    def requests(self) -> dict[str, float]:
        """What servers were asked since this was last asked for, as metrics ``servers/*``."""
        return metrics_since([*self.environment.counters(), *self._sampler.counters])

    async def run_ahead(self, step: int) -> None:
        """Sample what may be sampled before the update of ``step``, and begin its rollouts."""
        ahead = self._config.pipeline.max_staleness or 0
        last = min(step + ahead, self._config.grpo.steps)
        for number in range(step, last + 1):
            if number not in self._batches:
                problems_P = self._problems(number)
                samples_P_G = await self._sample(problems_P, self._seed(number))
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
        problems_P = self._share(tasks_P)
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
        return {number: batch.samples_P_G for number, batch in self._batches.items()}

    def restore(self, pending: Pending) -> None:
        """Roll out again this rank's share of what was pending on all of them."""
        for number, samples_P_G in pending.items():
            self._begin(number, self._problems(number), self._ranks.mine(samples_P_G))

    async def aclose(self) -> None:
        """Stop whatever is still being rolled out."""
        running = [started.running for started in self._batches.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _problems(self, step: int) -> list[_Problem]:
        return self._share(self._mixture.batch(step - 1, self._config.grpo.prompts_per_step))

    def _share(self, tasks_P: Sequence[Task]) -> list[_Problem]:
        mine = self._ranks.mine(list(enumerate(tasks_P)))
        return [_Problem(place, task, self._encode(task)) for place, task in mine]

    def _seed(self, step: int) -> int:
        return self._config.seed * SEED_STRIDE + step

    async def _sample(self, problems_P: Sequence[_Problem], seed: int) -> list[list[Sample]]:
        policy = self._config.policy
        sampling = Sampling(policy.temperature, policy.top_p, policy.max_new_tokens, seed)
        if not problems_P:  # fewer than there are ranks
            return []
        prompts_P = [problem.prompt.token_ids for problem in problems_P]
        places_P = [problem.place for problem in problems_P]
        began = time.perf_counter()
        size = self._config.grpo.group_size
        drawn = await self._sampler.sample(prompts_P, size, sampling, places_P)
        self.seconds["time/sample"] += time.perf_counter() - began
        return drawn

    def _begin(
        self, number: int, problems_P: Sequence[_Problem], samples_P_G: list[list[Sample]]
    ) -> None:
        async def run() -> tuple[Batch, float, float]:
            began = time.perf_counter()
            batch = await self._rollout(problems_P, samples_P_G, str(number))
            return batch, began, time.perf_counter()

        self._batches[number] = _Started(samples_P_G, asyncio.create_task(run()))

    async def _rollout(
        self, problems_P: Sequence[_Problem], samples_P_G: list[list[Sample]], key: str
    ) -> Batch:
        prefix = f"{self._config.seed}/{key}"
        completions_P_G = [
            [
                Completion(problem.task, sample, f"{prefix}/{problem.place}/{g}")
                for g, sample in enumerate(samples_G)
            ]
            for problem, samples_G in zip(problems_P, samples_P_G, strict=True)
        ]
        rollouts_P_G = await self.environment.rollout(completions_P_G)
        return Batch([problem.prompt for problem in problems_P], samples_P_G, rollouts_P_G)
