"""Verdicts asked for once: equal queries, those at the same time included, cost one call.

Attempts of a group often end in the same answer. A judge's failure is never kept, so the next who
asks tries again. No prompts and no calls of its own here.
"""

import time
from dataclasses import dataclass, field, replace

from flowright.judge.verdict import JudgeQuery, Verdict, Wrapper
from flowright.llm.chat import Usage
from flowright.llm.replies import spoken_answer
from flowright.memo import Memo


class _Failed(Exception):
    """Carries a verdict that must not be kept past those who wait for it."""


@dataclass(eq=False)
class Cached(Wrapper):
    """Keeps the latest ``capacity`` verdicts of ``inner``, in memory.

    ``fingerprint`` names what else decides a verdict beside the query: the wording and the
    parameters of the request. A query's ``key`` is not part of the question, since it only seeds
    retries. A verdict out of the cache says ``source="cache"`` and has cost nothing. ``asked``
    counts the queries, ``hits`` those that were answered by another's call.
    """

    capacity: int
    fingerprint: str
    asked: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._memo: Memo[Verdict] = Memo(self.capacity)

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        own = False

        async def ask() -> Verdict:
            nonlocal own
            own = True
            verdict = await self.inner.judge(query)
            if verdict.status != "ok":
                raise _Failed(verdict)
            return verdict

        self.asked += 1
        rival = None if query.rival is None else spoken_answer(query.rival)
        asked = replace(query, answer=spoken_answer(query.answer), rival=rival, key="")
        try:
            verdict = await self._memo.get((self.name, self.fingerprint, asked), ask)
        except _Failed as failed:
            (verdict,) = failed.args
        if own:
            return verdict
        self.hits += 1
        source = "cache" if verdict.status == "ok" else verdict.source
        seconds = time.monotonic() - began
        return replace(verdict, source=source, attempts=0, usage=Usage(), seconds=seconds)
