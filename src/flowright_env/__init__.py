"""The environment of a configuration as a taskset of verifiers, of one turn or several.

A package of its own, because verifiers imports a taskset by the name of one: ``vf-eval
flowright-env``. docs/extending/environment.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from pydantic import Field

try:
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "flowright_env needs verifiers 0.4: pip install -r requirements-env.txt"
    ) from error

from flowright.app.other_trainers import TasksElsewhere
from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.environments.episode import Episode, Turn
from flowright.evaluation.writer import answered
from flowright.policy.sampling import Sample

__all__ = ["FlowrightEnv", "FlowrightTaskset", "load_environment"]


class TasksetConfig(vf.TasksetConfig):
    config: str = "training"  # the command line also makes one of defaults alone
    overrides: list[str] = Field(default_factory=list)
    held_out: bool = False


class FlowrightTaskset(vf.Taskset[vf.Task, TasksetConfig]):
    """The tasks of a configuration. Raises UserError for what cannot be used, rewards that compare
    the attempts of a group among it: verifiers plays each attempt alone."""

    def __init__(self, config: TasksetConfig) -> None:
        super().__init__(config)
        self.own = TasksElsewhere(config.config, config.overrides)
        section, judge = self.own.config.reward, self.own.config.judge
        alone = (
            ("reward.cost_weight", section.cost_weight, 0),
            ("judge.group.method", judge.group.method, "none"),
        )
        why = "compares a group's attempts; verifiers grades each alone: set"
        if lines := [f"{key}: {why} {off}" for key, value, off in alone if value != off]:
            raise ConfigError(*lines)

    def load(self) -> Iterator[vf.Task]:
        for task, messages in self.own.prompts(self.config.held_out):
            system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
            data = vf.TaskData(id=task.id, name=task.kind, system_prompt=system, prompt=messages)
            yield vf.Task(data, self.config.task)


class EnvConfig(vf.EnvConfig):
    """The policy chats without tools: no box is needed, programs run in their own sandbox."""

    policy: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class FlowrightEnv(vf.Env[EnvConfig]):
    """Plays and grades attempts. One that a failure of ours ended has an error and no reward. So
    has one whose later prompt the policy's server refuses as too long: with several turns set
    ``--env.policy.max-total-tokens`` below its window, and such an attempt is graded."""

    async def start(self) -> None:
        self._opened = AsyncExitStack()
        await self._opened.enter_async_context(self.taskset.own.open())

    async def stop(self) -> None:
        await self._opened.aclose()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        own, stop = self.taskset.own, None
        async with agents.policy.interaction(task) as interaction:
            trace = interaction.trace
            episode = Episode(own.all[task.data.id], f"{trace.id}/{task.data.id}/0", ())
            reply = await interaction.turn()
            while not reply.terminated:
                episode = replace(episode, turns=(*episode.turns, _turn(trace)))
                episode, stop = await answered(own.environment, episode)
                seen = episode.turns[-1].observation
                if stop is not None or seen is None:
                    break
                reply = await interaction.turn(seen.text)
        if trace.ok:
            await self._grade(trace, replace(episode, stop=stop or "overflow"))

    async def _grade(self, trace: Any, episode: Episode) -> None:
        environment = self.taskset.own.environment
        ((rollout,),) = await environment.rollout([[episode]])
        reward, failure = rollout.reward, rollout.failure
        trace.info["flowright"] = {
            "simulated": environment.simulated,
            "failure": failure and failure.record(),
        }
        if rollout.gold_score is not None:
            trace.record_metric("gold", rollout.gold_score)
        if reward.value is None:
            why = (failure.reason, failure.message) if failure else (Reason.INTERNAL, "no reward")
            trace.record_error(FailureError(*why))
            return
        trace.record_metrics(reward.parts)
        trace.record_reward("reward", reward.value)


def _turn(trace: Any) -> Turn:
    finish = "length" if trace.is_truncated else "stop"
    return Turn((), Sample((), (), trace.assistant_messages[-1].content or "", finish, -1))


def load_environment(config: str, overrides: Sequence[str] = ()) -> FlowrightEnv:
    """Return the environment of verifiers for a configuration."""
    own = TasksetConfig(id="flowright-env", config=config, overrides=list(overrides))
    return FlowrightEnv(EnvConfig(taskset=own))
