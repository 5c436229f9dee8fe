"""The training loop: sample, play, compare, update, record. It knows prompts, completions and
rewards; what a completion means is the environment's.

Every draw is a function of (seed, step), so that a run resumed from step k repeats the steps after
k to the same numbers.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from flowright.config import Config
from flowright.data.mixture import Mixture
from flowright.data.task import KINDS, Task
from flowright.errors import RunPaused
from flowright.grpo.advantages import GroupAdvantages, group_advantages
from flowright.grpo.batch import Group, Trained
from flowright.grpo.checkpoint import has_checkpoint, restore_newest, save_checkpoint
from flowright.grpo.evaluation import SEED_STRIDE, Evaluator
from flowright.grpo.learner import Learner
from flowright.grpo.rollout import Completion, Environment, Rollout, to_record
from flowright.judge.audit import agreement
from flowright.policy.model import Policy
from flowright.policy.sampler import Sample, Sampler, Sampling
from flowright.runs import RunDirectory
from flowright.workflows.prompt import Prompt

Stage = Literal["start", "sample", "play", "update", "evaluate", "save"]


class Reporter(Protocol):
    """Whoever shows progress to the person at the terminal."""

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None: ...

    def say(self, line: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Played:
    """One step's prompts, samples and rollouts: lists over P prompts, the inner ones over G."""

    prompts_P: list[Prompt]
    samples_P_G: list[list[Sample]]
    rollouts_P_G: list[list[Rollout]]
    seconds: dict[str, float]

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.rollouts_P_G for rollout in group]


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
        self._mixture = Mixture(train_tasks, config.seed)
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
        with self._signals():
            for step in range(start + 1, steps + 1):
                began = time.perf_counter()
                metrics = await self._step_or_pause(step)
                if self._evaluates(step):
                    metrics |= await self._evaluate(step)
                metrics["time/step"] = time.perf_counter() - began
                self._run.record(step, metrics)
                self._reporter.step(step, steps, metrics)
                last = step == steps or self._stopping is not None
                if last or step % self._config.run.checkpoint_every == 0:
                    self._save(step)
                if self._stopping is not None and step < steps:
                    self._run.state(status="interrupted", stage="save", step=step)
                    self._reporter.say(f"{self._stopping}: step {step} is saved; go on: --resume")
                    return step
        return steps

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
        groups = list(_trained_groups(played, advantages_P))
        metrics = self._learner.update(groups, step, self._config.policy.max_new_tokens)
        await self._sampler.refresh(step)
        updating = {"time/update": time.perf_counter() - began}
        return {
            **self._environment.summarise(played.rollouts),
            **_signal_metrics(rewards_P_G, advantages_P),
            **_token_metrics(played),
            **metrics,
            **played.seconds,
            **updating,
            **_memory(self._policy.device),
        }

    async def _play(self, step: int) -> Played:
        config = self._config
        tasks_P = self._mixture.batch(step - 1, config.grpo.prompts_per_step)
        prompts_P = [self._encode(task) for task in tasks_P]
        self._stage("sample", step)
        began = time.perf_counter()
        sampling = Sampling(
            config.policy.temperature,
            config.policy.top_p,
            config.policy.max_new_tokens,
            seed=config.seed * SEED_STRIDE + step,
        )
        samples_P_G = await self._sampler.sample(
            [prompt.token_ids for prompt in prompts_P], config.grpo.group_size, sampling
        )
        sampled = time.perf_counter()
        self._stage("play", step)
        completions_P_G = [
            [Completion(task, s, f"{config.seed}/{step}/{p}/{g}") for g, s in enumerate(samples_G)]
            for p, (task, samples_G) in enumerate(zip(tasks_P, samples_P_G, strict=True))
        ]
        rollouts_P_G = await self._environment.play(completions_P_G)
        seconds = {"time/sample": sampled - began, "time/play": time.perf_counter() - sampled}
        return Played(prompts_P, samples_P_G, rollouts_P_G, seconds)

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
        unscored = [r for r in rollouts if r.reward.value is None]
        share, limit = len(unscored) / len(rollouts), self._config.grpo.max_unscored
        if share > limit:
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
        save_checkpoint(root, step, self._policy, self._learner, keep)

    def _stage(self, stage: Stage, step: int) -> None:
        self._run.state(status="running", stage=stage, step=step, steps=self._config.grpo.steps)

    def _signals(self) -> "_StopOnSignals":
        return _StopOnSignals(self._stop)

    def _stop(self, name: str) -> None:
        self._stopping = name
        self._reporter.say(f"{name}: finishing this step; once more to stop at once")


class _StopOnSignals:
    """SIGINT and SIGTERM ask for a stop after the step; a second one has its usual effect.

    Not through the event loop, which hears of nothing while an update computes.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        self.__exit__()
        self._stop(signal.Signals(number).name)


def _trained_groups(played: Played, advantages_P: Sequence[GroupAdvantages]) -> "list[Group]":
    """The groups with a signal, without their unscored samples."""
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
        ]
        groups.append(Group(prompt.token_ids, kept))
    return groups


def _signal_metrics(
    rewards_P_G: Sequence[Sequence[float | None]], advantages_P: Sequence[GroupAdvantages]
) -> dict[str, float]:
    scored = [r for group in rewards_P_G for r in group if r is not None]
    signals = [advantages.signal for advantages in advantages_P]
    metrics = {
        "reward/zero_variance_frac": signals.count("zero_variance") / len(signals),
        "reward/dropped_groups_frac": signals.count("too_few") / len(signals),
    }
    if len(scored) > 1:
        metrics["reward/std"] = float(torch.tensor(scored, dtype=torch.float64).std())
    return metrics


def _token_metrics(played: Played) -> dict[str, float]:
    samples = [sample for group in played.samples_P_G for sample in group]
    lengths = [len(sample.token_ids) for sample in samples]
    prompts = played.prompts_P
    return {
        "tokens/completion_mean": sum(lengths) / len(lengths),
        "tokens/completion_max": float(max(lengths)),
        "tokens/prompt_mean": sum(len(p.token_ids) for p in prompts) / len(prompts),
        "tokens/cut_frac": sum(s.finish_reason == "length" for s in samples) / len(samples),
        "prompt/truncated": sum(p.truncated for p in prompts) / len(prompts),
    }


def _memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    return {"gpu/memory_gb": torch.cuda.max_memory_allocated(device) / 2**30}


def _sample_text(rollout: Rollout) -> str:
    value = rollout.reward.value
    outcome = "unscored" if value is None else f"reward {value:.2f}"
    why = f" ({rollout.failure})" if rollout.failure else ""
    return f"**{rollout.task.id}**: {outcome}{why}\n\n```python\n{rollout.sample.text}\n```"
