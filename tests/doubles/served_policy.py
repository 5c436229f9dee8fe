"""A policy at work whose completions and large model are scripted; the executor is the real one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from workflow_doubles import ScriptedModel, ScriptedSandbox

from flowright.app.ask_policy import PolicyDraws, ServedRun, WorkflowPolicy
from flowright.environments.base import Environment, TaskSets
from flowright.environments.registry import make_config
from flowright.policy.sampling import Prompt, Sample
from flowright.workflows.executor import Executor

GOOD = """\
async def workflow(problem):
    first, second = await asyncio.gather(answer(problem), answer(problem))
    return await ensemble(problem, [first, second])
"""
NO_PROGRAM = "I would rather not."
CRASHES = "async def workflow(problem):\n    await answer(problem)\n    return 1 / 0\n"


@asynccontextmanager
async def author(
    completions: Sequence[str], model: ScriptedModel | None = None, workers: int = 1
) -> AsyncIterator[WorkflowPolicy]:
    """One whose every draw gives the first of these completions."""
    model = model or ScriptedModel()
    config = make_config(workflow={"workers": workers})

    async def draw(prompt: tuple[int, ...], ask: PolicyDraws) -> list[Sample]:
        return [Sample((1, 2, 3), (), text, "stop", 1) for text in completions[: ask.samples]]

    opening = ServedRun(config, Path("runs/mine/checkpoints/step_000004"), Environment(config),
                      TaskSets((), ()))  # fmt: skip
    async with Executor(model, ScriptedSandbox(), config.workflow, config.executor) as executor:
        encode = lambda task: Prompt((7, 7), False)  # noqa: E731
        yield WorkflowPolicy(opening, config, draw, encode, executor, True)
