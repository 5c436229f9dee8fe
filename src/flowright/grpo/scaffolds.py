"""Attempts that are sampled from a richer prompt than the one they are learned on: what each of a
group is shown. Which messages those are is the environment's
(:meth:`flowright.environments.environment.Environment.scaffolds`); what the distance between both
prompts means for the update is the learner's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from flowright.core.errors import ConfigError
from flowright.data.task import Task
from flowright.environments.environment import Environment
from flowright.environments.rollout import Rollout
from flowright.llm.chat import Message
from flowright.policy.prompt import Prompt

RECORDED_CHARACTERS = 2000

Fitting = Callable[[Sequence[Message]], tuple[int, ...] | None]
"""Token ids of messages as a prompt; None where they are too long for one."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an attempt was sampled from. ``scaffold``: the messages that its task's own prompt does
    not have, None where it is that prompt; ``left_out``: a scaffold was too long, so that it is.
    ``share``: how much of all that there is to show it was shown, None where nobody says."""

    token_ids: tuple[int, ...]
    scaffold: str | None = None
    left_out: bool = False
    share: float | None = None


def shown_to(
    environment: Environment,
    fitting: Fitting,
    task: Task,
    prompt: Prompt,
    attempts: int,
    step: int,
    steps: int,
) -> list[Shown]:
    """What each of a task's attempts is sampled from at a step, from 1 to ``steps``; ``prompt`` is
    the task's own. Nothing where the environment has no scaffolds for it. A scaffold is never cut:
    what it leaves no room for would be the task. Raises ConfigError for another number of prompts
    than of attempts, DataError where the chat template refuses one."""
    given = environment.scaffolds(task, step, steps, attempts)
    if given is None:
        return []
    if len(given) != attempts:
        raise ConfigError(
            f"{type(environment).__name__}.scaffolds: {len(given)} prompts for {attempts} attempts "
            f"at {task.id}; give one for each"
        )
    own = tuple(environment.messages(task))
    bare = Shown(prompt.token_ids)
    found = {own: bare}
    for messages in map(tuple, given):
        if messages not in found:
            found[messages] = _shown(messages, own, bare, fitting)
    shown = [found[tuple(messages)] for messages in given]
    shares = environment.scaffold_shares(task, step, steps, attempts)
    if shares is None:
        return shown
    return [
        replace(one, share=share if one.scaffold is not None else 0.0)
        for one, share in zip(shown, shares, strict=True)
    ]


def _shown(
    messages: Sequence[Message], own: Sequence[Message], bare: Shown, fitting: Fitting
) -> Shown:
    token_ids = fitting(messages)
    if token_ids is None:
        return Shown(bare.token_ids, left_out=True)
    if token_ids == bare.token_ids:
        return bare
    added = [message.content for message in messages if message not in own]
    return Shown(token_ids, "\n\n".join(added))


def scaffold_metrics(
    shown_P_G: Sequence[Sequence[Shown | None]], rollouts_P_G: Sequence[Sequence[Rollout]]
) -> dict[str, float]:
    """Of a step whose environment has scaffolds: the shares of attempts that were shown one, and
    that went without as theirs was too long; the mean over all attempts of how much they were
    shown, where the environment says it; the mean rewards of those with and without one."""
    shown = [*chain.from_iterable(shown_P_G)]
    if not any(shown):
        return {}
    rewards: Mapping[bool, list[float]] = {True: [], False: []}
    for one, rollout in zip(shown, chain.from_iterable(rollouts_P_G), strict=True):
        if rollout.reward.value is not None:
            rewards[is_scaffolded(one)].append(rollout.reward.value)
    named = {"reward/scaffolded": rewards[True], "reward/bare": rewards[False]}
    shares = [one.share for one in shown if one is not None and one.share is not None]
    return {
        "rollout/scaffolded_frac": sum(map(is_scaffolded, shown)) / len(shown),
        "rollout/scaffold_left_out": sum(s is not None and s.left_out for s in shown) / len(shown),
        **({"rollout/scaffold_share": sum(shares) / len(shown)} if shares else {}),
        **{name: sum(some) / len(some) for name, some in named.items() if some},
    }


def scaffold_record(shown: Shown | None) -> dict[str, Any]:
    """What a rollout's record says of it, a long text cut; nothing where there are no scaffolds."""
    if shown is None:
        return {}
    text = (shown.scaffold or "")[:RECORDED_CHARACTERS]
    tokens = len(shown.token_ids)
    return {"scaffold": {"text": text, "prompt_tokens": tokens, "left_out": shown.left_out}}


def is_scaffolded(shown: Shown | None) -> bool:
    """Whether an attempt was sampled from another prompt than its task's own."""
    return shown is not None and shown.scaffold is not None
