"""A judge service as verl's reward: ``compute_score`` for one sample, for a batch, and async.

Configured by the environment, since verl's ``custom_reward_function`` is a function of a module:
``FLOWRIGHT_JUDGE_REWARD`` is a YAML file with ``reward`` or a service's address. In a file of your
own a :class:`VerlReward` takes them as arguments. verl itself is not imported.

verl needs a number for every sample: None would end its loop with a TypeError, NaN would become the
advantage of the whole group, and 0 would be wrong. So a sample without a verdict gets the mean of
its group, marked by ``unscored`` (:class:`GroupMeans`).
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any

from flowright.core.errors import ConfigError
from flowright.judging.reward.adapter import Config
from flowright.judging.reward.calls import PROMPTS, request_of
from flowright.judging.reward.patience import (
    LEAST_OF_A_CALL,
    LEAST_ONE_BY_ONE,
    MOST_UNSCORED,
    PATIENCE,
    GroupMeans,
    TrainerReward,
    why_unscored,
)

ENVIRONMENT = "FLOWRIGHT_JUDGE_REWARD"

_EXTRAS = ("answer_type", "alternatives", "evidence", "criteria")

Scored = dict[str, float]
"""``score`` in [0, 1], and ``unscored``: 1 if the score is a group's mean instead of a verdict."""


class VerlReward(TrainerReward):
    """verl's reward functions: :meth:`score`, :meth:`ascore` and :meth:`batch`.

    A judge that is down is waited for up to ``patience`` seconds. RunPaused ends the run above a
    share of ``most_unscored`` samples without a verdict, or if no sample has one. The question is
    ``extra_info["question"]`` or another of ``PROMPTS``; ``extra_info`` may also have
    ``answer_type``, ``alternatives``, ``evidence`` and ``criteria``.

    Can be pickled; a copy opens its own connections. Raises ConfigError.
    """

    def __init__(
        self, config: Config, *, patience: float = PATIENCE, most_unscored: float = MOST_UNSCORED
    ) -> None:
        super().__init__(config, patience, most_unscored, LEAST_ONE_BY_ONE)
        self._made_of = (config, patience, most_unscored)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self._made_of

    def score(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Scored:
        """Score one sample: ``compute_score`` of a reward manager without coroutines, such as
        remote. The group of a sample without a verdict is what this process has seen of it."""
        request = _request(solution_str, ground_truth, extra_info)
        group = _group(data_source, request, extra_info)
        return _scored(self.means, [group], self.wait([request]))[0]

    async def ascore(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Scored:
        """Do as :meth:`score`, as the coroutine that the reward managers naive, dapo and gdpo await
        beside others."""
        request = _request(solution_str, ground_truth, extra_info)
        group = _group(data_source, request, extra_info)
        return _scored(self.means, [group], await self.results([request]))[0]

    def batch(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[object],
        extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
        **_: Any,
    ) -> list[Scored]:
        """Score a batch: ``compute_score`` of the reward manager batch of verl before 0.9. Groups
        are complete here, so that an unscored sample's advantage is exactly 0 if the group's mean
        is subtracted."""
        extras = [None] * len(solution_strs) if extra_infos is None else list(extra_infos)
        samples = zip(solution_strs, ground_truths, extras, strict=True)
        requests = [_request(*sample) for sample in samples]
        groups = [_group(*each) for each in zip(data_sources, requests, extras, strict=True)]
        means = GroupMeans(self._made_of[2], LEAST_OF_A_CALL)
        return _scored(means, groups, self.wait(requests))


def _scored(
    means: GroupMeans, groups: Sequence[Hashable], results: Sequence[Mapping[str, Any]]
) -> list[Scored]:
    """Return the rewards, and group means in the place of missing ones."""
    for group, each in zip(groups, results, strict=True):
        means.note(group, each["reward"], why_unscored(each))
    return [
        {"score": means.mean(group), "unscored": 1.0}
        if each["reward"] is None
        else {"score": each["reward"], "unscored": 0.0}
        for group, each in zip(groups, results, strict=True)
    ]


def _request(solution: str, truth: object, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    extra = extra or {}
    question = next((extra[name] for name in PROMPTS if extra.get(name) is not None), "")
    more = {name: extra[name] for name in _EXTRAS if name in extra}
    return request_of(question, solution, truth, more)


def _group(source: object, request: Mapping[str, Any], extra: Mapping[str, Any] | None) -> Hashable:
    """Identify the attempts at one problem, by its number in the dataset and the question."""
    extra = extra or {}
    place = str(extra.get("split")), str(extra.get("index"))
    return str(source), *place, str(request["prompt"]), str(request["answer"])


def _remade(config: Config, patience: float, most_unscored: float) -> VerlReward:
    return VerlReward(config, patience=patience, most_unscored=most_unscored)


@cache
def _configured() -> VerlReward:
    config = os.environ.get(ENVIRONMENT)
    if not config:
        raise ConfigError(f"{ENVIRONMENT}: set it to a YAML file or to a judge service's address")
    return VerlReward(config)


def compute_score(*arguments: Any, **named: Any) -> Scored:
    """Call :meth:`VerlReward.score` of the service in the environment."""
    return _configured().score(*arguments, **named)


async def compute_score_async(*arguments: Any, **named: Any) -> Scored:
    """Call :meth:`VerlReward.ascore` of the service in the environment."""
    return await _configured().ascore(*arguments, **named)


def compute_score_batch(*arguments: Any, **named: Any) -> list[Scored]:
    """Call :meth:`VerlReward.batch` of the service in the environment."""
    return _configured().batch(*arguments, **named)
