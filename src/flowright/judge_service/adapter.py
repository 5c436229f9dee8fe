"""A judge as a reward function for anybody's trainer: plain arguments in, a plain dict out.

    rewards = create_judge_reward("reward.yaml")
    rewards.reward("What is 6 * 7?", "It is 42.", "42")["reward"]  # 1.0

``reward`` is None where the judge failed and no rule could decide (law 1): leave such a sample out
of its group's statistics, it is not a wrong answer.
"""

import asyncio
import inspect
import logging
import os
import statistics
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, Unpack

from flowright.config import JudgeRewardSection, judge_reward, load_judge_reward
from flowright.errors import UserError, boundary
from flowright.judge.remote import RemoteJudge
from flowright.judge.remote_wire import read_verdict, request_of, response_of
from flowright.judge.rules import RuleJudge
from flowright.judge.verdict import Judge, JudgeQuery, Verdict
from flowright.judge.wrappers import Cached, CircuitBreaker, Gated, WithRuleFallback
from flowright.judge_service.arguments import More, query_of, request_id_of
from flowright.judge_service.calibration import Calibrated
from flowright.judge_service.loop_thread import LoopThread
from flowright.judge_service.result import RewardResult

LATENCIES_KEPT = 2000
_GRACE_SECONDS = 30.0  # beyond a verdict's own deadline
_MOST_THREADS = 256  # of a judge of one's own that blocks

_log = logging.getLogger("JudgeReward")


@dataclass(eq=False)
class _Running:
    """What a system has in one process, once it was asked: it is never copied to another."""

    thread: LoopThread = field(default_factory=LoopThread)
    judge: Judge | None = None
    remote: RemoteJudge | None = None
    cache: Cached | None = None
    breaker: CircuitBreaker | None = None
    threads: ThreadPoolExecutor | None = None
    sources: Counter[str] = field(default_factory=Counter)
    zeros: int = 0
    pending: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))


class JudgeRewardSystem:
    """Rewards by a judge service, for callers with and without an event loop.

    The work runs on a thread of its own, started by the first call; close it with :meth:`close` or
    ``with``. Calls may come from several threads. Every call ends: a verdict has
    ``config.deadline``, and where nobody gets one any more, all who wait are told so.

    A forked child, an unpickled or a deep copy starts anew, with the same configuration.

    To put a judge of your own in the service's place, subclass and override :meth:`_request_judge`,
    which sees every request, or :meth:`make_judge`; cache, breaker and fallback go around it.

    ``config`` is a :class:`~flowright.config.JudgeRewardSection` or its keys in a mapping; what it
    lacks is taken from the environment (``JUDGE_MODEL_URL`` and others). Raises ConfigError for a
    mapping that is not one.
    """

    def __init__(self, config: JudgeRewardSection | Mapping[str, Any]) -> None:
        known = isinstance(config, JudgeRewardSection)
        self.config = config if known else judge_reward(config)
        self._closed = False
        self._forget()
        _SYSTEMS.add(self)

    def _forget(self) -> None:
        self._running: _Running | None = None
        self._starting = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_running", "_starting")
        return {name: value for name, value in self.__dict__.items() if name not in ours}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
        _SYSTEMS.add(self)

    def make_judge(self) -> Judge:
        """The judge itself; called once, on the thread of the loop that it will run on."""
        remote = self._run().remote = RemoteJudge(self.config)
        is_own = type(self)._request_judge is not JudgeRewardSystem._request_judge
        return _Requested(self, remote.name) if is_own else remote

    def _request_judge(self, request: dict[str, Any]) -> Any:
        """Ask the service: what may be overridden, by a method or a coroutine method.

        ``request`` has the keys of ``POST /judge``, and what is returned those of its response; of
        an override a ``score`` is enough, or a number. In a coroutine method ``await`` what
        ``super()._request_judge(request)`` returns; in a plain one, which runs on a thread of its
        own, it is the response itself.
        """
        thread = self._run().thread
        work = self._ask_service(request)
        if thread.is_current:
            return work
        future = thread.submit(work)
        why = thread.wait(future, self.config.deadline + _GRACE_SECONDS)
        return future.result() if why is None else _lost(why)

    async def _ask_service(self, request: Mapping[str, Any]) -> dict[str, Any]:
        running = self._run()
        if running.remote is None:
            running.remote = RemoteJudge(self.config)
        verdict = await running.remote.judge(query_of(request))
        return response_of(verdict, request_id_of(request))

    def reward(
        self,
        prompt: object,
        completion: object,
        answer: object = None,
        answer_type: str | None = None,
        **more: Unpack[More],
    ) -> dict[str, Any]:
        """Judge one answer and wait for it.

        Texts may be numbers or, but for ``answer``, lists of messages; an ``answer`` may be a list
        of all that counts as right, or missing. The dict has ``reward`` (in [0, 1], or None),
        ``source`` (who decided: llm, rule, rule_fallback, cache), ``status`` ("ok", or how the
        judge failed; "invalid" for arguments that nobody can judge: ``explanation`` says why),
        ``parts`` and ``detailed_scores`` (what the score was made of, if anything), ``request_id``,
        ``judge`` and ``latency`` (seconds).
        """
        asked = _request(prompt, completion, answer, answer_type, more)
        return self.reward_batch([asked])[0]

    def reward_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As :meth:`reward`, for many at a time: each is a mapping of its arguments."""
        told: list[dict[str, Any] | None] = [None] * len(requests)
        thread, work = self._begin(requests, told)
        why = thread.wait(work, self.config.deadline + _GRACE_SECONDS)
        return self._all_told(requests, told, why)

    async def areward(
        self,
        prompt: object,
        completion: object,
        answer: object = None,
        answer_type: str | None = None,
        **more: Unpack[More],
    ) -> dict[str, Any]:
        """:meth:`reward` for callers on an event loop, which it does not block."""
        asked = _request(prompt, completion, answer, answer_type, more)
        return (await self.areward_batch([asked]))[0]

    async def areward_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        told: list[dict[str, Any] | None] = [None] * len(requests)
        thread, work = self._begin(requests, told)
        why = await thread.waited(work, self.config.deadline + _GRACE_SECONDS)
        return self._all_told(requests, told, why)

    def compute_reward(
        self,
        prompt: object,
        completion: object,
        answer: object = None,
        answer_type: str | None = None,
        **more: Unpack[More],
    ) -> RewardResult:
        """:meth:`reward` as an object, whose ``score`` is the reward."""
        return RewardResult.of(self.reward(prompt, completion, answer, answer_type, **more))

    def get_metrics(self) -> dict[str, Any]:
        """What has happened so far in this process. ``cache_hit_rate``, ``error_rate`` and
        ``latency`` are numbers from the start; other shares of nothing are None.

        A judge's zeros (``zero_rate``, of the scored) stand apart from its failures
        (``error_rate``, fallbacks included). Latencies are seconds, of the latest 2,000 calls;
        ``latency`` is their mean.
        """
        running = self._running
        sources = running.sources if running else Counter[str]()
        calls = sum(sources.values())
        failed, fallback = sources["failed"], sources["rule_fallback"]
        cache = running.cache if running else None
        remote = running.remote if running else None
        breaker = running.breaker if running else None
        seconds = sorted(running.seconds.copy()) if running else []  # at once: others may add to it
        quantiles = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
        return {
            "requests": calls,
            "error_rate": _share(failed + fallback, calls) or 0.0,
            "unscored_rate": _share(failed + sources["invalid"], calls),
            "fallback_rate": _share(fallback, calls),
            "zero_rate": _share(
                running.zeros if running else 0, calls - failed - sources["invalid"]
            ),
            "cache_hit_rate": (_share(cache.hits, cache.asked) if cache else None) or 0.0,
            "latency": statistics.fmean(seconds) if seconds else 0.0,
            "latency_p50": quantiles[9] if quantiles else None,
            "latency_p95": quantiles[18] if quantiles else None,
            "current_queue_size": running.pending if running else 0,
            "batched_share": _share(remote.batched, remote.asked) if remote else None,
            "http_requests": remote.requests if remote else None,
            "retries": remote.retries if remote else None,
            "circuit_breaker": {
                "state": breaker.state if breaker else "closed" if self._breaks else "none",
                "opened": breaker.opened if breaker else 0,
                "refused": breaker.refused if breaker else 0,
            },
        }

    @property
    def _breaks(self) -> bool:
        return self.config.circuit_breaker_threshold > 0

    def close(self) -> None:
        """Give up what is under way and end the thread, within seconds. Further calls raise
        RuntimeError."""
        self._closed = True
        running, self._running = self._running, None
        if running is None:
            return
        running.thread.end(None if running.remote is None else running.remote.aclose)
        if running.threads is not None:
            running.threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> _Running:
        with self._starting:
            if self._closed:
                raise RuntimeError("this JudgeRewardSystem was closed")
            if self._running is None or not self._running.thread.is_alive:
                self._running = _Running()
            return self._running

    def _begin(
        self, requests: Sequence[object], told: list[dict[str, Any] | None]
    ) -> "tuple[LoopThread, Future[None]]":
        running = self._run()
        queries: list[tuple[int, JudgeQuery]] = []
        for number, request in enumerate(requests):
            try:
                queries.append((number, query_of(request)))
            except ValueError as error:
                told[number] = _lost(str(error), "invalid", request_id_of(request))
                running.sources["invalid"] += 1
                _log.warning("a request is invalid and has no reward: %s", error)
        return running.thread, running.thread.submit(self._answer_all(running, queries, told))

    def _all_told(
        self, requests: Sequence[object], told: Sequence[dict[str, Any] | None], why: str | None
    ) -> list[dict[str, Any]]:
        if why is not None:
            _log.warning("%d of %d requests have no reward: %s", told.count(None), len(told), why)
        status = "timeout" if why is not None and why.startswith("Timeout") else "unavailable"
        return [
            _lost(why or "", status, request_id_of(request)) if one is None else one
            for request, one in zip(requests, told, strict=True)
        ]

    def _build(self, running: _Running) -> Judge:
        """The judge within its wrappers, from the inside out: breaker, calibration, cache,
        fallback, gate."""
        config = self.config
        judge = self.make_judge()
        if config.circuit_breaker_threshold:
            judge = running.breaker = CircuitBreaker(
                judge, config.circuit_breaker_threshold, config.circuit_breaker_timeout
            )
        if config.low_confidence:
            judge = Calibrated(judge, config.low_confidence, config.low_confidence_factor)
        if config.use_cache:
            judge = running.cache = Cached(judge, config.cache_size, config.judge_url)
        if config.fallback_to_rule:
            judge = WithRuleFallback(judge, RuleJudge())
        return Gated(judge)

    async def _answer_all(
        self,
        running: _Running,
        queries: Sequence[tuple[int, JudgeQuery]],
        told: list[dict[str, Any] | None],
    ) -> None:
        if running.judge is None:
            running.judge = self._build(running)
        judge = running.judge

        async def one(number: int, query: JudgeQuery) -> None:
            told[number] = await self._answer(running, judge, query)

        await asyncio.gather(*(one(number, query) for number, query in queries))

    async def _answer(self, running: _Running, judge: Judge, query: JudgeQuery) -> dict[str, Any]:
        began = time.monotonic()
        running.pending += 1
        try:
            with boundary("judge") as attribution:
                verdict = await judge.judge(query)
            if attribution.failure is not None:
                verdict = _failed(judge.name, "unavailable", str(attribution.failure))
        finally:
            running.pending -= 1
        running.thread.moved()
        seconds = time.monotonic() - began
        running.sources["failed" if verdict.score is None else verdict.source] += 1
        running.zeros += verdict.score == 0
        running.seconds.append(seconds)
        _log.debug(
            "reward %s: %s, %s, after %.3f s: %.300s",
            *(verdict.score, verdict.status, verdict.source, seconds, verdict.reason),
        )
        return {
            "reward": verdict.score,
            "source": verdict.source,
            "status": verdict.status,
            "explanation": verdict.reason,
            "parts": dict(verdict.parts),
            "detailed_scores": dict(verdict.parts),
            "request_id": query.key or None,
            "judge": verdict.judge,
            "latency": seconds,
        }


BaseJudgeReward = JudgeRewardSystem
"""The name of what is derived from, for a judge of one's own."""


@dataclass(eq=False)
class _Requested:
    """Every query by :meth:`JudgeRewardSystem._request_judge`, which somebody has overridden."""

    system: JudgeRewardSystem
    name: str

    async def judge(self, query: JudgeQuery) -> Verdict:
        ask = self.system._request_judge
        request = request_of(query)
        with boundary("_request_judge") as attribution:
            if inspect.iscoroutinefunction(ask):
                response = await ask(request)
            else:  # it may block, and so may what it calls
                loop = asyncio.get_running_loop()
                response = await loop.run_in_executor(self._threads(), ask, request)
                response = await response if inspect.isawaitable(response) else response
            if isinstance(response, RewardResult):
                response = response.score
            return read_verdict(response, self.name)
        return _failed(self.name, "unavailable", str(attribution.failure))

    def _threads(self) -> ThreadPoolExecutor:
        running, config = self.system._run(), self.system.config
        if running.threads is None:
            most = min(config.max_concurrent_requests * config.max_batch_size, _MOST_THREADS)
            running.threads = ThreadPoolExecutor(most, "judge-reward-own")
        return running.threads


def create_judge_reward(
    config: Mapping[str, Any] | str | Path, system: type[JudgeRewardSystem] = JudgeRewardSystem
) -> JudgeRewardSystem:
    """The reward system of a YAML file, or of a mapping, with ``type: judge_model`` and ``config``
    (in a file: under ``reward``); or of a mapping of the config's keys alone, such as
    ``{"judge_url": url}``. Raises ConfigError."""
    if not isinstance(config, Mapping):
        return system(load_judge_reward(Path(config)))
    if "type" not in config and "config" not in config:
        return system(judge_reward(config))
    if config.get("type") != "judge_model":
        raise UserError(f"reward.type: must be judge_model, not {config.get('type')!r}")
    return system(judge_reward(config.get("config") or {}, "reward.config"))


def _request(
    prompt: object, completion: object, answer: object, answer_type: str | None, more: More
) -> dict[str, Any]:
    first = {"prompt": prompt, "completion": completion}
    return {**first, "answer": answer, "answer_type": answer_type, **more}


def _failed(judge: str, status: Any, reason: str) -> Verdict:
    return Verdict(None, None, "llm", status, reason, judge=judge)


def _lost(why: str, status: str = "unavailable", request_id: str | None = None) -> dict[str, Any]:
    """What is told of a request that never got to a judge, or back."""
    return {
        "reward": None,
        "source": None,
        "status": status,
        "explanation": why,
        "parts": {},
        "detailed_scores": {},
        "request_id": request_id,
        "judge": "",
        "latency": 0.0,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


_SYSTEMS: "weakref.WeakSet[JudgeRewardSystem]" = weakref.WeakSet()
_LEFT_BEHIND: list[_Running | None] = []


def _after_fork() -> None:
    """In the child the thread is gone, and the sockets are the parent's: nothing of them is used,
    closed or collected."""
    for system in list(_SYSTEMS):
        _LEFT_BEHIND.append(system._running)
        system._forget()


os.register_at_fork(after_in_child=_after_fork)
