"""A judge service as verl's reward: ``compute_score`` for one sample, for a batch, and async.

Configured by the environment, since verl's ``custom_reward_function`` is a function of a module:
``FLOWRIGHT_JUDGE_REWARD`` is a YAML file with ``reward`` or a service's address. In a file of your
own a :class:`VerlReward` takes them as arguments. verl itself is not imported.

verl needs a number for every sample: None would end its loop with a TypeError, NaN would become the
advantage of the whole group, and 0 would be wrong. So a judge that is down is asked again, and a
sample without a verdict gets the mean of its group, marked by ``unscored`` (:class:`GroupMeans`).
"""

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any

from flowright.core.errors import ConfigError, RunPaused
from flowright.judging.reward.adapter import Config, create_judge_reward
from flowright.judging.reward.calls import PROMPTS, request_of
from flowright.judging.verdict import DOWN

ENVIRONMENT = "FLOWRIGHT_JUDGE_REWARD"
WINDOW = 256
"""Number of the latest samples over which the share without a verdict is measured."""

_LEAST = 32  # samples before the share counts
_GROUPS_KEPT = 4096
_SCORES_KEPT = 64  # of one group: no trainer has larger ones, and old attempts expire
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds
_EXTRAS = ("answer_type", "alternatives", "evidence", "criteria")

Scored = dict[str, float]
"""``score`` in [0, 1], and ``unscored``: 1 if the score is a group's mean instead of a verdict."""


class GroupMeans:
    """Group means for trainers that need a number for samples without a verdict.

    Law 1 wants an unscored sample out of its group's statistics, with the advantage 0. The mean of
    the scored siblings is the one number that leaves the group's mean as it is, so that the
    sample's advantage is 0 under every estimator that subtracts it. It is marked, and too many of
    them end in RunPaused. The group's standard deviation shrinks all the same.

    ``most_unscored`` is the share of the latest ``WINDOW`` samples that may be without a verdict.
    Calls may come from several threads; there is no lock, which a forked child could find held.
    """

    def __init__(self, most_unscored: float = 0.2) -> None:
        self._most = most_unscored
        self._groups: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._latest: deque[float | None] = deque(maxlen=WINDOW)

    def note(self, group: Hashable, score: float | None) -> None:
        """Add a sample's score, None without a verdict."""
        self._latest.append(score)
        if score is None:
            return
        self._groups.setdefault(group, deque(maxlen=_SCORES_KEPT)).append(score)
        if len(self._groups) > _GROUPS_KEPT:
            self._groups.popitem(last=False)

    def mean(self, group: Hashable) -> float:
        """Return the mean of the group's scores, or of the latest samples if it has none. Raises
        RunPaused if no sample is scored, or too many are not."""
        latest = self._latest.copy()  # other threads add to it
        scored = [score for score in latest if score is not None]
        share = 1 - len(scored) / len(latest) if latest else 1.0
        siblings = list(self._groups.get(group, ())) or scored
        if not siblings or (share > self._most and len(latest) >= _LEAST):
            raise RunPaused(
                f"the judge gave no verdict on {share:.0%} of the latest samples (at most "
                f"{self._most:.0%}); look at its /health, then go on from the last checkpoint"
            )
        return sum(siblings) / len(siblings)

    def scored(self, group: Hashable, reward: float | None) -> Scored:
        """Return a sample's reward, or the mean in its place."""
        if reward is None:
            return {"score": self.mean(group), "unscored": 1.0}
        return {"score": reward, "unscored": 0.0}


class VerlReward:
    """verl's reward functions: :meth:`score`, :meth:`ascore` and :meth:`batch`.

    A judge that is down is waited for up to ``patience`` seconds. RunPaused ends the run above a
    share of ``most_unscored`` samples without a verdict, or if no sample has one. The question is
    ``extra_info["question"]`` or another of ``PROMPTS``; ``extra_info`` may also have
    ``answer_type``, ``alternatives``, ``evidence`` and ``criteria``.

    Can be pickled; a copy opens its own connections. Raises ConfigError.
    """

    def __init__(
        self, config: Config, *, patience: float = 600.0, most_unscored: float = 0.2
    ) -> None:
        self._made_of = (config, patience, most_unscored)
        self._patience = patience
        self._most = most_unscored
        self._system = create_judge_reward(config)
        self._means = GroupMeans(most_unscored)

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
        """Score one sample: ``compute_score`` of the reward managers naive, dapo, limited and
        remote. The group of a sample without a verdict is what this process has seen of it."""
        request = _request(solution_str, ground_truth, extra_info)
        (reward,) = self._wait([request])
        return self._scored(_group(data_source, request, extra_info), reward)

    async def ascore(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Scored:
        """Do as :meth:`score`, as the coroutine that verl's reward loop awaits beside others."""
        request = _request(solution_str, ground_truth, extra_info)
        pauses = _Pauses(self._patience)
        result = await self._system.areward(**request)
        while result["status"] in DOWN and (pause := pauses.next()) is not None:
            await asyncio.sleep(pause)
            result = await self._system.areward(**request)
        return self._scored(_group(data_source, request, extra_info), result["reward"])

    def batch(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[object],
        extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
        **_: Any,
    ) -> list[Scored]:
        """Score a batch: ``compute_score`` of the reward manager batch. Groups are complete here,
        so that an unscored sample's advantage is exactly 0 if the group's mean is subtracted."""
        extras = [None] * len(solution_strs) if extra_infos is None else list(extra_infos)
        samples = zip(solution_strs, ground_truths, extras, strict=True)
        requests = [_request(*sample) for sample in samples]
        groups = [_group(*each) for each in zip(data_sources, requests, extras, strict=True)]
        rewards = self._wait(requests)
        means = GroupMeans(self._most)
        for group, reward in zip(groups, rewards, strict=True):
            means.note(group, reward)
        return [means.scored(*each) for each in zip(groups, rewards, strict=True)]

    def close(self) -> None:
        """End the thread that asks the service."""
        self._system.close()

    def _wait(self, requests: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return the rewards, asking again while the judge is down."""
        pauses = _Pauses(self._patience)
        results = self._system.reward_batch(requests)
        while down := [i for i, each in enumerate(results) if each["status"] in DOWN]:
            if (pause := pauses.next()) is None:
                break
            time.sleep(pause)
            again = self._system.reward_batch([requests[i] for i in down])
            for i, each in zip(down, again, strict=True):
                results[i] = each
        return [each["reward"] for each in results]

    def _scored(self, group: Hashable, reward: float | None) -> Scored:
        self._means.note(group, reward)
        return self._means.scored(group, reward)


class _Pauses:
    """Pauses that double, until the patience is spent."""

    def __init__(self, patience: float) -> None:
        self._ends = time.monotonic() + patience
        self._pause = _FIRST_PAUSE

    def next(self) -> float | None:
        """Return the seconds until the next request, None when the patience is spent."""
        left = self._ends - time.monotonic()
        pause, self._pause = min(self._pause, left), min(2 * self._pause, _LONGEST_PAUSE)
        return pause if left > 0 else None


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
