"""Every query by a method that somebody has overridden, such as ``_request_judge``."""

import asyncio
import inspect
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from flowright.core.errors import boundary
from flowright.judging.remote_wire import read_verdict, request_of
from flowright.judging.reward.result import RewardResult
from flowright.judging.verdict import JudgeQuery, Verdict


class OwnRequests:
    """A judge that hands each query's request to ``ask``, a bound method: a coroutine method on the
    loop, a plain one on one of the ``threads``, where it may block. Its object is not kept alive.
    """

    def __init__(
        self, name: str, ask: Callable[[dict[str, Any]], Any], threads: Callable[[], Executor]
    ) -> None:
        self.name = name
        self._ask = weakref.WeakMethod(ask)
        self._threads = threads

    async def judge(self, query: JudgeQuery) -> Verdict:
        request = request_of(query)
        with boundary("_request_judge") as attribution:
            try:
                response = await self._asked(request)
            except SystemExit as error:  # in a task it would end the loop
                raise RuntimeError(f"it called sys.exit: {error}") from None
            if isinstance(response, RewardResult):
                response = response.score
            return read_verdict(plain(response), self.name)
        return Verdict(None, None, "llm", "unavailable", str(attribution.failure), judge=self.name)

    async def _asked(self, request: dict[str, Any]) -> Any:
        ask = self._ask()
        if ask is None:
            raise RuntimeError("the reward system is gone")
        if inspect.iscoroutinefunction(ask):
            return await ask(request)
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._threads(), ask, request)
        return await response if inspect.isawaitable(response) else response


def plain(told: Any) -> Any:
    """What a judge of one's own returned, without the types of numerical libraries, whose numbers
    have ``item``."""
    if isinstance(told, Mapping):
        return {name: plain(value) for name, value in told.items()}
    return told.item() if hasattr(told, "item") else told
