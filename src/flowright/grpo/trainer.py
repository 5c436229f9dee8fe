"""The training loop: take a batch, check it, keep its rollouts, update the policy, record the step.

It knows groups of samples and their advantages; what a completion means is the environment's. A run
ends before its last step on too few scored samples (law 1), on a judge that disagrees with gold
(law 3), and on a signal. Every draw is a function of (seed, step), so that a run resumed from step
k repeats the steps after k to the same numbers.
"""

import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from flowright.config.judge import AlarmSection, JudgeSection
from flowright.config.root import Config
from flowright.core.command_line import AT_ONCE_SECONDS, leave_terminal, stop_signals
from flowright.core.errors import PeerLost, RunError, RunPaused
from flowright.environments.rollout import Rollout
from flowright.grpo.batch import unscored_share
from flowright.grpo.checkpoint import Saves
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import BatchSource, StepBatch
from flowright.grpo.ranks import ONE, Follower, Ranks, Reporter
from flowright.grpo.step_record import add_learner_logprobs, added, memory
from flowright.judging.audit import agreement_with_gold
from flowright.policy.model_thread import on_model_thread
from flowright.runs.alarm import DRIFT, alarm_of, drifts_of
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
    source: BatchSource
    learner: Learner
    saves: Saves
    validate: Callable[[int], Awaitable[dict[str, float]]]
    ranks: Ranks = ONE
    _stopped_by: signal.Signals | None = field(default=None, init=False)
    _alarm: "GapAlarm" = field(init=False)

    def __post_init__(self) -> None:
        self._alarm = GapAlarm(self.config.judge.alarm)

    async def train(self, resume: bool = False) -> int:
        """Run to the last step and return it; after SIGINT, SIGTERM or SIGHUP finish and save the
        step in progress and return that. Raises RunPaused when too many samples of a step could
        not be scored (law 1)."""
        steps = self.config.grpo.steps
        try:
            start = await self._restore() if resume else await self._begin()
            with stop_on_signals(self._stop, several=self.ranks.size > 1):
                for step in range(start + 1, steps + 1):
                    await self._whole_step(step)
                    if self._stopped_by is not None and step < steps:
                        self.run.state(status="interrupted", stage="save", step=step)
                        line = f"{self._stopped_by.name}: step {step} is saved; go on: --resume"
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
        signals = await self.ranks.all_gather(self._stopped_by)  # a signal to one rank stops all
        self._stopped_by = next(filter(None, signals), None)
        best = self.saves.is_best(step, metrics)
        paused = alarm is not None and self._alarm.stops
        last = step == steps or self._stopped_by is not None or bool(problems) or paused
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
        if batch.rollouts and self.config.grpo.needs_rewards:
            check_scored(step, batch.rollouts, self.config.grpo.max_unscored)
            if warning := check_agreement(step, batch.rollouts, self.config.judge):
                self.reporter.say(warning)

        self._stage("update", step)
        began = time.perf_counter()
        longest = self.config.policy.written_tokens(self.source.environment.max_turns)
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
            found = await self.ranks.gather_results(self.source.refresh(step))
            metrics |= found[self.ranks.rank]
        except PeerLost:
            raise
        except RunError as error:
            problems = error.problems
        metrics["time/update"] += time.perf_counter() - began
        return problems

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

    def exit_status(self, step: int) -> int:
        """Return the exit status of a run that ended after ``step``: 0, or 128 and the number of
        the signal that stopped it."""
        if self._stopped_by is None or step == self.config.grpo.steps:
            return 0
        return 128 + self._stopped_by

    def _stop(self, number: signal.Signals) -> None:
        self._stopped_by = number
        self.reporter.say(f"{number.name}: finishing this step; once more to stop at once")


def check_scored(step: int, rollouts: Sequence[Rollout], limit: float) -> None:
    """Raise RunPaused where more than ``limit`` of the samples could not be scored."""
    if unscored_share(rollouts) <= limit:
        return
    unscored = [r for r in rollouts if r.reward.value is None]
    reasons = {str(r.failure) for r in unscored[:100]}
    raise RunPaused(
        f"step {step}: {len(unscored)} of {len(rollouts)} samples could not be scored "
        f"(limit {limit:.0%}), so nothing was trained on; mend the cause and --resume",
        *(f"  {reason[:200]}" for reason in sorted(reasons)[:5]),
    )


def check_agreement(step: int, rollouts: Sequence[Rollout], section: JudgeSection) -> str | None:
    """Return a warning where the judge agrees with gold too rarely; with ``judge.low_agreement:
    stop`` raise RunPaused."""
    found = agreement_with_gold([r.verdict for r in rollouts], [r.gold for r in rollouts])
    if found is None or found >= section.min_agreement:
        return None
    line = (
        f"step {step}: the judge agreed with gold on {found:.0%} of the samples "
        f"(judge.min_agreement {section.min_agreement:.0%})"
    )
    if section.low_agreement == "stop":
        raise RunPaused(f"{line}, so nothing was trained on; look at them and --resume")
    return line


class GapAlarm:
    """The alarm of ``judge.alarm``, step by step; its rule is in :mod:`flowright.runs.alarm`."""

    def __init__(self, section: AlarmSection) -> None:
        self._section = section
        self._course: list[tuple[int, float]] = []

    @property
    def stops(self) -> bool:
        return self._section.action == "stop"

    def after(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Return the alarm after a step; None without one, and where it was raised before and does
        not end the run."""
        before = alarm_of(self._course, self._section)
        if DRIFT in metrics:
            self._course.append((step, metrics[DRIFT]))
        alarm = alarm_of(self._course, self._section)
        return alarm if before is None or self.stops else None

    def resume(self, course: Sequence[tuple[int, float]]) -> None:
        """Go on with the drift by step that a run has recorded."""
        self._course = [*course]


@contextmanager
def stop_on_signals(
    stop: Callable[[signal.Signals], None], several: bool = False
) -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP stop the run after the step; a second one has its usual
    effect.

    Plain handlers, since those of the event loop would not run if it were stuck. Of ``several``
    ranks, one that leaves by an error is terminated by torchrun at once; SIGTERM is then ignored,
    so that its message is printed first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # a worker of Ray, which hears no signals; Ray stops it
        return
    first: float | None = None

    def handle(number: int, frame: object) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            leave_terminal(number)
            stop(signal.Signals(number))
        elif number == signal.SIGINT or now - first > AT_ONCE_SECONDS:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    except BaseException:
        restore()
        if several:
            signal.signal(signal.SIGTERM, lambda *_: None)
        raise
    restore()
