"""Efficiency of a rollout phase: its time against the critical path that the server's latency sets.

Everything is real (programs in Monty, code in the sandbox, HTTP to the embedded server, judge, gold
checks), but every reply is held back until ``--latency`` seconds after its request, so that the
longest chain of replies that any one rollout waits for is known: no schedule can be faster than
that chain times the latency. The phase without latency, all computing, is printed beside it.

    python benchmarks/pipeline.py [--problems 24] [--group 8] [--latency 1.0]
"""

import argparse
import asyncio
import time
from collections.abc import Sequence

import uvloop

from flowright.config.llm import LlmSection
from flowright.config.root import Config
from flowright.config.run import RunSection
from flowright.data.loading import build_offline
from flowright.data.task import Problem
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout
from flowright.environments.workflow.config import WorkflowConfig
from flowright.environments.workflow.environment import open_sandbox
from flowright.environments.workflow.reward import WorkflowRollouts, details_of
from flowright.judging.build import build_judge
from flowright.llm.chat import ChatModel, ChatReply, ChatRequest
from flowright.llm.client import ChatClient
from flowright.policy.sampling import Sample
from flowright.simulation.process import SimulatedServer
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import fixed_workflows, shapes_for
from flowright.workflows.trace import OperatorCall


class Delayed:
    """A model whose replies take exactly ``seconds``, or as long as they really take."""

    def __init__(self, model: ChatModel, seconds: float) -> None:
        self._model = model
        self.seconds = seconds

    @property
    def name(self) -> str:
        return self._model.name

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        wait = asyncio.create_task(asyncio.sleep(self.seconds))
        reply = await self._model.chat(request, deadline)
        await wait
        return reply


def completions(tasks: Sequence[Problem], group: int) -> list[list[Episode]]:
    """A group of different workflows for each task: the shapes of its kind in turn."""
    programs = fixed_workflows()
    groups = []
    for task in tasks:
        names = shapes_for(task.kind)
        texts = [programs[names[i % len(names)]] for i in range(group)]
        samples = [Sample((), (), text, "stop", 0) for text in texts]
        groups.append([Episode.single(task, s, f"{task.id}/{i}") for i, s in enumerate(samples)])
    return groups


def chain(calls: Sequence[OperatorCall]) -> int:
    """The longest chain of replies, each asked for after the one before had arrived."""
    ends = sorted(
        (call.started + call.seconds, call.started, len(call.exchanges))
        for call in calls
        if call.exchanges
    )
    longest: list[tuple[float, int]] = []  # (end, replies in the chain that ends there)
    for end, started, replies in ends:
        before = max((count for ended, count in longest if ended <= started), default=0)
        longest.append((end, before + replies))
    return max((count for _, count in longest), default=0)


def critical_path(rollout: Rollout) -> int:
    judged = rollout.verdict.attempts if rollout.verdict else 0
    execution = details_of(rollout).execution
    return judged + (chain(execution.trace) if execution else 0)


async def roll_out(
    config: Config, client: ChatModel, latency: float, groups: list[list[Episode]]
) -> tuple[float, list[list[Rollout]]]:
    """Seconds of one rollout phase and its rollouts. The sandbox is new each time: it would
    remember the checks of the phase before."""
    model = Delayed(client, latency)
    async with (
        open_sandbox(config) as sandbox,
        Executor(model, sandbox, WorkflowConfig(), config.executor) as executor,
    ):
        judge = build_judge(config.judge, model)
        rollouts = WorkflowRollouts(executor, judge, sandbox, config.reward)
        began = time.perf_counter()
        done = await rollouts.rollout(groups)
        return time.perf_counter() - began, done


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--latency", type=float, default=1.0)
    arguments = parser.parse_args()
    tasks = build_offline(0).val
    config = make_config(run=RunSection(name="benchmark"), llm=LlmSection(max_concurrency=4096))
    step = tasks[:: max(1, len(tasks) // arguments.problems)][: arguments.problems]
    groups = completions(step, arguments.group)
    async with SimulatedServer(tasks, config.simulated) as server:
        client = ChatClient("simulated", server.entry(), config.llm)
        await roll_out(config, client, 0.0, groups)  # wrong solutions are made and verified once
        computing, _ = await roll_out(config, client, 0.0, groups)
        measured, groups_done = await roll_out(config, client, arguments.latency, groups)
        await client.aclose()
    rollouts = [rollout for group in groups_done for rollout in group]
    longest = max(critical_path(rollout) for rollout in rollouts)
    calls = sum(rollout.spent.calls for rollout in rollouts if rollout.spent)
    print(f"{len(rollouts)} rollouts, {calls} model calls, {len(rollouts)} verdicts (simulated)")
    print(f"all computing, no latency   {computing:6.2f} s")
    print(f"critical path               {longest * arguments.latency:6.2f} s ({longest} replies)")
    print(f"rollout phase               {measured:6.2f} s")
    print(f"efficiency                  {longest * arguments.latency / measured:6.3f}")


if __name__ == "__main__":
    uvloop.run(main())
