"""Saving a run and going on with it, by one process or by all that share it.

What a checkpoint holds and how it is written is :mod:`flowright.grpo.checkpoint`'s. The first rank
reads and writes; the others take over from it what only their own device has.
"""

from flowright.config import RunConfig
from flowright.grpo.checkpoint import (
    Restored,
    has_checkpoint,
    portable_state,
    restore_newest,
    save_checkpoint,
    take_over,
)
from flowright.grpo.follower import Follower, Reporter
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import Pipeline
from flowright.grpo.ranks import Ranks, interleaved
from flowright.policy.model import Policy
from flowright.runs import RunDirectory


class Saves:
    """One run's checkpoints. All ranks call its methods alike."""

    def __init__(
        self,
        section: RunConfig,
        run: RunDirectory | Follower,
        policy: Policy,
        learner: Learner,
        pipeline: Pipeline,
        reporter: Reporter,
        ranks: Ranks,
    ) -> None:
        self._section = section
        self._run = run
        self._policy = policy
        self._learner = learner
        self._pipeline = pipeline
        self._reporter = reporter
        self._ranks = ranks

    async def save(self, step: int) -> None:
        """Everything that the step after this one depends on. Raises RunError (a full disk)."""
        shares = await self._ranks.all_gather(self._pipeline.pending())
        everywhere = [n for n in shares[0] if all(n in share for share in shares)]
        pending = {n: interleaved([share[n] for share in shares]) for n in everywhere}
        if self._ranks.is_first:
            root, keep = self._run.checkpoints_path, self._section.keep_checkpoints
            save_checkpoint(root, step, self._policy, self._learner, keep, pending)

    async def restore(self) -> int | None:
        """Put back the newest checkpoint that is whole, roll out again what was waiting for the
        learner, and forget what was recorded later. Returns its step; None where a run was killed
        before there was one."""
        restored = await self._ranks.broadcast(self._newest())
        if restored is None:
            return None
        state = portable_state(self._policy, self._learner) if self._ranks.size > 1 else b""
        state = await self._ranks.broadcast(state)
        if not self._ranks.is_first:
            take_over(state, self._policy, self._learner)
        self._pipeline.restore(restored.pending)
        return restored.step

    def _newest(self) -> Restored | None:
        if not self._ranks.is_first:
            return None
        if not has_checkpoint(self._run.checkpoints_path):
            self._run.truncate(-1)
            return None
        restored = restore_newest(self._run.checkpoints_path, self._policy, self._learner)
        for problem in restored.passed_over:
            self._reporter.say(f"passed over {problem}")
        self._run.truncate(restored.step)
        self._reporter.say(f"resumed from {restored.path} (step {restored.step})")
        for change in self._run.changes:
            self._reporter.say(f"not as before: {change}")
        return restored
