"""A judge as a reward function for anybody's trainer: plain arguments in, a plain dict out.

    rewards = create_judge_reward("reward.yaml")
    rewards.reward("What is 6 * 7?", "It is 42.", "42")["reward"]  # 1.0

``reward`` is None where the judge failed and no rule could decide (law 1): leave such a sample out
of its group's statistics, it is not a wrong answer.
"""

import logging
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, Unpack

from flowright.config.judge import JudgeRewardSection
from flowright.config.loading import judge_reward, load_judge_reward
from flowright.core.errors import UserError, boundary
from flowright.judging.payloads import response_of
from flowright.judging.remote import RemoteJudge
from flowright.judging.reward.calls import More, RewardResult, lost, query_of, request_id_of
from flowright.judging.reward.runtime import LoopThread, OwnRequests, Running, metrics_of, owners
from flowright.judging.verdict import Judge, JudgeQuery

_GRACE_SECONDS = 30.0  # beyond a verdict's own deadline
_MOST_THREADS = 256  # of a judge of one's own that blocks

_log = logging.getLogger("JudgeReward")


class JudgeRewardSystem:
    """Rewards by a judge service, for callers with and without an event loop.

    The work runs on a thread of its own, started by the first call; close it with :meth:`close` or
    ``with``. Calls may come from several threads. Every call ends: a verdict has
    ``config.deadline``, and where nobody gets one any more, all who wait are told so.

    A forked child, an unpickled or a deep copy starts anew, with the same configuration.

    To put a judge of your own in the service's place, subclass and override :meth:`_request_judge`,
    which sees every request, or :meth:`make_judge`; cache, breaker and fallback go around it.

    ``config`` is a :class:`~flowright.config.judge.JudgeRewardSection` or its keys in a mapping; what it
    lacks is taken from the environment (``JUDGE_MODEL_URL`` and others). Raises ConfigError for a
    mapping that is not one.
    """

    def __init__(self, config: JudgeRewardSection | Mapping[str, Any] | None = None) -> None:
        known = isinstance(config, JudgeRewardSection)
        self.config = config if known else judge_reward(config or {})
        self._closed = False
        self._forget()
        owners.add(self)

    def _forget(self) -> None:
        self._running: Running | None = None
        self._ending: weakref.finalize[..., Any] | None = None
        self._starting = threading.Lock()

    def leave_behind(self) -> Running | None:
        """What runs, without ending it: for a forked child, which has none of it."""
        running, ending = self._running, self._ending
        if ending is not None:
            ending.detach()
        self._forget()
        return running

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_running", "_ending", "_starting")
        return {name: value for name, value in self.__dict__.items() if name not in ours}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
        owners.add(self)

    def make_judge(self) -> Judge:
        """The judge itself; called once, on the thread of the loop that it will run on."""
        remote = self._run().remote = RemoteJudge(self.config)
        is_own = type(self)._request_judge is not JudgeRewardSystem._request_judge
        return OwnRequests(remote.name, self._request_judge, self._threads) if is_own else remote

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
        return future.result() if why is None else lost(why)

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

    def reward_batch(self, requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As :meth:`reward`, for many at a time: each is a mapping of its arguments."""
        requests = list(requests)
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

    async def areward_batch(self, requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        requests = list(requests)
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
        (``error_rate``, fallbacks included; ``fallbacks`` is their number). Latencies are seconds,
        of the latest 2,000 calls; ``latency`` is their mean.
        """
        return metrics_of(self._running, self.config.circuit_breaker_threshold > 0)

    def close(self) -> None:
        """Give up what is under way and end the thread, within seconds. Further calls raise
        RuntimeError."""
        self._closed = True
        if self._ending is not None:
            self._ending()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Running:
        with self._starting:
            if self._closed:
                raise RuntimeError("this JudgeRewardSystem was closed")
            if self._running is None or not self._running.thread.is_alive:
                running = self._running = Running()
                self._ending = weakref.finalize(self, running.end)
            return self._running

    def _threads(self) -> ThreadPoolExecutor:
        running, config = self._run(), self.config
        if running.threads is None:
            most = min(config.max_concurrent_requests * config.max_batch_size, _MOST_THREADS)
            running.threads = ThreadPoolExecutor(most, "judge-reward-own")
        return running.threads

    def _begin(
        self, requests: Sequence[object], told: list[dict[str, Any] | None]
    ) -> "tuple[LoopThread, Future[None]]":
        running = self._run()
        queries: list[tuple[int, JudgeQuery]] = []
        for number, request in enumerate(requests):
            why = None
            with boundary("request") as attribution:  # of its objects any method may raise
                try:
                    queries.append((number, query_of(request)))
                except ValueError as error:
                    why = str(error)
            if attribution.failure is not None:
                why = attribution.failure.message
            if why is not None:
                told[number] = lost(why, "invalid", request_id_of(request))
                running.sources["invalid"] += 1
                _log.warning("a request is invalid and has no reward: %s", why)

        async def answer() -> None:
            judge = running.judge  # made where it will run
            if judge is None:
                judge = running.put_in_wrappers(self.make_judge(), self.config)
            await running.answer_all(judge, queries, told)

        return running.thread, running.thread.submit(answer())

    def _all_told(
        self, requests: Sequence[object], told: Sequence[dict[str, Any] | None], why: str | None
    ) -> list[dict[str, Any]]:
        if why is not None:
            _log.warning("%d of %d requests have no reward: %s", told.count(None), len(told), why)
        status = "timeout" if why is not None and why.startswith("Timeout") else "unavailable"
        return [
            lost(why or "", status, request_id_of(request)) if one is None else one
            for request, one in zip(requests, told, strict=True)
        ]


Config = str | Path | Mapping[str, Any]
"""The address of a judge service; a YAML file with ``reward``; or the keys of ``reward.config``."""

BaseJudgeReward = JudgeRewardSystem
"""The name of what is derived from, for a judge of one's own."""


def create_judge_reward(
    config: Config, system: type[JudgeRewardSystem] = JudgeRewardSystem
) -> JudgeRewardSystem:
    """The reward system of a service's address; of a YAML file with ``reward``; of such a mapping,
    with ``type: judge_model`` and ``config``; or of a mapping of the config's keys alone, such as
    ``{"judge_url": url}``. Raises ConfigError."""
    if isinstance(config, str) and config.startswith(("http://", "https://")):
        config = {"judge_url": config}
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
