"""The training loop: sample, roll out, compare, update, record. It knows prompts, completions and
rewards; what a completion means is the environment's.

Every draw is a function of (seed, step), so that a run resumed from step k repeats the steps after
k to the same numbers.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from flowright.config.root import Config
from flowright.core.errors import PeerLost, RunError, RunPaused
from flowright.data.mixture import tasks_by_kind
from flowright.environments.rollout import Rollout, to_record
from flowright.grpo.advantages import GroupAdvantages, group_advantages, signal_of
from flowright.grpo.batch import Place, asked_for, trained_groups, whole_groups
from flowright.grpo.checkpoint import Saves
from flowright.grpo.learner import Learner
from flowright.grpo.penalties import costs, penalised, task_rewards
from flowright.grpo.pipeline import Batch, Batches, Pipeline, whole
from flowright.grpo.ranks import ONE, Follower, Ranks, Reporter
from flowright.grpo.safeguards import (
    GapAlarm,
    mind_the_judge,
    refuse_garbage,
    stop_on_signals,
    unscored_share,
)
from flowright.grpo.scaffolds import scaffold_metrics, scaffold_record
from flowright.grpo.step_metrics import (
    added,
    memory,
    penalty_metrics,
    signal_metrics,
    staleness,
    token_metrics,
)
from flowright.grpo.token_record import TOKENS, rounded, token_record
from flowright.policy.model_thread import on_model_thread
from flowright.policy.token_texts import TokenTexts
from flowright.runs import RunDirectory, read_metrics
from flowright.runs.alarm import drifts_of

Stage = Literal["start", "sample", "rollout", "update", "evaluate", "save"]


Source = TypeVar("Source", bound=Batches)


@dataclass
class Trainer(Generic[Source]):
    """One run, or one rank's part of it, of parts that know no more than they need. ``batches`` is
    where its steps come from; ``validate`` measures the policy on held-out tasks after a step:
    metrics ``val/*``."""

    config: Config
    run: RunDirectory | Follower
    reporter: Reporter
    batches: Source
    learner: Learner
    saves: Saves
    validate: Callable[[int], Awaitable[dict[str, float]]]
    ranks: Ranks = ONE
    _stopping: str | None = field(default=None, init=False)
    _alarm: GapAlarm = field(init=False)

    def __post_init__(self) -> None:
        self._alarm = GapAlarm(self.config.judge.alarm)

    async def train(self, resume: bool = False) -> int:
        """Run to the last step; returns it, or an earlier one after SIGINT or SIGTERM, when the
        step in progress was finished and saved.

        Raises RunPaused when too many samples of a step could not be scored (law 1).
        """
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
            await self.batches.aclose()
        return steps

    async def _whole_step(self, step: int) -> None:
        """A step with its evaluation and its checkpoint, where they are due."""
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
        asked = await self.ranks.all_gather(self._stopping)  # one rank's signal is everybody's
        self._stopping = next((name for name in asked if name), None)
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
        await self.batches.refresh(0)
        metrics = await self._evaluate(0) if self.config.evaluation.every else {}
        self.run.record(0, metrics | await self._requests())
        self.saves.is_best(0, metrics)
        await self._save(0)
        return 0

    async def _requests(self) -> dict[str, float]:
        """What all ranks asked of servers since the last record."""
        return added(await self.ranks.all_gather(self.batches.requests()))

    async def _restore(self) -> int:
        step = await self.saves.restore()
        if step is None:  # killed before anything was saved
            return await self._begin()
        await self.batches.refresh(step)
        recorded = drifts_of(read_metrics(self.run.path))
        self._alarm.go_on((await self.ranks.all_gather(recorded))[0])
        return step

    async def _step(self, step: int) -> dict[str, float]:
        """Learn from a step's batch; its metrics."""
        raise NotImplementedError

    async def _refresh(self, step: int, metrics: dict[str, float]) -> Sequence[str]:
        """Let the sampler draw from the updated policy. What keeps it from that, on any rank, ends
        the run on all of them, but not before the step is recorded and saved: its update is good.
        """
        began, problems = time.perf_counter(), ()
        try:
            metrics |= await self.batches.refresh(step)
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


@dataclass
class RolloutTrainer(Trainer[Pipeline]):
    """A run whose policy is sampled, and learns from the rewards of its attempts. ``texts``: those
    of tokens, where records keep them."""

    texts: TokenTexts | None = None

    async def _step(self, step: int) -> dict[str, float]:
        batch = await self._roll_out(step)
        rewards_P_G = [[r.reward.value for r in group] for group in batch.rollouts_P_G]
        grpo = self.config.grpo
        advantages_P = group_advantages(task_rewards(batch), grpo.advantage_scale, costs(batch))
        records = self._keep(step, batch, advantages_P)
        refuse_garbage(step, batch.rollouts, grpo.max_unscored)
        warning = mind_the_judge(step, batch.rollouts, self.config.judge)
        if warning:
            self.reporter.say(warning)

        self._stage("update", step)
        began = time.perf_counter()
        groups = trained_groups(batch, advantages_P, grpo.overlong == "filter")
        asked = asked_for(batch, groups, grpo.prompts_per_step)
        # In a thread, so that rollouts of the next batches hear from their servers meanwhile.
        longest = self.config.policy.max_new_tokens
        found: dict[Place, list[float]] | None = None if self.texts is None else {}
        metrics = await on_model_thread(self.learner.update, groups, step, longest, asked, found)
        self.batches.trained(step)
        if found is not None:
            await self._keep_found(step, records, found)
        if skipped := metrics.get("policy/skipped_updates"):
            self.reporter.say(f"gradient not finite: {skipped:.0f} optimizer steps were skipped")
        updating = {"time/update": time.perf_counter() - began}
        environment = self.batches.environment
        named = {name: metrics[of] for name, of in environment.aliases.items() if of in metrics}
        return {
            **environment.summarise(batch.rollouts),
            **signal_metrics(rewards_P_G, advantages_P),
            **penalty_metrics(batch.rollouts),
            **self._resampled(batch),
            **scaffold_metrics(batch.shown_P_G, batch.rollouts_P_G),
            **self.batches.dropped(),
            **token_metrics(batch),
            **staleness(batch, step),
            **metrics,
            **named,
            **self.batches.seconds,
            **updating,
            **memory(self.learner.device),
        }

    async def _roll_out(self, step: int) -> Batch:
        """The step's batch with its rewards, and further rounds where groups have no signal."""
        self.batches.begin()
        batch = await self._joined(self._take(step))
        grpo = self.config.grpo
        for number in range(1, grpo.resample_rounds + 1):
            signals = [signal_of(rewards_G) for rewards_G in task_rewards(batch)]
            missing = grpo.prompts_per_step - signals.count("ok")
            if missing <= 0 or unscored_share(batch.rollouts) > grpo.max_unscored:
                break
            more = self.batches.another_round(step, number, missing)
            batch = batch.and_then(await self._joined(more))
        return batch

    async def _take(self, step: int) -> Batch:
        self._stage("sample", step)
        await self.batches.run_ahead(step)
        self._stage("rollout", step)
        return await self.batches.take(step)

    async def _joined(self, share: Awaitable[Batch]) -> Batch:
        """All ranks' shares of a batch, each with its penalties. Where one rank has
        to pause, all do."""
        mine, problems = Batch([], [], [], []), ()
        try:
            mine = await share
        except RunPaused as error:
            problems = error.problems
        mine = await self._penalised(mine)  # with nothing, too: all run the model or none does
        shares = await self.ranks.all_gather((mine, problems))
        for _, problems in shares:
            if problems:
                raise RunPaused(*problems)
        return whole([batch for batch, _ in shares])

    def _resampled(self, batch: Batch) -> dict[str, float]:
        grpo = self.config.grpo
        more = len(batch.rollouts_P_G) - grpo.prompts_per_step
        return {"reward/resampled_groups": float(more)} if grpo.resample_rounds else {}

    async def _penalised(self, batch: Batch) -> Batch:
        """With what counts in the rewards beside the task: length, the KL to the base model."""
        grpo, nats_S = self.config.grpo, None
        if grpo.kl_in == "reward" and grpo.kl_coefficient:
            nats_S = await on_model_thread(self.learner.divergences, whole_groups(batch))
        return penalised(batch, grpo, self.config.policy.max_new_tokens, nats_S)

    def _keep(
        self, step: int, batch: Batch, advantages_P: Sequence[GroupAdvantages]
    ) -> list[dict[str, Any]]:
        """Rollouts are written before the update, so that a run killed in it can be looked at."""
        environment = self.batches.environment
        records = [
            to_record(
                rollout,
                {
                    **environment.record(rollout),
                    **scaffold_record(batch.shown_P_G[p][g]),
                    **token_record(rollout.sample, self.texts),
                },
                step,
                p,
                g,
                advantages_P[p].values[g],
            )
            for p, group in enumerate(batch.rollouts_P_G)
            for g, rollout in enumerate(group)
        ]
        self.run.keep_rollouts(step, records)
        for kind in tasks_by_kind([r.task for r in batch.rollouts]):
            first = next(r for r in batch.rollouts if r.task.kind == kind)
            text = f"{_headline(first)}\n\n{environment.sample_text(first)}"
            self.run.text(step, f"{environment.display.completion}/{kind}", text)
        return records

    async def _keep_found(
        self, step: int, records: Sequence[dict[str, Any]], found: dict[Place, list[float]]
    ) -> None:
        """Rollouts are written again with what the learner found of their tokens, of all ranks."""
        shares = await self.ranks.all_gather(found)
        known = {place: logprobs for share in shares for place, logprobs in share.items()}
        for record in records:
            logprobs = known.get((record["group"], record["index"]))
            record[TOKENS]["learner"] = None if logprobs is None else rounded(logprobs)
        if known:
            self.run.keep_rollouts(step, records)


def _headline(rollout: Rollout) -> str:
    value = rollout.reward.value
    outcome = "unscored" if value is None else f"reward {value:.2f}"
    why = f" ({rollout.failure})" if rollout.failure else ""
    return f"**{rollout.task.id}**: {outcome}{why}"
