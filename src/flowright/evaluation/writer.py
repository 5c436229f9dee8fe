"""A chat model in the policy's place (``flowright evaluate --policy NAME``): untrained, it reads
the full prompt and writes the workflows. Its calls, tokens and money are part of an attempt's."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowright.core.batch_calls import all_of
from flowright.core.errors import Blame, boundary
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.environments.episode import Episode, StopReason, Turn
from flowright.environments.rollout import Spent
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.evaluator import Keep, TableRow, make_row, rollout_all
from flowright.llm.chat import LENGTH_STOPS, ChatRequest, RequestRefused
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters
from flowright.policy.sampling import Sample


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Measures the model of ``client`` in an open ``environment``. The limits of replies are those
    of its entry in ``llm.file``, the temperature is that of evaluations."""

    environment: WorkflowEnvironment
    client: ChatClient
    keep: Keep | None = None

    @property
    def counters(self) -> Sequence[Counters]:
        return (self.client.counters,)

    async def row(self, name: str, tasks: Sequence[Task], samples: int | None = None) -> TableRow:
        """Return the model's row, with ``samples`` attempts a problem (None: as while training)."""
        config = self.environment.config
        key = f"{config.seed}/evaluation/{self.client.name}"
        count = samples or config.evaluation.samples
        empty = [Episode(task, f"{key}/{task.id}/{n}", ()) for task in tasks for n in range(count)]
        played = await all_of(self._played(episode) for episode in empty)
        groups = [played[first : first + count] for first in range(0, len(played), count)]
        done = await rollout_all(self.environment, [[one for one, _ in some] for some in groups])
        rollouts = [
            [
                replace(r, spent=(r.spent or Spent()) + own)
                for r, (_, own) in zip(*pair, strict=True)
            ]
            for pair in zip(done, groups, strict=True)
        ]
        if self.keep is not None:
            self.keep(key, rollouts)
        return make_row(name, "policy", rollouts, self.environment)

    async def _played(self, episode: Episode) -> tuple[Episode, Spent]:
        """Play an attempt; return it and the cost of its replies. A refusal of what stands behind
        the model's own turns ends it as an overflow: the model's fault, unlike other failures of
        its server."""
        prompt, spent = self.environment.messages_as(episode.task, "full"), Spent()
        stop: StopReason | None = None
        while stop is None:
            turns, reply = episode.turns, None
            request = ChatRequest(
                [*prompt, *episode.messages()],
                temperature=self.environment.config.evaluation.temperature,
                seed=random.Random(f"{episode.key}/{len(turns)}").getrandbits(31),
            )
            with boundary("policy") as caught:
                try:
                    reply = await self.client.chat(request)
                except RequestRefused:
                    if not turns:
                        raise
                    stop = "overflow"
            if caught.failure is not None:
                turns = turns or (Turn((), Sample((), (), "", "stop", -1)),)
                episode, stop = replace(episode, turns=turns, failure=caught.failure), "failed"
            elif reply is not None:
                used = reply.usage
                money = used.money if self.environment.counts_money else 0.0
                spent += Spent(used.calls, used.tokens, reply.seconds, money)
                finish = "length" if reply.finish_reason in LENGTH_STOPS else "stop"
                turn = Turn((), Sample((), (), reply.text, finish, -1))
                episode, stop = await answered(
                    self.environment, replace(episode, turns=(*turns, turn))
                )
        return replace(episode, stop=stop), spent


async def answered(environment: Environment, episode: Episode) -> tuple[Episode, StopReason | None]:
    """Return an episode with the environment's answer to its newest turn, and why it ends."""
    most = environment.max_turns
    if most == 1:
        return episode, "done"
    seen = None
    with boundary("environment") as caught:
        seen = await environment.answer_in_time(episode)
    if caught.failure is not None and caught.failure.blame is Blame.INFRASTRUCTURE:
        return replace(episode, failure=caught.failure), "failed"
    if seen is None:
        return episode, "done"
    turns = (*episode.turns[:-1], replace(episode.turns[-1], observation=seen))
    return replace(episode, turns=turns), "max_turns" if len(turns) >= most else None
