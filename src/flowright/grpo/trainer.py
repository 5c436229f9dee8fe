"""The training loop: sample, play, compare, update, record. It knows prompts, completions and
rewards; what a completion means is the environment's.

Every draw is a function of (seed, step), so that a run resumed from step k repeats the steps after
k to the same numbers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Literal

from flowright.config import Config
from flowright.data.mixture import Mixture
from flowright.data.task import KINDS, Task
from flowright.environments.reward import with_penalty
from flowright.environments.rollout import Environment, Rollout, to_record
from flowright.errors import PeerLost, RunError, RunPaused
from flowright.evaluation.evaluator import Evaluator
from flowright.grpo.advantages import GroupAdvantages, group_advantages
from flowright.grpo.batch import drawn_groups, trained_groups
from flowright.grpo.follower import Follower, Reporter
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import Pipeline, Played, whole
from flowright.grpo.ranks import ONE, Ranks
from flowright.grpo.safeguards import mind_the_judge, refuse_garbage, unscored_share
from flowright.grpo.saves import Saves
from flowright.grpo.step_metrics import (
    memory,
    penalty_metrics,
    signal_metrics,
    staleness,
    token_metrics,
    validation_metrics,
)
from flowright.grpo.stopping import StopOnSignals
from flowright.policy.model import Policy
from flowright.policy.sampler import Sampler
from flowright.runs import RunDirectory
from flowright.workflows.prompt import Prompt

Stage = Literal["start", "sample", "play", "update", "evaluate", "save"]


class Trainer:
    """One run, or one rank's part of it. ``encode`` turns a task into prompt tokens."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory | Follower,
        policy: Policy,
        sampler: Sampler,
        environment: Environment,
        encode: Callable[[Task], Prompt],
        train_tasks: Sequence[Task],
        val_tasks: Sequence[Task],
        reporter: Reporter,
        ranks: Ranks = ONE,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._run = run
        self._policy = policy
        self._sampler = sampler
        self._environment = environment
        self._encode = encode
        self._pipeline = Pipeline(config, sampler, environment, encode, train_tasks, ranks)
        self._val_tasks = Mixture(val_tasks, config.seed).distinct(config.evaluation.problems)
        self._reporter = reporter
        self._evaluator = Evaluator(environment, encode, config, ranks)
        self._learner = Learner(policy, config.grpo, config.policy.temperature, config.seed, ranks)
        self._saves = Saves(config.run, run, policy, self._learner, self._pipeline, reporter, ranks)
        self._stopping: str | None = None

    async def train(self, resume: bool = False) -> int:
        """Run to the last step; returns it, or an earlier one after SIGINT or SIGTERM, when the
        step in progress was finished and saved.

        Raises RunPaused when too many samples of a step could not be scored (law 1).
        """
        steps = self._config.grpo.steps
        try:
            start = await self._restore() if resume else await self._begin()
            with StopOnSignals(self._stop, several=self._ranks.size > 1):
                for step in range(start + 1, steps + 1):
                    await self._whole_step(step)
                    if self._stopping is not None and step < steps:
                        self._run.state(status="interrupted", stage="save", step=step)
                        line = f"{self._stopping}: step {step} is saved; go on: --resume"
                        self._reporter.say(line)
                        return step
        finally:
            await self._pipeline.aclose()
        return steps

    async def _whole_step(self, step: int) -> None:
        """A step with its evaluation and its checkpoint, where they are due."""
        steps, began = self._config.grpo.steps, time.perf_counter()
        metrics = await self._step_or_pause(step)
        problems = await self._refresh(step, metrics)
        if not problems and self._evaluates(step):
            metrics |= await self._evaluate(step)
        metrics["time/step"] = time.perf_counter() - began
        busy = sum(metrics.get(f"time/{stage}", 0.0) for stage in ("sample", "update", "evaluate"))
        metrics["time/busy_frac"] = busy / metrics["time/step"]
        self._run.record(step, metrics)
        self._reporter.step(step, steps, metrics)
        asked = await self._ranks.all_gather(self._stopping)  # one rank's signal is everybody's
        self._stopping = next((name for name in asked if name), None)
        last = step == steps or self._stopping is not None or bool(problems)
        if last or step % self._config.run.checkpoint_every == 0:
            await self._save(step)
        if problems:
            raise RunError(*problems, f"step {step} is saved; once that is mended: --resume")

    async def _begin(self) -> int:
        self._stage("start", 0)
        await self._sampler.refresh(0)
        metrics = await self._evaluate(0) if self._config.evaluation.every else {}
        self._run.record(0, metrics)
        await self._save(0)
        return 0

    async def _restore(self) -> int:
        step = await self._saves.restore()
        if step is None:  # killed before anything was saved
            return await self._begin()
        await self._sampler.refresh(step)
        return step

    async def _step_or_pause(self, step: int) -> dict[str, float]:
        try:
            return await self._step(step)
        except RunPaused:
            await self._save(step - 1)  # nothing was trained on since: a resumed run loses no step
            raise

    async def _step(self, step: int) -> dict[str, float]:
        played = await self._play(step)
        rewards_P_G = [[r.reward.value for r in group] for group in played.rollouts_P_G]
        advantages_P = group_advantages(rewards_P_G, self._config.grpo.advantage_scale)
        self._keep(step, played, advantages_P)
        refuse_garbage(step, played.rollouts, self._config.grpo.max_unscored)
        warning = mind_the_judge(step, played.rollouts, self._config.judge)
        if warning:
            self._reporter.say(warning)

        self._stage("update", step)
        began = time.perf_counter()
        groups = trained_groups(played, advantages_P, self._config.grpo.overlong == "filter")
        # In a thread, so that batches that are being played hear from their servers meanwhile.
        longest = self._config.policy.max_new_tokens
        metrics = await asyncio.to_thread(self._learner.update, groups, step, longest)
        self._pipeline.trained(step)
        updating = {"time/update": time.perf_counter() - began}
        return {
            **self._environment.summarise(played.rollouts),
            **signal_metrics(rewards_P_G, advantages_P),
            **penalty_metrics(played.rollouts),
            **self._resampled(played),
            **token_metrics(played),
            **staleness(played, step),
            **metrics,
            **self._pipeline.seconds,
            **updating,
            **memory(self._policy.device),
        }

    async def _refresh(self, step: int, metrics: dict[str, float]) -> Sequence[str]:
        """Let the sampler draw from the updated policy. What keeps it from that, on any rank, ends
        the run on all of them, but not before the step is recorded and saved: its update is good.
        """
        began, problems = time.perf_counter(), ()
        try:
            await self._sampler.refresh(step)
        except PeerLost:
            raise
        except RunError as error:
            problems = error.problems
        metrics["time/update"] += time.perf_counter() - began
        shares = await self._ranks.all_gather(problems)
        return next((share for share in shares if share), ())

    async def _play(self, step: int) -> Played:
        """The step's batch with its rewards, and further rounds where groups have no signal."""
        self._pipeline.begin()
        played = await self._joined(self._take(step))
        grpo = self._config.grpo
        for number in range(1, grpo.resample_rounds + 1):
            rewards_P_G = [[r.reward.value for r in group] for group in played.rollouts_P_G]
            signals = [found.signal for found in group_advantages(rewards_P_G)]
            missing = grpo.prompts_per_step - signals.count("ok")
            if missing <= 0 or unscored_share(played.rollouts) > grpo.max_unscored:
                break
            more = self._pipeline.another_round(step, number, missing)
            played = played.and_then(await self._joined(more))
        return played

    async def _take(self, step: int) -> Played:
        self._stage("sample", step)
        await self._pipeline.run_ahead(step)
        self._stage("play", step)
        return await self._pipeline.take(step)

    async def _joined(self, share: Awaitable[Played]) -> Played:
        """All ranks' shares of what is being played, each with its penalties. Where one rank has
        to pause, all do."""
        mine, problems = Played([], [], []), ()
        try:
            mine = await share
        except RunPaused as error:
            problems = error.problems
        mine = await self._penalised(mine)  # with nothing, too: all run the model or none does
        shares = await self._ranks.all_gather((mine, problems))
        for _, problems in shares:
            if problems:
                raise RunPaused(*problems)
        return whole([played for played, _ in shares])

    def _resampled(self, played: Played) -> dict[str, float]:
        grpo = self._config.grpo
        more = len(played.prompts_P) - grpo.prompts_per_step
        return {"reward/resampled_groups": float(more)} if grpo.resample_rounds else {}

    async def _penalised(self, played: Played) -> Played:
        """With the KL to the base model in the rewards, where it is to count there."""
        grpo = self._config.grpo
        if grpo.kl_in == "loss" or grpo.kl_coefficient == 0:
            return played
        groups = drawn_groups([prompt.token_ids for prompt in played.prompts_P], played.samples_P_G)
        nats = iter(await asyncio.to_thread(self._learner.divergences, groups))
        rollouts_P_G = [
            [
                rollout.rewarded(with_penalty(rollout.reward, grpo.kl_coefficient * next(nats)))
                for rollout in rollouts_G
            ]
            for rollouts_G in played.rollouts_P_G
        ]
        return replace(played, rollouts_P_G=rollouts_P_G)

    def _keep(self, step: int, played: Played, advantages_P: Sequence[GroupAdvantages]) -> None:
        """Rollouts are written before the update, so that a run killed in it can be looked at."""
        records = [
            to_record(rollout, step, p, g, advantages_P[p].values[g])
            for p, group in enumerate(played.rollouts_P_G)
            for g, rollout in enumerate(group)
        ]
        self._run.keep_rollouts(step, records)
        for kind in KINDS:
            some = [r for r in played.rollouts if r.task.kind == kind]
            if some:
                self._run.text(step, f"workflow/{kind}", _sample_text(some[0]))

    def _evaluates(self, step: int) -> bool:
        every = self._config.evaluation.every
        return every > 0 and (step % every == 0 or step == self._config.grpo.steps)

    async def _evaluate(self, step: int) -> dict[str, float]:
        self._stage("evaluate", step)
        began = time.perf_counter()
        row = await self._evaluator.row(f"step {step}", self._sampler, self._val_tasks, step)
        every = row.kinds["all"]
        if every.unscored > self._config.grpo.max_unscored:
            self._reporter.say(f"validation: {every.unscored:.0%} could not be scored")
        return {**validation_metrics(row.kinds), "time/evaluate": time.perf_counter() - began}

    async def _save(self, step: int) -> None:
        self._stage("save", step)
        await self._saves.save(step)

    def _stage(self, stage: Stage, step: int) -> None:
        self._run.state(status="running", stage=stage, step=step, steps=self._config.grpo.steps)

    def _stop(self, name: str) -> None:
        self._stopping = name
        self._reporter.say(f"{name}: finishing this step; once more to stop at once")


def _sample_text(rollout: Rollout) -> str:
    value = rollout.reward.value
    outcome = "unscored" if value is None else f"reward {value:.2f}"
    why = f" ({rollout.failure})" if rollout.failure else ""
    return f"**{rollout.task.id}**: {outcome}{why}\n\n```python\n{rollout.sample.text}\n```"
