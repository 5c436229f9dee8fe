"""A judge that is down is left alone for a while, instead of every query waiting for it in turn.

The circuit breaker of Nygard's "Release It!" (2nd edition, 2018, chapter 5). Written here because
what has to be counted is a verdict's status: the judge raises nothing, and libraries count
exceptions.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from flowright.judge.verdict import JudgeQuery, Verdict, Wrapper

_DOWN = frozenset({"timeout", "unavailable"})
"""What says that the backend is down; a reply that cannot be read does not."""


@dataclass(eq=False)
class CircuitBreaker(Wrapper):
    """Opens after ``threshold`` failures of the backend in a row, for ``seconds``.

    While it is open every query gets ``unavailable`` at once. After that one query is let through
    as a probe (half open) while the others are still refused: if it is served the circuit closes,
    else it is open for as long again. A query that began earlier and is served closes it, too.
    ``opened`` counts how often, ``refused`` the queries that were not passed on.
    """

    threshold: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    opened: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _open_until: float | None = field(default=None, init=False)
    _probing: bool = field(default=False, init=False)

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        if self._open_until is None:
            return "closed"
        return "half_open" if self.clock() >= self._open_until else "open"

    async def judge(self, query: JudgeQuery) -> Verdict:
        probe = self.state == "half_open"
        if self.state == "open" or (probe and self._probing):
            return self._refuse()
        self._probing = self._probing or probe
        try:
            verdict = await self.inner.judge(query)
        finally:
            if probe:
                self._probing = False
        if verdict.status not in _DOWN:
            self._failures = 0
            self._open_until = None
        elif self._open_until is None or probe:
            self._failures += 1
            if probe or self._failures >= self.threshold:
                self._open_until = self.clock() + self.seconds
                self._failures = 0
                self.opened += 1
        return verdict

    def _refuse(self) -> Verdict:
        self.refused += 1
        reason = (
            f"circuit open: {self.threshold} verdicts in a row found {self.name} down; it is asked "
            f"again within {self.seconds:g} s"
        )
        return Verdict(None, None, "llm", "unavailable", reason, judge=self.name)
