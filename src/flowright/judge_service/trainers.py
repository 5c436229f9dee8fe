"""A judge service as the reward function of TRL, and what all functions for other trainers share.

    trainer = GRPOTrainer(..., reward_funcs=trl_reward("reward.yaml", answer_column="solution"))

verl's forms are :mod:`flowright.judge_service.verl`; OpenRLHF asks the service itself
(:mod:`flowright.judge_service.openrlhf`). No trainer is imported here. docs/other_trainers.md has
the lines to copy.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.errors import UserError
from flowright.judge_service.adapter import JudgeRewardSystem, create_judge_reward
from flowright.judge_service.messages import completion_text, prompt_text, whole_characters

Config = str | Path | Mapping[str, Any]
"""The address of a judge service; a YAML file with ``reward``; or the keys of ``reward.config``."""

PROMPTS = ("prompt", "question", "problem", "query", "input")
COMPLETIONS = ("completion", "response", "output", "prediction", "generation")
ANSWERS = ("answer", "solution", "ground_truth", "reference", "label", "target", "gold")
"""Names that prompts, completions and references have in datasets, the likeliest first."""


def open_system(config: Config) -> JudgeRewardSystem:
    """The reward system of ``config``. Raises ConfigError."""
    if isinstance(config, Mapping) and "type" not in config:
        return JudgeRewardSystem(config)
    if isinstance(config, str) and config.startswith(("http://", "https://")):
        return JudgeRewardSystem({"judge_url": config})
    return create_judge_reward(config)


def reference_of(value: object) -> tuple[str, tuple[str, ...]]:
    """A dataset's reference as text, and the further ones where it is a list of them. What is
    missing is empty; what is neither text nor number is its JSON."""
    if hasattr(value, "tolist"):  # of numpy, a scalar or an array
        value = value.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    if value is None:
        return "", ()
    if isinstance(value, list | tuple):
        texts = [reference_of(each)[0] for each in value]
        return (texts[0], tuple(texts[1:])) if texts else ("", ())
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, default=str), ()
    return str(value), ()


def request_of(
    prompt: object, completion: object, reference: object, more: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of one question to a reward system. Raises ValueError for a prompt or a
    completion that is neither text nor messages."""
    answer, alternatives = reference_of(reference)
    asked: dict[str, Any] = {
        "prompt": whole_characters(prompt_text(prompt)),
        "completion": whole_characters(completion_text(completion)),
        "answer": answer,
    }
    if alternatives:
        asked["alternatives"] = alternatives
    return asked | {name: value for name, value in more.items() if value is not None}


class TrlReward:
    """A reward function of TRL's trainers; see :func:`trl_reward`, which makes it."""

    def __init__(
        self, config: Config, answer_column: str | None, also: Sequence[str], name: str
    ) -> None:
        self.__name__ = name
        self._made_of = (config, answer_column, tuple(also), name)
        self._column = answer_column
        self._also = also
        self._system = open_system(config)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), self._made_of

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        asked = self._requests(prompts, completions, columns)
        return _rewards(self._system.reward_batch(asked), columns.get("log_metric"))

    def close(self) -> None:
        """End the thread that asks the service."""
        self._system.close()

    def _requests(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        names = (self._column,) if self._column else ANSWERS
        column = next((name for name in names if name in columns), None)
        if column is None:
            had = ", ".join(sorted(columns.keys() - _TRLS_OWN)) or "none"
            raise UserError(
                f"answer_column: no column {' or '.join(names)} in the dataset; its further "
                f"columns are: {had}"
            )
        more = [name for name in self._also if name in columns]
        return [
            request_of(prompt, completion, columns[column][i], {n: columns[n][i] for n in more})
            for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]


class AsyncTrlReward(TrlReward):
    """As :class:`TrlReward`, to be awaited: TRL runs such functions beside each other."""

    async def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        asked = self._requests(prompts, completions, columns)
        return _rewards(await self._system.areward_batch(asked), columns.get("log_metric"))


def trl_reward(
    config: Config,
    answer_column: str | None = None,
    *,
    also: Sequence[str] = ("answer_type",),
    asynchronous: bool = False,
    name: str = "judge_reward",
) -> TrlReward:
    """A function for ``reward_funcs`` of TRL's GRPOTrainer and RLOOTrainer (TRL 1.0 and later).

    It takes prompts and completions as texts or message lists and the dataset's columns as
    keywords, and gives a list of rewards in [0, 1], None where the judge failed: TRL leaves such a
    sample out (law 1). ``answer_column`` is the reference's; default: the first of ``ANSWERS`` that
    there is. ``also`` are further columns that a request may have, such as ``evidence``. TRL shows
    the function as ``rewards/<name>/mean``, and the share without a verdict as
    ``judge/unscored``. It can be pickled; a copy opens its own connections.

    Raises ConfigError for a ``config`` with mistakes, and when called UserError where the dataset
    has no such column.
    """
    made = AsyncTrlReward if asynchronous else TrlReward
    return made(config, answer_column, also, name)


_TRLS_OWN = {"completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}


def _rewards(
    told: Sequence[Mapping[str, Any]], log_metric: Callable[[str, float], None] | None
) -> list[float | None]:
    rewards = [each["reward"] for each in told]
    if log_metric is not None and rewards:
        log_metric("judge/unscored", rewards.count(None) / len(rewards))
    return rewards
