"""Episodes: the turns of one attempt at a task, and what the environment answers between them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from flowright.core.errors import Failure, Reason
from flowright.data.task import Task
from flowright.llm.chat import Message, Role
from flowright.policy.sampling import Sample

StopReason = Literal["done", "max_turns", "overflow", "failed"]
"""The end of an episode: the environment had no further answer; it had one after the last turn that
is allowed; another turn did not fit into ``policy.max_episode_tokens``; its answer could not be
made, which is a failure of ours and leaves the attempt unscored."""

STOPS: Sequence[StopReason] = get_args(StopReason)


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's answer to a turn: a message that the policy sees before its next turn.

    ``reward`` is the part of the episode's reward that the turn has earned, for
    ``grpo.turns.credit``. ``state`` names the state that the turn leads to, the same for attempts
    that have reached the same. ``failed``: the turn could not be parsed, for
    ``grpo.turns.mask_failed``. ``memory`` is for the environment's own use at later turns: plain
    JSON, as it is kept in checkpoints.
    """

    text: str
    role: Role = "user"
    reward: float = 0.0
    state: str | None = None
    failed: bool = False
    memory: Any = None

    @property
    def message(self) -> Message:
        return Message(self.role, self.text)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: all token ids that the policy saw, what it wrote, and the answer to it.

    ``answer_ids`` stand between ``sample`` and the next turn: the end of a completion that was cut,
    and the observation as the chat template renders it. They are empty after the last turn, and
    where the next context is rendered anew.
    """

    context_ids: tuple[int, ...]
    sample: Sample
    observation: Observation | None = None
    answer_ids: tuple[int, ...] = ()

    @property
    def is_failed(self) -> bool:
        """True if it could not be parsed."""
        return self.observation is not None and self.observation.failed


@dataclass(frozen=True, slots=True)
class Episode:
    """An attempt as it was sampled. ``key`` names it within the run, as ``step/task/index``: every
    seed that its rollout needs is derived from it, never from the order of arrival. ``failure`` of
    ours: the environment's answer could not be made."""

    task: Task
    key: str
    turns: tuple[Turn, ...]
    stop: StopReason = "done"
    failure: Failure | None = None

    @classmethod
    def single(
        cls, task: Task, sample: Sample, key: str, context_ids: tuple[int, ...] = ()
    ) -> "Episode":
        """Return the episode of one completion."""
        return cls(task, key, (Turn(context_ids, sample),))

    def state(self) -> dict[str, Any]:
        """Return the episode without its task and key, for a checkpoint: no types but Python's."""
        fields = asdict(self)
        turns = [{**turn, "observation": _plain(turn["observation"])} for turn in fields["turns"]]
        return {"turns": turns, "stop": self.stop, "failure": _plain(fields["failure"])}

    @classmethod
    def restore(cls, task: Task, key: str, state: Mapping[str, Any]) -> "Episode":
        """Return the episode of a :meth:`state`."""
        turns = tuple(_turn(turn) for turn in state["turns"])
        failure = state.get("failure")
        failure = failure and Failure(**failure | {"reason": Reason(failure["reason"])})
        return cls(task, key, turns, state["stop"], failure)

    @property
    def sample(self) -> Sample:
        """The last turn's completion."""
        return self.turns[-1].sample

    @property
    def length(self) -> int:
        """Tokens that the policy wrote, in all turns."""
        return sum(len(turn.sample.token_ids) for turn in self.turns)

    @property
    def is_cut(self) -> bool:
        """True if a turn was cut at its token limit."""
        return any(turn.sample.finish_reason == "length" for turn in self.turns)

    @property
    def version(self) -> int:
        """The oldest policy that wrote a turn."""
        return min(turn.sample.version for turn in self.turns)

    @property
    def memory(self) -> Any:
        """The newest observation's ``memory``, while :meth:`Environment.respond` makes another."""
        seen = [turn.observation for turn in self.turns if turn.observation is not None]
        return seen[-1].memory if seen else None

    def chains(self) -> list[list[int]]:
        """Return the numbers of the turns, together where each context is the one before it with
        its completion and the answer."""
        found: list[list[int]] = []
        for number in range(len(self.turns)):
            if number and self.turns[number - 1].answer_ids:
                found[-1].append(number)
            else:
                found.append([number])
        return found

    def messages(self) -> Iterator[Message]:
        """Yield the messages behind the task's prompt: completions, and the answers to them."""
        for turn in self.turns:
            yield Message("assistant", turn.sample.text)
            if turn.observation is not None:
                yield turn.observation.message


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _turn(fields: Mapping[str, Any]) -> Turn:
    seen = fields["observation"]
    return Turn(
        fields["context_ids"],
        Sample(**fields["sample"]),
        None if seen is None else Observation(**seen),
        fields["answer_ids"],
    )
