"""A judge as a reward function for anybody's trainer: plain arguments in, a plain dict out.

    rewards = create_judge_reward("reward.yaml")
    rewards.reward("What is 6 * 7?", "It is 42.", "42")["reward"]  # 1.0

``reward`` is None where the judge failed and no rule could decide (law 1): leave such a sample out
of its group's statistics, it is not a wrong answer.
"""

import asyncio
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, get_args

import uvloop

from flowright.config import JudgeRewardSection, judge_reward, load_judge_reward
from flowright.errors import UserError
from flowright.judge.remote import RemoteJudge
from flowright.judge.rules import RuleJudge
from flowright.judge.verdict import AnswerType, Criterion, Judge, JudgeQuery
from flowright.judge.wrappers import Cached, CircuitBreaker, Gated, WithRuleFallback
from flowright.judge_service.fallback_log import LogsFallbacks

Answer = TypeVar("Answer")

LATENCIES_KEPT = 2000


class More(TypedDict, total=False):
    """What else may be said of an answer: other references that count; what was observed of it,
    such as ``passed 2 of 3 tests``; another answer to compare it with; a rubric, as pairs of text
    and points; a name for the request."""

    alternatives: Sequence[str]
    evidence: str | None
    rival: str | None
    criteria: Sequence[tuple[str, float]]
    request_id: str | None


class JudgeRewardSystem:
    """Rewards by a judge service, for callers with and without an event loop.

    The work runs on a thread of its own, started by the first call; close it with :meth:`close` or
    ``with``. Calls may come from several threads. Subclass and override :meth:`make_judge` to put
    another judge in the service's place; cache, breaker and fallback go around it.

    ``config`` is a :class:`~flowright.config.JudgeRewardSection` or its keys in a mapping. Raises
    ConfigError for a mapping that is not one.
    """

    def __init__(self, config: JudgeRewardSection | Mapping[str, Any]) -> None:
        known = isinstance(config, JudgeRewardSection)
        self.config = config if known else judge_reward(config)
        self._thread: _LoopThread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._judge: Judge | None = None
        self._remote: RemoteJudge | None = None
        self._cache: Cached | None = None
        self._breaker: CircuitBreaker | None = None
        self._sources: Counter[str] = Counter()
        self._zeros = 0
        self._pending = 0
        self._seconds: deque[float] = deque(maxlen=LATENCIES_KEPT)

    def make_judge(self) -> Judge:
        """The judge itself; called once, on the thread of the loop that it will run on."""
        self._remote = RemoteJudge(self.config)
        return self._remote

    def reward(
        self,
        prompt: str,
        completion: str,
        answer: str,
        answer_type: str = "free_text",
        **more: Unpack[More],
    ) -> dict[str, Any]:
        """Judge one answer and wait for it. Raises ValueError for an unknown ``answer_type``.

        The dict has ``reward`` (in [0, 1], or None), ``source`` (who decided: llm, rule,
        rule_fallback, cache), ``status`` ("ok", or how the judge failed), ``explanation``,
        ``parts`` (what the score was made of, if anything), ``request_id``, ``judge`` and
        ``latency`` (seconds).
        """
        query = _query(prompt, completion, answer, answer_type, **more)
        return self._submit(self._answer(query)).result()

    def reward_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As :meth:`reward`, for many at a time: each is a mapping of its arguments."""
        return self._submit(self._answers([_query(**request) for request in requests])).result()

    async def areward(
        self,
        prompt: str,
        completion: str,
        answer: str,
        answer_type: str = "free_text",
        **more: Unpack[More],
    ) -> dict[str, Any]:
        """:meth:`reward` for callers on an event loop, which it does not block."""
        query = _query(prompt, completion, answer, answer_type, **more)
        return await asyncio.wrap_future(self._submit(self._answer(query)))

    async def areward_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        queries = [_query(**request) for request in requests]
        return await asyncio.wrap_future(self._submit(self._answers(queries)))

    def get_metrics(self) -> dict[str, Any]:
        """What has happened so far; shares of nothing are None.

        A judge's zeros (``zero_rate``, of the scored) stand apart from its failures
        (``error_rate``, fallbacks included; ``fallbacks`` is their number). Latencies are seconds,
        of the latest 2,000 calls.
        """
        calls = sum(self._sources.values())
        failed = self._sources["failed"]
        fallback = self._sources["rule_fallback"]
        cache, remote, breaker = self._cache, self._remote, self._breaker
        seconds = sorted(self._seconds.copy())  # at once: others may add to it
        quantiles = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
        return {
            "requests": calls,
            "error_rate": _share(failed + fallback, calls),
            "unscored_rate": _share(failed, calls),
            "fallbacks": fallback,
            "fallback_rate": _share(fallback, calls),
            "zero_rate": _share(self._zeros, calls - failed),
            "cache_hit_rate": _share(cache.hits, cache.asked) if cache else None,
            "latency_p50": quantiles[9] if quantiles else None,
            "latency_p95": quantiles[18] if quantiles else None,
            "current_queue_size": self._pending,
            "batched_share": _share(remote.batched, remote.asked) if remote else None,
            "http_requests": remote.requests if remote else None,
            "retries": remote.retries if remote else None,
            "circuit_breaker": {
                "state": breaker.state if breaker else "none",
                "opened": breaker.opened if breaker else 0,
                "refused": breaker.refused if breaker else 0,
            },
        }

    def close(self) -> None:
        """Give up what is under way and end the thread. Further calls raise RuntimeError."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._remote is not None:
                thread.submit(self._remote.aclose()).result()
            thread.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        with self._starting:
            if self._closed:
                work.close()
                raise RuntimeError("this JudgeRewardSystem was closed")
            if self._thread is None:
                self._thread = _LoopThread()
        return self._thread.submit(work)

    def _build(self) -> Judge:
        """The judge in its wrappers, from the inside: breaker, cache, fallback, its log, gate."""
        config = self.config
        judge = self.make_judge()
        if config.circuit_breaker_threshold:
            judge = self._breaker = CircuitBreaker(
                judge, config.circuit_breaker_threshold, config.circuit_breaker_timeout
            )
        if config.use_cache:
            judge = self._cache = Cached(judge, config.cache_size, config.judge_url)
        if config.fallback_to_rule:
            judge = WithRuleFallback(judge, RuleJudge(only_certain=True))
        return Gated(LogsFallbacks(judge))

    async def _answers(self, queries: Sequence[JudgeQuery]) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*map(self._answer, queries)))

    async def _answer(self, query: JudgeQuery) -> dict[str, Any]:
        if self._judge is None:
            self._judge = self._build()
        began = time.monotonic()
        self._pending += 1
        try:
            verdict = await self._judge.judge(query)
        finally:
            self._pending -= 1
        seconds = time.monotonic() - began
        self._sources["failed" if verdict.score is None else verdict.source] += 1
        self._zeros += verdict.score == 0
        self._seconds.append(seconds)
        return {
            "reward": verdict.score,
            "source": verdict.source,
            "status": verdict.status,
            "explanation": verdict.reason,
            "parts": dict(verdict.parts),
            "request_id": query.key or None,
            "judge": verdict.judge,
            "latency": seconds,
        }


def create_judge_reward(
    config: Mapping[str, Any] | str | Path, system: type[JudgeRewardSystem] = JudgeRewardSystem
) -> JudgeRewardSystem:
    """The reward system of a YAML file, or of a mapping, with ``type: judge_model`` and ``config``
    (in a file: under ``reward``). Raises ConfigError."""
    if isinstance(config, Mapping):
        if config.get("type") != "judge_model":
            raise UserError(f"reward.type: must be judge_model, not {config.get('type')!r}")
        return system(judge_reward(config.get("config") or {}, "reward.config"))
    return system(load_judge_reward(Path(config)))


class _LoopThread:
    """An event loop on a thread of its own, which does not keep the process alive."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="judge-reward", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left
            runner.get_loop().run_forever()


def _query(
    prompt: str, completion: str, answer: str, answer_type: str = "free_text", **more: Unpack[More]
) -> JudgeQuery:
    known: Mapping[str, AnswerType] = {name: name for name in get_args(AnswerType)}
    if answer_type.lower() not in known:
        raise ValueError(f"answer_type {answer_type!r}; known are {', '.join(known)}")
    return JudgeQuery(
        question=prompt,
        answer=completion,
        reference=answer,
        answer_type=known[answer_type.lower()],
        alternatives=tuple(more.get("alternatives", ())),
        evidence=more.get("evidence"),
        rival=more.get("rival"),
        criteria=tuple(Criterion(text, points) for text, points in more.get("criteria", ())),
        key=more.get("request_id") or "",
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
