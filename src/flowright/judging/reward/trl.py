"""A judge service as the reward function of TRL.

    trainer = GRPOTrainer(..., reward_funcs=trl_reward("reward.yaml", answer_column="solution"))

TRL itself is not imported here. docs/judge_service.md has the lines to copy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowright.core.errors import UserError
from flowright.judging.reward.adapter import Config
from flowright.judging.reward.calls import ANSWERS, request_of
from flowright.judging.reward.patience import (
    LEAST_OF_A_CALL,
    MOST_UNSCORED,
    PATIENCE,
    TrainerReward,
    why_unscored,
)


class TrlReward(TrainerReward):
    """A reward function of TRL's trainers; see :func:`trl_reward`, which makes it."""

    def __init__(
        self,
        config: Config,
        answer_column: str | None,
        also: Sequence[str],
        name: str,
        patience: float = PATIENCE,
        most_unscored: float = MOST_UNSCORED,
    ) -> None:
        super().__init__(config, patience, most_unscored, LEAST_OF_A_CALL)
        self.__name__ = name
        self._made_of = (config, answer_column, tuple(also), name, patience, most_unscored)
        self._column = answer_column
        self._also = also

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), self._made_of

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        requests = self._requests(prompts, completions, columns)
        return self._rewards(self.wait(requests), columns.get("log_metric"))

    def _requests(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        names = ANSWERS if self._column is None else (self._column,)
        column = next((name for name in names if name in columns), None)
        if column is None and self._column != "":
            had = ", ".join(sorted(columns.keys() - _TRLS_OWN)) or "none"
            raise UserError(
                f"answer_column: no column {' or '.join(names)} in the dataset, whose further "
                f'columns are {had}; "" judges without a reference'
            )
        more = [name for name in self._also if name in columns]
        return [
            request_of(
                prompt,
                completion,
                None if column is None else columns[column][i],
                {name: columns[name][i] for name in more},
            )
            for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]

    def _rewards(
        self,
        results: Sequence[Mapping[str, Any]],
        log_metric: Callable[[str, float], None] | None,
    ) -> list[float | None]:
        rewards = [each["reward"] for each in results]
        if log_metric is not None and rewards:
            log_metric("judge/unscored", rewards.count(None) / len(rewards))
            by_rules = sum(each["source"] == "rule_fallback" for each in results)
            log_metric("judge/fallback", by_rules / len(rewards))
        for each in results:
            self.means.note(None, each["reward"], why_unscored(each))
        self.means.check()
        return rewards


class AsyncTrlReward(TrlReward):
    """Awaitable :class:`TrlReward`; TRL runs such functions concurrently."""

    async def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        requests = self._requests(prompts, completions, columns)
        return self._rewards(await self.results(requests), columns.get("log_metric"))


def trl_reward(
    config: Config,
    answer_column: str | None = None,
    *,
    also: Sequence[str] = ("answer_type",),
    asynchronous: bool = False,
    name: str = "judge_reward",
    patience: float = PATIENCE,
    most_unscored: float = MOST_UNSCORED,
) -> TrlReward:
    """Return a function for ``reward_funcs`` of TRL's GRPOTrainer and RLOOTrainer (TRL >= 1.0).

    It takes prompts and completions as texts or message lists and the dataset's columns as
    keywords, and returns a list of rewards in [0, 1], None if the judge failed: TRL leaves such a
    sample out (law 1). ``answer_column`` holds the reference; None: the first of ``ANSWERS`` in the
    dataset; "": no reference, the judge goes by the question alone. ``also`` are further columns of
    a request, such as ``evidence``. TRL logs ``rewards/<name>/mean``, and the shares of samples
    without a verdict and with the rules' instead as ``judge/unscored`` and ``judge/fallback``. It
    can be pickled; a copy opens its own connections.

    A judge that is down is waited for up to ``patience`` seconds. RunPaused ends the run where a
    share of more than ``most_unscored`` of the latest samples, or all of them, have no verdict; 1
    lets it go on whatever happens.

    Raises ConfigError for a ``config`` with mistakes, and when called UserError for a missing
    column or an address without a service.
    """
    made = AsyncTrlReward if asynchronous else TrlReward
    return made(config, answer_column, also, name, patience, most_unscored)


_TRLS_OWN = {"completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
