"""The canvas as an environment: one edit a turn, run as a workflow at the end."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from flowright.core.errors import Blame, FailureError
from flowright.core.off_loop import off_loop
from flowright.data.mixture import tasks_by_kind
from flowright.data.task import Problem, Task
from flowright.environments.base import Demonstration
from flowright.environments.canvas.actions import OPERATORS, ActionError
from flowright.environments.canvas.config import CanvasSection
from flowright.environments.canvas.display import DISPLAY
from flowright.environments.canvas.graph import MOST_OPERATORS, Canvas, program_of
from flowright.environments.canvas.prompt import (
    MOST_RESULT,
    accepted,
    canvas_messages,
    feedback,
    finish_problem,
    hint_for,
)
from flowright.environments.canvas.reward import (
    CanvasDetails,
    CanvasRollouts,
    canvas_metrics,
    with_flowsteer_reward,
)
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout
from flowright.environments.workflow.demonstrations import expected_calls
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.llm.chat import Message


class CanvasEnvironment(WorkflowEnvironment):
    """The environment of ``environment: canvas``."""

    Config = CanvasSection
    display = DISPLAY
    rollouts_by = CanvasRollouts

    @property
    def _section(self) -> CanvasSection:
        return self.config.own(CanvasSection)

    def messages(self, task: Task) -> list[Message]:
        assert isinstance(task, Problem)
        return canvas_messages(task, self.config.policy.prompt, self._section)

    @property
    def max_turns(self) -> int:
        return self._section.max_rounds

    @property
    def answers_at_once(self) -> bool:
        return not self._section.run_each_edit

    async def respond(self, episode: Episode) -> Observation | None:
        task, section = episode.task, self._section
        assert isinstance(task, Problem)
        canvas, is_failed, edited = Canvas.restore(episode.memory), False, False
        try:
            text = episode.sample.text
            message, edited = await off_loop(lambda: canvas.act(text), text)
            if canvas.is_finished:
                if section.finish_rule == "none" or not (why := finish_problem(canvas, task)):
                    return None
                canvas.is_finished, canvas.answer = False, ""
                raise ActionError(f"not finished: {why}")
            lines = accepted(canvas, message)
        except ActionError as error:
            is_failed = True
            lines = ["Status: failed", f"Error: {error}"]
        if edited and section.run_each_edit and canvas.nodes:
            lines += await self._run(canvas, task, f"{episode.key}/{len(episode.turns)}")
        hint = hint_for(canvas, task) if section.feedback == "hint" and not canvas.awaited else ""
        text = feedback(canvas, section, len(episode.turns), lines, hint)
        return Observation(
            text, state=f"{canvas} {len(canvas.awaited)}", failed=is_failed, memory=canvas.state()
        )

    async def _run(self, canvas: Canvas, task: Problem, key: str) -> list[str]:
        """Run a canvas and return lines about its result. Raises FailureError for failures of
        ours."""
        try:
            workflow = await self._executor.validate(program_of(canvas, task.kind == "code"))
            execution = await self._executor.execute(workflow, task, key)
        except FailureError as error:
            if error.failure.blame is Blame.INFRASTRUCTURE:
                raise
            return [f"Result: failed: {error.failure.message}"[:MOST_RESULT]]
        failure = execution.failure
        if failure is not None and failure.blame is Blame.INFRASTRUCTURE:
            raise FailureError(failure.reason, failure.message)
        canvas.calls += execution.usage.calls
        canvas.tokens += execution.usage.tokens
        canvas.seconds += execution.seconds
        canvas.result = execution.answer
        result = execution.answer if failure is None else f"failed: {failure.message}"
        spent = f"{execution.usage.calls} calls, {execution.usage.tokens} tokens"
        return [f"Result: {str(result)[:MOST_RESULT]}", f"Spent: {spent}"]

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        found = await super().rollout(groups)
        if self._section.reward == "judge":
            return found
        return [[with_flowsteer_reward(rollout) for rollout in group] for group in found]

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        return super().summarise(rollouts) | canvas_metrics(rollouts)

    def record(self, rollout: Rollout) -> Mapping[str, Any]:
        record, details = super().record(rollout), rollout.details
        if not isinstance(details, CanvasDetails):
            return record
        return {**record, "canvas": {"text": str(details.canvas), **details.canvas.state()}}

    def signature(self, completion: str) -> str:
        return completion.strip()

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Conversations of random legal turns, as long as another, and some turns that could be the
        next; every kind of problem and every operator as often."""
        rng, section = random.Random(seed), self._section
        by_kind = tasks_by_kind([task for task in tasks if isinstance(task, Problem)])
        drawn = []
        for _ in range(count):
            task = rng.choice(by_kind[rng.choice(list(by_kind))])
            messages, canvas = canvas_messages(task, "compact", section), Canvas()
            for turn in range(1, rng.randint(0, min(section.max_rounds - 1, LONGEST)) + 1):
                text = draw_turn(canvas, rng, finishes=False)
                message, _ = canvas.act(text)
                answer = feedback(canvas, section, turn, accepted(canvas, message))
                messages += [Message("assistant", text), Message("user", answer)]
            turns = [draw_turn(canvas, rng) for _ in range(completions)]
            drawn.append(Demonstration(messages, turns))
        return drawn

    def planned_calls(self, train: Sequence[Task]) -> Mapping[str, float]:
        """Calls as in programs of canvases of random turns, one an operator."""
        rng = random.Random(self.config.seed)
        programs = [draw_program(task.kind == "code", rng) for task in train[:_PLANNED]]
        called = [name for program in programs for name in expected_calls(program)]
        return {**super().planned_calls(train), "executor": len(called) / len(programs)}


_PLANNED = 64  # programs whose calls are counted
LONGEST = 4
"""Turns before the one that a demonstration shows."""
_WISHES = (
    "Solve it.",
    "Be careful.",
    "Answer the question.",
    "Check the result.",
    "Keep it short.",
)


def draw_turn(canvas: Canvas, rng: random.Random, finishes: bool = True) -> str:
    """Draw a legal turn: the awaited prompt, or an action. ``finishes``: among others a finish."""
    if canvas.awaited:
        return rng.choice(_WISHES)
    crowded = len(canvas.names) + 3 > MOST_OPERATORS
    weights = {
        "operator": 0 if crowded else 6,
        "structure": 0 if crowded else 3,
        "finish": 4 if finishes and canvas.nodes else 0,
        "delete": 1 if canvas.nodes else 0,
        "modify": 1 if canvas.nodes else 0,
    }
    (kind,) = rng.choices([*weights], [*weights.values()])
    names = [rng.choice(OPERATORS) for _ in range(3)]
    prompt = "" if rng.random() < 0.25 else _tagged("prompt", rng.choice(_WISHES))
    if kind == "finish":
        return _tagged("action", "finish")
    if kind == "delete":
        return _tagged("action", "delete") + _tagged("target", rng.choice(canvas.nodes).id)
    operator = _tagged("operator", names[0])
    if kind == "modify":
        target = _tagged("target", rng.choice(canvas.operators).id)
        return _tagged("action", "modify") + target + operator + prompt
    if kind == "operator":
        return _tagged("action", "add") + operator + prompt
    several = _tagged("operators", ", ".join(names[: rng.randint(2, 3)]))
    fields = rng.choice(
        (
            _tagged("structure", "parallel") + several,
            _tagged("structure", "loop") + several + _tagged("count", str(rng.randint(2, 3))),
            _tagged("structure", "conditional")
            + _tagged("condition", names[0])
            + _tagged("true", names[1])
            + _tagged("false", rng.choice(("done", names[2]))),
        )
    )
    return _tagged("action", "add") + fields + prompt


def draw_program(is_code: bool, rng: random.Random) -> str:
    """Draw the program of a canvas of random turns."""
    canvas = Canvas()
    while not canvas.is_finished:
        canvas.act(draw_turn(canvas, rng))
    return program_of(canvas, is_code)


def _tagged(name: str, text: str) -> str:
    return f"<{name}>{text}</{name}>"
