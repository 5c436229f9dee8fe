"""The training loop: take a batch, check it, keep its rollouts, update the policy, record the step.

It knows groups of samples and their advantages, not what a completion means: that is the
environment's. Every draw is a function of (seed, step), so that a run resumed from step k repeats
the steps after k to the same numbers.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flowright.config.root import Config
from flowright.core.errors import PeerLost, RunError, RunPaused
from flowright.grpo.checkpoint import Saves
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import Source, StepBatch
from flowright.grpo.ranks import ONE, Follower, Ranks, Reporter
from flowright.grpo.safeguards import (
    GapAlarm,
    check_agreement,
    check_scored,
    stop_on_signals,
)
from flowright.grpo.step_record import add_learner_logprobs, added, memory
from flowright.policy.model_thread import on_model_thread
from flowright.runs.alarm import drifts_of
from flowright.runs.directory import RunDirectory
from flowright.runs.run_files import read_metrics

Stage = Literal["start", "sample", "rollout", "update", "evaluate", "save"]


@dataclass
class Trainer:
    """One run, or one rank's part of it. Its steps come from ``source``; ``validate`` measures the
    policy on held-out tasks after a step, as metrics ``val/*``."""

    config: Config
    run: RunDirectory | Follower
    reporter: Reporter
    source: Source
    learner: Learner
    saves: Saves
    validate: Callable[[int], Awaitable[dict[str, float]]]
    ranks: Ranks = ONE
    _stopping: str | None = field(default=None, init=False)
    _alarm: GapAlarm = field(init=False)

    def __post_init__(self) -> None:
        self._alarm = GapAlarm(self.config.judge.alarm)

    async def train(self, resume: bool = False) -> int:
        """Run to the last step and return it; after SIGINT or SIGTERM finish and save the step in
        progress and return that. Raises RunPaused when too many samples of a step could not be
        scored (law 1)."""
        steps = self.config.grpo.steps
        try:
            start = await self._restore() if resume else await self._begin()
            with stop_on_signals(self._stop, several=self.ranks.size > 1):
                for step in range(start + 1, steps + 1):
                    await self._whole_step(step)
                    if self._stopping is not None and step < steps:
                        self.run.state(status="interrupted", stage="save", step=step)
                        line = f"{self._stopping}: step {step} is saved; go on: --resume"
                        self.reporter.say(line)
                        return step
        finally:
            await self.source.aclose()
        return steps

    async def _whole_step(self, step: int) -> None:
        """Run one step with its evaluation and its checkpoint, where they are due."""
        steps, began = self.config.grpo.steps, time.perf_counter()
        try:
            metrics = await self._step(step)
        except RunPaused:
            await self._save(step - 1)  # nothing was trained on since: a resumed run loses no step
            raise
        problems, every = await self._refresh(step, metrics), self.config.evaluation.every
        if every and not problems and (step % every == 0 or step == steps):
            metrics |= await self._evaluate(step)
        metrics["time/step"] = time.perf_counter() - began
        busy = sum(metrics.get(f"time/{stage}", 0.0) for stage in ("sample", "update", "evaluate"))
        metrics["time/busy_frac"] = busy / metrics["time/step"]
        metrics |= await self._requests()
        self.run.record(step, metrics)
        self.reporter.step(step, steps, metrics)
        alarm = self._alarm.after(step, metrics)
        signals = await self.ranks.all_gather(self._stopping)  # a signal to one rank stops all
        self._stopping = next((name for name in signals if name), None)
        best = self.saves.is_best(step, metrics)
        paused = alarm is not None and self._alarm.stops
        last = step == steps or self._stopping is not None or bool(problems) or paused
        if last or best or step % self.config.run.checkpoint_every == 0:
            await self._save(step)
        if problems:
            raise RunError(*problems, f"step {step} is saved; once that is mended: --resume")
        if paused:
            line = f"step {step} is saved; look at its answers, mend the judge, and --resume"
            raise RunPaused(f"step {step}: {alarm}", line)
        if alarm is not None:
            self.reporter.say(f"step {step}: {alarm}")

    async def _begin(self) -> int:
        self._stage("start", 0)
        await self.source.refresh(0)
        metrics = await self._evaluate(0) if self.config.evaluation.every else {}
        self.run.record(0, metrics | await self._requests())
        self.saves.is_best(0, metrics)
        await self._save(0)
        return 0

    async def _requests(self) -> dict[str, float]:
        """Add up all ranks' requests to servers since the last record."""
        return added(await self.ranks.all_gather(self.source.requests()))

    async def _restore(self) -> int:
        step = await self.saves.restore()
        if step is None:  # killed before anything was saved
            return await self._begin()
        await self.source.refresh(step)
        recorded = drifts_of(read_metrics(self.run.path))
        self._alarm.resume((await self.ranks.all_gather(recorded))[0])
        return step

    async def _step(self, step: int) -> dict[str, float]:
        """Train on the step's batch; return its metrics. Raises RunPaused for a batch that is not
        to be trained on."""
        batch = await self.source.take(step, self.learner, self._stage)
        self._keep(step, batch)  # before the update, so that a run killed in it can be looked at
        if batch.rollouts:
            check_scored(step, batch.rollouts, self.config.grpo.max_unscored)
            if warning := check_agreement(step, batch.rollouts, self.config.judge):
                self.reporter.say(warning)

        self._stage("update", step)
        began = time.perf_counter()
        longest = self.config.policy.max_new_tokens
        # In a thread, so that rollouts of the next batches hear from their servers meanwhile.
        metrics = await on_model_thread(
            self.learner.update, batch.groups, step, longest, batch.requested, batch.logprobs
        )
        await self._keep_logprobs(step, batch)
        if skipped := metrics.get("policy/skipped_updates"):
            self.reporter.say(f"gradient not finite: {skipped:.0f} optimizer steps were skipped")
        took, aliases = time.perf_counter() - began, self.source.aliases
        return {
            **batch.metrics(),
            **metrics,
            **{name: metrics[of] for name, of in aliases.items() if of in metrics},
            **batch.seconds,
            "time/update": took,
            **memory(self.learner.device),
        }

    def _keep(self, step: int, batch: StepBatch) -> None:
        if batch.records:
            self.run.keep_rollouts(step, batch.records)
        for name, text in batch.texts.items():
            self.run.text(step, name, text)

    async def _keep_logprobs(self, step: int, batch: StepBatch) -> None:
        """Keep the rollouts again with the learner's log-probabilities, all ranks'."""
        if batch.logprobs is None:
            return
        shares = await self.ranks.all_gather(batch.logprobs)
        logprobs = {place: values for share in shares for place, values in share.items()}
        add_learner_logprobs(batch.records, logprobs)
        if logprobs:
            self.run.keep_rollouts(step, batch.records)

    async def _refresh(self, step: int, metrics: dict[str, float]) -> Sequence[str]:
        """Let the sampler draw from the updated policy. A failure on any rank ends the run on all,
        but only once the step is recorded and saved, since its update is good."""
        began, problems = time.perf_counter(), ()
        try:
            metrics |= await self.source.refresh(step)
        except PeerLost:
            raise
        except RunError as error:
            problems = error.problems
        metrics["time/update"] += time.perf_counter() - began
        shares = await self.ranks.all_gather(problems)
        return next((share for share in shares if share), ())

    async def _evaluate(self, step: int) -> dict[str, float]:
        self._stage("evaluate", step)
        began = time.perf_counter()
        metrics = await self.validate(step)
        unscored = metrics.get("val/unscored", 0.0)
        if unscored > self.config.grpo.max_unscored:
            self.reporter.say(f"validation: {unscored:.0%} could not be scored")
        return {**metrics, "time/evaluate": time.perf_counter() - began}

    async def _save(self, step: int) -> None:
        self._stage("save", step)
        await self.saves.save(step)

    def _stage(self, stage: Stage, step: int) -> None:
        self.run.state(status="running", stage=stage, step=step, steps=self.config.grpo.steps)

    def _stop(self, name: str) -> None:
        self._stopping = name
        self.reporter.say(f"{name}: finishing this step; once more to stop at once")
