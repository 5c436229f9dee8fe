"""The training loop: sample, play, compare, update, record. It knows prompts, completions and
rewards; what a completion means is the environment's.

Every draw is a function of (seed, step), so that a run resumed from step k repeats the steps after
k to the same numbers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from flowright.config import Config
from flowright.data.mixture import Mixture
from flowright.data.task import KINDS, Task
from flowright.errors import RunPaused
from flowright.grpo.advantages import GroupAdvantages, group_advantages
from flowright.grpo.batch import Group, Trained
from flowright.grpo.checkpoint import has_checkpoint, restore_newest, save_checkpoint
from flowright.grpo.evaluation import Evaluator
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import Pipeline, Played
from flowright.grpo.rollout import Environment, Rollout, to_record
from flowright.grpo.step_metrics import (
    memory,
    penalty_metrics,
    signal_metrics,
    staleness,
    token_metrics,
)
from flowright.grpo.stopping import StopOnSignals
from flowright.judge.audit import agreement
from flowright.policy.model import Policy
from flowright.policy.sampler import Sampler
from flowright.rewards import with_penalty
from flowright.runs import RunDirectory
from flowright.workflows.prompt import Prompt

Stage = Literal["start", "sample", "play", "update", "evaluate", "save"]


class Reporter(Protocol):
    """Whoever shows progress to the person at the terminal."""

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None: ...

    def say(self, line: str) -> None: ...


class Trainer:
    """One run in one process. ``encode`` turns a task into prompt tokens."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        policy: Policy,
        sampler: Sampler,
        environment: Environment,
        encode: Callable[[Task], Prompt],
        train_tasks: Sequence[Task],
        val_tasks: Sequence[Task],
        reporter: Reporter,
    ) -> None:
        self._config = config
        self._run = run
        self._policy = policy
        self._sampler = sampler
        self._environment = environment
        self._encode = encode
        self._pipeline = Pipeline(config, sampler, environment, encode, train_tasks)
        self._val_tasks = Mixture(val_tasks, config.seed).distinct(config.evaluation.problems)
        self._reporter = reporter
        self._evaluator = Evaluator(environment, encode, config)
        self._learner = Learner(policy, config.grpo, config.policy.temperature, config.seed)
        self._stopping: str | None = None

    async def train(self, resume: bool = False) -> int:
        """Run to the last step; returns it, or an earlier one after SIGINT or SIGTERM, when the
        step in progress was finished and saved.

        Raises RunPaused when too many samples of a step could not be scored (law 1).
        """
        start = await self._restore() if resume else await self._begin()
        steps = self._config.grpo.steps
        try:
            with StopOnSignals(self._stop):
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
        if self._evaluates(step):
            metrics |= await self._evaluate(step)
        metrics["time/step"] = time.perf_counter() - began
        busy = sum(metrics.get(f"time/{stage}", 0.0) for stage in ("sample", "update", "evaluate"))
        metrics["time/busy_frac"] = busy / metrics["time/step"]
        self._run.record(step, metrics)
        self._reporter.step(step, steps, metrics)
        last = step == steps or self._stopping is not None
        if last or step % self._config.run.checkpoint_every == 0:
            self._save(step)

    async def _begin(self) -> int:
        self._stage("start", 0)
        metrics = await self._evaluate(0) if self._config.evaluation.every else {}
        self._run.record(0, metrics)
        self._save(0)
        return 0

    async def _restore(self) -> int:
        if not has_checkpoint(self._run.checkpoints_path):  # killed before there was one
            self._run.truncate(-1)
            return await self._begin()
        restored = restore_newest(self._run.checkpoints_path, self._policy, self._learner)
        for problem in restored.passed_over:
            self._reporter.say(f"passed over {problem}")
        self._run.truncate(restored.step)
        await self._sampler.refresh(restored.step)
        self._pipeline.restore(restored.pending)
        self._reporter.say(f"resumed from {restored.path} (step {restored.step})")
        for change in self._run.changes:
            self._reporter.say(f"not as before: {change}")
        return restored.step

    async def _step_or_pause(self, step: int) -> dict[str, float]:
        try:
            return await self._step(step)
        except RunPaused:
            self._save(step - 1)  # nothing was trained on since: a resumed run loses no step
            raise

    async def _step(self, step: int) -> dict[str, float]:
        played = await self._play(step)
        rewards_P_G = [[r.reward.value for r in group] for group in played.rollouts_P_G]
        advantages_P = group_advantages(rewards_P_G, self._config.grpo.advantage_scale)
        self._keep(step, played, advantages_P)
        self._refuse_garbage(step, played.rollouts)
        self._mind_the_judge(step, played.rollouts)

        self._stage("update", step)
        began = time.perf_counter()
        groups = trained_groups(played, advantages_P, self._config.grpo.overlong == "filter")
        # In a thread, so that batches that are being played hear from their servers meanwhile.
        longest = self._config.policy.max_new_tokens
        metrics = await asyncio.to_thread(self._learner.update, groups, step, longest)
        await self._sampler.refresh(step)
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

    async def _play(self, step: int) -> Played:
        """The step's batch with its rewards, and further rounds where groups have no signal."""
        self._stage("sample", step)
        self._pipeline.begin()
        await self._pipeline.run_ahead(step)
        self._stage("play", step)
        played = await self._penalised(await self._pipeline.take(step))
        grpo = self._config.grpo
        for number in range(1, grpo.resample_rounds + 1):
            rewards_P_G = [[r.reward.value for r in group] for group in played.rollouts_P_G]
            signals = [found.signal for found in group_advantages(rewards_P_G)]
            missing = grpo.prompts_per_step - signals.count("ok")
            if missing <= 0 or _unscored(played.rollouts) > grpo.max_unscored:
                break
            more = await self._pipeline.another_round(step, number, missing)
            played = played.and_then(await self._penalised(more))
        return played

    def _resampled(self, played: Played) -> dict[str, float]:
        grpo = self._config.grpo
        more = len(played.prompts_P) - grpo.prompts_per_step
        return {"reward/resampled_groups": float(more)} if grpo.resample_rounds else {}

    async def _penalised(self, played: Played) -> Played:
        """With the KL to the base model in the rewards, where it is to count there."""
        grpo = self._config.grpo
        if grpo.kl_in == "loss" or grpo.kl_coefficient == 0:
            return played
        groups = [
            Group(prompt.token_ids, [Trained(s.token_ids, s.logprobs, 0.0) for s in samples_G])
            for prompt, samples_G in zip(played.prompts_P, played.samples_P_G, strict=True)
        ]
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

    def _refuse_garbage(self, step: int, rollouts: Sequence[Rollout]) -> None:
        limit = self._config.grpo.max_unscored
        if _unscored(rollouts) > limit:
            unscored = [r for r in rollouts if r.reward.value is None]
            reasons = {str(r.failure) for r in unscored[:100]}
            raise RunPaused(
                f"step {step}: {len(unscored)} of {len(rollouts)} samples could not be scored "
                f"(limit {limit:.0%}), so nothing was trained on; mend the cause and --resume",
                *(f"  {reason[:200]}" for reason in sorted(reasons)[:5]),
            )

    def _mind_the_judge(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Law 3: a judge that drifts from gold is said out loud or stops the run, as configured."""
        section = self._config.judge
        found = agreement([r.verdict for r in rollouts], [r.gold for r in rollouts])
        if found is None or found >= section.min_agreement:
            return
        line = (
            f"step {step}: the judge agreed with gold on {found:.0%} of the samples "
            f"(judge.min_agreement {section.min_agreement:.0%})"
        )
        if section.low_agreement == "stop":
            raise RunPaused(f"{line}, so nothing was trained on; look at them and --resume")
        self._reporter.say(line)

    def _evaluates(self, step: int) -> bool:
        every = self._config.evaluation.every
        return every > 0 and (step % every == 0 or step == self._config.grpo.steps)

    async def _evaluate(self, step: int) -> dict[str, float]:
        self._stage("evaluate", step)
        began = time.perf_counter()
        row = await self._evaluator.row(f"step {step}", self._sampler, self._val_tasks, step)
        every = row.kinds["all"]
        measured = {
            "val/gold": every.gold,
            "val/judge": every.judge,
            "val/valid_frac": every.valid,
            "val/unscored": every.unscored,
            "val/tokens_llm_mean": every.tokens,
            **{f"val/gold/{k}": row.kinds[k].gold for k in KINDS if k in row.kinds},
            "time/evaluate": time.perf_counter() - began,
        }
        if every.unscored > self._config.grpo.max_unscored:
            self._reporter.say(f"validation: {every.unscored:.0%} could not be scored")
        return {name: value for name, value in measured.items() if value is not None}

    def _save(self, step: int) -> None:
        self._stage("save", step)
        root, keep = self._run.checkpoints_path, self._config.run.keep_checkpoints
        pending = self._pipeline.pending()
        save_checkpoint(root, step, self._policy, self._learner, keep, pending)

    def _stage(self, stage: Stage, step: int) -> None:
        self._run.state(status="running", stage=stage, step=step, steps=self._config.grpo.steps)

    def _stop(self, name: str) -> None:
        self._stopping = name
        self._reporter.say(f"{name}: finishing this step; once more to stop at once")


def trained_groups(
    played: Played, advantages_P: Sequence[GroupAdvantages], filter_overlong: bool = False
) -> list[Group]:
    """The groups with a signal, without their unscored samples; without those that were cut at
    their longest, too, if that is asked for (DAPO's overlong filtering, arXiv 2503.14476,
    section 3.4)."""
    groups = []
    for prompt, samples_G, rollouts_G, advantages in zip(
        played.prompts_P, played.samples_P_G, played.rollouts_P_G, advantages_P, strict=True
    ):
        if advantages.signal != "ok":
            continue
        kept = [
            Trained(sample.token_ids, sample.logprobs, advantage)
            for sample, rollout, advantage in zip(
                samples_G, rollouts_G, advantages.values, strict=True
            )
            if rollout.reward.value is not None
            and not (filter_overlong and sample.finish_reason == "length")
        ]
        if kept:
            groups.append(Group(prompt.token_ids, kept))
    return groups


def _unscored(rollouts: Sequence[Rollout]) -> float:
    """Their share."""
    return sum(rollout.reward.value is None for rollout in rollouts) / len(rollouts)


def _sample_text(rollout: Rollout) -> str:
    value = rollout.reward.value
    outcome = "unscored" if value is None else f"reward {value:.2f}"
    why = f" ({rollout.failure})" if rollout.failure else ""
    return f"**{rollout.task.id}**: {outcome}{why}\n\n```python\n{rollout.sample.text}\n```"
