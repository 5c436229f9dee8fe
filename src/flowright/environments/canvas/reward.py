"""From an episode to a reward: the canvas of its turns, its program, and what workflows earn; or
FlowSteer's formula."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flowright.core.errors import Failure, Reason
from flowright.core.off_loop import off_loop
from flowright.data.task import Problem
from flowright.environments.canvas.actions import ActionError
from flowright.environments.canvas.graph import CHECKERS, Canvas, program_of
from flowright.environments.episode import Episode, Turn
from flowright.environments.rollout import Reward, Rollout, Spent, means, reward_of
from flowright.environments.workflow.reward import WorkflowDetails, WorkflowRollouts
from flowright.workflows.source import source_in

SMALL = 5
"""Fewer operators than this make a small canvas: too few for FlowSteer's finish rule."""


@dataclass(frozen=True, slots=True)
class CanvasDetails(WorkflowDetails):
    """``canvas``: at the episode's end. ``failed``: turns that were no action."""

    canvas: Canvas = field(default_factory=Canvas)
    failed: int = 0


def final_canvas(episode: Episode) -> Canvas:
    """Return the canvas behind an episode's last turn. Turns without an answer are taken here: one
    that finishes, and those of a replay."""
    canvas = Canvas.restore(episode.memory)
    for turn in episode.turns:
        if turn.observation is None:
            canvas.is_finished, canvas.answer = False, ""
            with suppress(ActionError):
                canvas.act(turn.sample.text)
    return canvas


def structure_score(canvas: Canvas) -> float:
    """Return FlowSteer's structure score, 0 to 1: 0.2 each for a check, a Format and at least six
    operators, 0.4 for a structure (trajectory_reward.py). A loop counts as a structure there, too,
    though its pattern never finds one."""
    names = canvas.names
    fifths = bool(CHECKERS & set(names)) + ("Format" in names) + (len(names) >= 6)
    return (fifths + 2 * bool(canvas.structures)) / 5


def with_flowsteer_reward(rollout: Rollout) -> Rollout:
    """Return the rollout with -1 + min(1, structure) + c [structure = 1], with c the judge's
    verdict, 0 to 1. Unscored attempts and baselines, which have no canvas, keep their rewards."""
    details, verdict = rollout.details, rollout.verdict
    if not isinstance(details, CanvasDetails) or rollout.reward.value is None:
        return rollout
    score = structure_score(details.canvas)
    correct = 0.0
    if rollout.failure is None and verdict is not None:
        ranked = verdict.standing is not None and verdict.score is not None
        correct = verdict.score or 0.0 if ranked else float(bool(verdict.correct))
    gated = correct if score == 1.0 else 0.0
    parts = {"validity": 0.0, "correctness": gated, "structure": score - 1.0}
    return rollout.rewarded(Reward(sum(parts.values()), parts))


class CanvasRollouts(WorkflowRollouts):
    """Rolls out canvases: as programs, by the executor of workflows."""

    async def _one(self, episode: Episode) -> Rollout:
        """Roll out the canvas of an episode. A program that no policy wrote, such as a baseline, is
        run as it is."""
        task, sample = episode.task, episode.sample
        if not sample.token_ids and source_in(sample.text) is not None:
            return await super()._one(episode)
        assert isinstance(task, Problem)
        texts = [turn.sample.text for turn in episode.turns]
        canvas = await off_loop(lambda: final_canvas(episode), *texts)
        failed = sum(turn.is_failed for turn in episode.turns)
        if not canvas.nodes:
            failure = Failure(Reason.NO_PROGRAM, "the canvas is empty at the end")
            reward = reward_of(failure, None, self._rewards)
            details = CanvasDetails(canvas=canvas, failed=failed)
            return Rollout(task, sample, reward, failure, details=details)
        text = program_of(canvas, task.kind == "code")
        program = replace(sample, text=text, finish_reason="stop")
        rollout = await super()._one(replace(episode, turns=(Turn((), program),)))
        known = rollout.details
        assert isinstance(known, WorkflowDetails)
        details = CanvasDetails(known.workflow, known.execution, canvas=canvas, failed=failed)
        spent = rollout.spent or Spent()
        spent += Spent(canvas.calls, canvas.tokens, canvas.seconds)
        return replace(rollout, sample=sample, spent=spent, details=details)


def canvas_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the size of canvases, their structures, and the shares of all attempts that are right
    by gold with a small and a large canvas."""
    known = [(r, d) for r in rollouts if isinstance(d := r.details, CanvasDetails)]
    canvases = [details.canvas for _, details in known]
    graded = [(d.canvas, r.gold_score == 1.0) for r, d in known if r.gold_score is not None]
    small = [(len(canvas.names) < SMALL, right) for canvas, right in graded]
    return means(
        {
            "canvas/operators": [len(canvas.names) for canvas in canvases],
            "canvas/structured": [bool(canvas.structures) for canvas in canvases],
            "canvas/finished": [canvas.is_finished for canvas in canvases],
            "canvas/structure_score": [structure_score(canvas) for canvas in canvases],
            "canvas/failed_turns": [details.failed for _, details in known],
            "canvas/small": [is_small for is_small, _ in small],
            "canvas/right_small": [is_small and right for is_small, right in small],
            "canvas/right_large": [right and not is_small for is_small, right in small],
        }
    )
