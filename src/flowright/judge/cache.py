"""Verdicts asked for once: equal queries, those at the same time included, cost one call.

Attempts of a group often end in the same answer. A judge's failure is never kept, so the next who
asks tries again. No prompts and no calls of its own here.
"""

import time
from dataclasses import replace

from flowright.judge.verdict import Judge, JudgeQuery, Verdict
from flowright.llm.chat import Usage
from flowright.llm.replies import spoken_answer
from flowright.memo import Memo


class _Failed(Exception):
    """Carries a verdict that must not be kept past those who wait for it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.status)
        self.verdict = verdict


class Cached:
    """Keeps the latest ``capacity`` verdicts of ``inner``, in memory.

    ``fingerprint`` names what else decides a verdict beside the query: the prompt's version and the
    parameters of the request. A query's ``key`` is not part of the question, since it only seeds
    retries. A verdict out of the cache says ``source="cache"`` and has cost nothing.
    """

    def __init__(self, inner: Judge, capacity: int, fingerprint: str) -> None:
        self._inner = inner
        self._fingerprint = fingerprint
        self._memo: Memo[Verdict] = Memo(capacity)
        self.asked = 0  # queries in all
        self.hits = 0  # of these, answered by another's call

    @property
    def name(self) -> str:
        return self._inner.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        own = False

        async def ask() -> Verdict:
            nonlocal own
            own = True
            verdict = await self._inner.judge(query)
            if verdict.status != "ok":
                raise _Failed(verdict)
            return verdict

        self.asked += 1
        rival = None if query.rival is None else spoken_answer(query.rival)
        asked = replace(query, answer=spoken_answer(query.answer), rival=rival, key="")
        try:
            verdict = await self._memo.get((self.name, self._fingerprint, asked), ask)
        except _Failed as failed:
            verdict = failed.verdict
        if own:
            return verdict
        self.hits += 1
        source = "cache" if verdict.status == "ok" else verdict.source
        seconds = time.monotonic() - began
        return replace(verdict, source=source, attempts=0, usage=Usage(), seconds=seconds)
