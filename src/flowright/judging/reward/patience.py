"""Rewards for trainers: a judge that is down is asked again, and a run without verdicts ends.

A service that restarts costs no sample for ``patience`` seconds, and no rule decides in the judge's
place unless configured (law 4). Above a share of ``most_unscored`` samples without a
verdict, or if none has one, RunPaused ends the run: it never trains on what is left (law 1).
"""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from flowright.core.errors import RunPaused, UserError
from flowright.judging.reward.adapter import Config, create_judge_reward
from flowright.judging.verdict import DOWN, Status

T = TypeVar("T")
Q = TypeVar("Q")

PATIENCE = 600.0
"""Seconds that a judge is waited for."""
MOST_UNSCORED = 0.2
WINDOW = 256
"""Number of the latest samples over which the share without a verdict is measured."""

LEAST_ONE_BY_ONE, LEAST_OF_A_CALL = 32, 8
"""Numbers of samples before the share counts, where they come one by one, and where a call has
many: the first to come back may be the failed ones."""

_GROUPS_KEPT = 4096
_SCORES_KEPT = 64  # of one group: no trainer has larger ones, and old attempts expire
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds


class GroupMeans:
    """Share of samples without a verdict, and group means in the place of their scores.

    Law 1 wants an unscored sample out of its group's statistics, with the advantage 0. For trainers
    that need a number, the mean of the scored siblings is the one that leaves the group's mean as
    it is, so that the sample's advantage is 0 under every estimator that subtracts it. The group's
    standard deviation shrinks all the same.

    ``most_unscored`` is the share of the latest ``WINDOW`` samples that may be without a verdict,
    from ``least`` samples on. Calls may come from several threads; there is no lock, which a forked
    child could find held.
    """

    def __init__(self, most_unscored: float = MOST_UNSCORED, least: int = LEAST_ONE_BY_ONE) -> None:
        self._most = most_unscored
        self._least = least
        self._groups: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._latest: deque[float | None] = deque(maxlen=WINDOW)
        self._reasons: deque[str] = deque(maxlen=WINDOW)

    def note(self, group: Hashable, score: float | None, reason: str = "") -> None:
        """Add a sample's score, None without a verdict, with the ``reason`` for that."""
        self._latest.append(score)
        if score is None:
            self._reasons.append(reason)
            return
        self._groups.setdefault(group, deque(maxlen=_SCORES_KEPT)).append(score)
        if len(self._groups) > _GROUPS_KEPT:
            self._groups.popitem(last=False)

    def check(self) -> list[float]:
        """Return the latest scores. Raises RunPaused if too many samples have none."""
        latest = self._latest.copy()  # other threads add to it
        scored = [score for score in latest if score is not None]
        share = 1 - len(scored) / len(latest) if latest else 0.0
        if share > self._most and (len(latest) >= self._least or not scored):
            ((reason, _),) = Counter(self._reasons.copy()).most_common(1)
            raise RunPaused(
                f"the judge gave no verdict on {share:.0%} of the latest {len(latest)} samples (at "
                f"most {self._most:.0%})" + f": {reason[:300]}" * bool(reason),
                "look at its /health, then go on from the last checkpoint",
            )
        return scored

    def mean(self, group: Hashable) -> float:
        """Return the mean of the group's scores, or of the latest samples if it has none. Raises
        RunPaused if no sample is scored, or too many are not."""
        scored = self.check()
        siblings = list(self._groups.get(group, ())) or scored
        if not siblings:
            raise RunPaused("the judge gave no verdict yet, and the trainer needs a number")
        return sum(siblings) / len(siblings)


async def ask_patiently(
    ask: Callable[[Sequence[Q]], Awaitable[Sequence[T]]],
    questions: Sequence[Q],
    status: Callable[[T], Status | str],
    patience: float,
) -> list[T]:
    """Return the results of ``ask``, in order; those of a judge that is down are asked again for
    ``patience`` seconds, with pauses that double."""
    ends, pause = time.monotonic() + patience, _FIRST_PAUSE
    results = list(await ask(questions))
    while down := [i for i, result in enumerate(results) if status(result) in DOWN]:
        if (left := ends - time.monotonic()) <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        again = await ask([questions[i] for i in down])
        for i, result in zip(down, again, strict=True):
            results[i] = result
    return results


class TrainerReward:
    """A trainer's reward function around a judge service.

    The first call raises UserError if there is no service at the address, or the key is wrong. Can
    be pickled; a copy opens its own connections. Raises ConfigError for a ``config`` with mistakes.
    """

    def __init__(self, config: Config, patience: float, most_unscored: float, least: int) -> None:
        self._system = create_judge_reward(config, has_rules=False)
        self._patience = patience
        self.means = GroupMeans(most_unscored, least)
        self._has_contact = False

    def close(self) -> None:
        """End the thread that asks the service."""
        self._system.close()

    async def results(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a result for each request (:meth:`JudgeRewardSystem.reward`)."""
        if not self._has_contact:
            if problems := await self._system.acheck():
                raise UserError(*problems)
            self._has_contact = True
        ask = self._system.areward_batch
        return await ask_patiently(ask, requests, lambda each: each["status"], self._patience)

    def wait(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Do as :meth:`results` and block the caller's thread."""
        return self._system.run(self.results(requests), self._patience)


def why_unscored(result: Mapping[str, Any]) -> str:
    return f"{result['status']}: {result['explanation']}"
