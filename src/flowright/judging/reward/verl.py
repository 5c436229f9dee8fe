"""A judge service as verl's reward: ``compute_score`` for one sample, for a batch, and async.

Configured by the environment, as verl's ``custom_reward_function`` takes a function of a module:
``FLOWRIGHT_JUDGE_REWARD`` is a YAML file with ``reward`` or a service's address. In a file of
one's own a :class:`VerlReward` takes them as arguments. verl itself is not imported.

verl wants a number for every sample: None would end its loop with a TypeError, NaN would become the
advantage of the whole group, and 0 would be a lie. So the judge is asked again while it is down,
and what stays without a verdict gets its group's mean, marked by ``unscored``
(:mod:`flowright.judging.reward.verl`).
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

WINDOW = 256
"""The latest samples of which the share without a verdict is measured."""

_LEAST = 32  # samples before a share says anything
_GROUPS_KEPT = 4096
_SCORES_KEPT = 64  # of one group: no trainer has larger ones, and old attempts fade


class StandIns:
    """The scores of groups as they come in, and their means. Calls may come from several threads,
    and without a lock, which a forked child could find held for ever.

    ``most_unscored`` is the share of the latest ``WINDOW`` samples that may be without a verdict.
    """

    def __init__(self, most_unscored: float = 0.2) -> None:
        self._most = most_unscored
        self._groups: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._latest: deque[float | None] = deque(maxlen=WINDOW)

    def note(self, group: Hashable, score: float | None) -> None:
        """A sample's score, or that it has none."""
        self._latest.append(score)
        if score is None:
            return
        self._groups.setdefault(group, deque(maxlen=_SCORES_KEPT)).append(score)
        if len(self._groups) > _GROUPS_KEPT:
            self._groups.popitem(last=False)

    def mean(self, group: Hashable) -> float:
        """What stands in for a score in this group: its mean, or the latest samples' where none of
        the group has one. Raises RunPaused where no sample has, or too many have none."""
        latest = self._latest.copy()  # at once: others may add to it
        scored = [score for score in latest if score is not None]
        share = 1 - len(scored) / len(latest) if latest else 1.0
        siblings = list(self._groups.get(group, ())) or scored
        if not siblings or (share > self._most and len(latest) >= _LEAST):
            raise RunPaused(
                f"the judge gave no verdict on {share:.0%} of the latest samples (at most "
                f"{self._most:.0%}); look at its /health, then go on from the last checkpoint"
            )
        return sum(siblings) / len(siblings)


ENVIRONMENT = "FLOWRIGHT_JUDGE_REWARD"

_DOWN = ("timeout", "unavailable")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds
_EXTRAS = ("answer_type", "alternatives", "evidence", "criteria")

Told = dict[str, float]
"""``score`` in [0, 1], and ``unscored``: 1 where the score only stands in for a verdict."""


class VerlReward:
    """verl's reward functions: :meth:`score`, :meth:`ascore` and :meth:`batch`.

    ``patience`` are the seconds that a judge which is down is waited for. ``most_unscored`` is the
    share of samples without a verdict beyond which RunPaused ends the run, as it does where no
    sample has one. The question is ``extra_info["question"]`` or another of ``PROMPTS``; what else
    ``extra_info`` may have are ``answer_type``, ``alternatives``, ``evidence`` and ``criteria``.

    Can be pickled; a copy opens its own connections. Raises ConfigError.
    """

    def __init__(
        self, config: Config, *, patience: float = 600.0, most_unscored: float = 0.2
    ) -> None:
        self._made_of = (config, patience, most_unscored)
        self._patience = patience
        self._most = most_unscored
        self._system = create_judge_reward(config)
        self._seen = StandIns(most_unscored)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self._made_of

    def score(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Told:
        """``compute_score`` of the reward managers naive, dapo, limited and remote. A sample
        without a verdict gets the mean of those of its group that this process has seen."""
        asked = _asked(solution_str, ground_truth, extra_info)
        (reward,) = self._wait([asked])
        return self._told(_group(data_source, asked, extra_info), reward)

    async def ascore(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Told:
        """:meth:`score` as the coroutine that verl's reward loop awaits beside others."""
        asked = _asked(solution_str, ground_truth, extra_info)
        pauses = _Pauses(self._patience)
        told = await self._system.areward(**asked)
        while told["status"] in _DOWN and (pause := pauses.next()) is not None:
            await asyncio.sleep(pause)
            told = await self._system.areward(**asked)
        return self._told(_group(data_source, asked, extra_info), told["reward"])

    def batch(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[object],
        extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
        **_: Any,
    ) -> list[Told]:
        """``compute_score`` of the reward manager batch. A group here is the whole group, so that
        an unscored sample's advantage is exactly 0 where the group's mean is subtracted."""
        extras = [None] * len(solution_strs) if extra_infos is None else list(extra_infos)
        samples = zip(solution_strs, ground_truths, extras, strict=True)
        asked = [_asked(*sample) for sample in samples]
        groups = [_group(*of) for of in zip(data_sources, asked, extras, strict=True)]
        rewards = self._wait(asked)
        seen = StandIns(self._most)
        for group, reward in zip(groups, rewards, strict=True):
            seen.note(group, reward)
        return [_one(seen, *of) for of in zip(groups, rewards, strict=True)]

    def close(self) -> None:
        """End the thread that asks the service."""
        self._system.close()

    def _wait(self, asked: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """The rewards; those of a judge that is down are asked for again."""
        pauses = _Pauses(self._patience)
        told = self._system.reward_batch(asked)
        while down := [i for i, each in enumerate(told) if each["status"] in _DOWN]:
            if (pause := pauses.next()) is None:
                break
            time.sleep(pause)
            again = self._system.reward_batch([asked[i] for i in down])
            for i, each in zip(down, again, strict=True):
                told[i] = each
        return [each["reward"] for each in told]

    def _told(self, group: object, reward: float | None) -> Told:
        self._seen.note(group, reward)
        return _one(self._seen, group, reward)


class _Pauses:
    """Pauses that double, until the patience is spent."""

    def __init__(self, patience: float) -> None:
        self._ends = time.monotonic() + patience
        self._pause = _FIRST_PAUSE

    def next(self) -> float | None:
        """Seconds to wait before asking again; None where that is enough."""
        left = self._ends - time.monotonic()
        pause, self._pause = min(self._pause, left), min(2 * self._pause, _LONGEST_PAUSE)
        return pause if left > 0 else None


def _asked(solution: str, truth: object, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    extra = extra or {}
    question = next((extra[name] for name in PROMPTS if extra.get(name) is not None), "")
    more = {name: extra[name] for name in _EXTRAS if name in extra}
    return request_of(question, solution, truth, more)


def _group(source: object, asked: Mapping[str, Any], extra: Mapping[str, Any] | None) -> object:
    """What the attempts at one problem share: its number in the dataset, and what was asked."""
    extra = extra or {}
    place = str(extra.get("split")), str(extra.get("index"))
    return str(source), *place, str(asked["prompt"]), str(asked["answer"])


def _one(seen: StandIns, group: object, reward: float | None) -> Told:
    if reward is None:
        return {"score": seen.mean(group), "unscored": 1.0}
    return {"score": reward, "unscored": 0.0}


def _remade(config: Config, patience: float, most_unscored: float) -> VerlReward:
    return VerlReward(config, patience=patience, most_unscored=most_unscored)


@cache
def _configured() -> VerlReward:
    config = os.environ.get(ENVIRONMENT)
    if not config:
        raise ConfigError(f"{ENVIRONMENT}: set it to a YAML file or to a judge service's address")
    return VerlReward(config)


def compute_score(*arguments: Any, **named: Any) -> Told:
    """:meth:`VerlReward.score` of the service that the environment names."""
    return _configured().score(*arguments, **named)


async def compute_score_async(*arguments: Any, **named: Any) -> Told:
    """:meth:`VerlReward.ascore` of the service that the environment names."""
    return await _configured().ascore(*arguments, **named)


def compute_score_batch(*arguments: Any, **named: Any) -> list[Told]:
    """:meth:`VerlReward.batch` of the service that the environment names."""
    return _configured().batch(*arguments, **named)
