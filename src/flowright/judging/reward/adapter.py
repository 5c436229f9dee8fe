"""A judge as a reward function for any trainer: plain arguments in, a plain dict out.

    rewards = create_judge_reward("reward.yaml")
    rewards.reward("What is 6 * 7?", "It is 42.", "42")["reward"]  # 1.0

``reward`` is None if the judge failed and no rule could decide (law 1): leave such a sample out of
its group's statistics, it is not a wrong answer.
"""

import logging
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, Unpack

from flowright.config.judge import JudgeRewardSection
from flowright.config.loading import judge_reward, load_judge_reward
from flowright.core.errors import RunPaused, UserError, boundary
from flowright.judging.payloads import response_of
from flowright.judging.remote import RemoteJudge
from flowright.judging.reward.calls import More, RewardResult, lost, query_of, request_id_of
from flowright.judging.reward.runtime import (
    Answer,
    LoopThread,
    OwnRequests,
    Runtime,
    metrics_of,
    owners,
)
from flowright.judging.verdict import Judge, JudgeQuery

_GRACE_SECONDS = 30.0  # beyond a verdict's own deadline
_MOST_THREADS = 256  # of a user's judge that blocks

_log = logging.getLogger("JudgeReward")


class JudgeRewardSystem:
    """Rewards from a judge service, for callers with and without an event loop.

    The work runs on a thread of its own, started by the first call; close it with :meth:`close` or
    ``with``. Calls may come from several threads, and every call ends: a verdict has
    ``config.deadline``, and all callers return if no verdict can come any more.

    A forked child, an unpickled or a deep copy starts anew, with the same configuration.

    To use a judge of your own instead of the service, subclass and override
    :meth:`_request_judge`, which sees every request, or :meth:`make_judge`; cache, breaker and
    fallback stay around it.

    ``config`` is a :class:`~flowright.config.judge.JudgeRewardSection` or a mapping of its keys,
    which may also be ``keys``; missing ones are taken from the environment (``JUDGE_MODEL_URL`` and
    others). Raises ConfigError.
    """

    def __init__(
        self, config: JudgeRewardSection | Mapping[str, Any] | None = None, **keys: Any
    ) -> None:
        known = isinstance(config, JudgeRewardSection)
        if keys and (config is None or known or isinstance(config, Mapping)):
            self.config = judge_reward({**dict(config or ()), **keys})
        else:
            self.config = config if known else judge_reward(config or {})
        self._closed = False
        self._forget()
        owners.add(self)

    def _forget(self) -> None:
        self._runtime: Runtime | None = None
        self._ending: weakref.finalize[..., Any] | None = None
        self._starting = threading.Lock()

    def leave_behind(self) -> Runtime | None:
        """Drop the runtime without ending it, in a forked child, and return it."""
        runtime, ending = self._runtime, self._ending
        if ending is not None:
            ending.detach()
        self._forget()
        return runtime

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_runtime", "_ending", "_starting")
        return {name: value for name, value in self.__dict__.items() if name not in ours}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
        owners.add(self)

    def make_judge(self) -> Judge:
        """Return the judge; called once, on the thread of the loop that it will run on."""
        remote = self._remote()
        is_own = type(self)._request_judge is not JudgeRewardSystem._request_judge
        return OwnRequests(remote.name, self._request_judge, self._threads) if is_own else remote

    def _request_judge(self, request: dict[str, Any]) -> Any:
        """Ask the service. May be overridden by a method or a coroutine method.

        ``request`` has the keys of ``POST /judge``, and the returned dict those of its response; an
        override may return a ``score`` alone, or a number. In a coroutine method ``await`` the
        result of ``super()._request_judge(request)``; in a plain one, which runs on a thread of its
        own, that is the response itself.
        """
        thread = self._run().thread
        work = self._ask_service(request)
        if thread.is_current:
            return work
        future = thread.submit(work)
        why = thread.wait(future, self.config.deadline + _GRACE_SECONDS)
        return future.result() if why is None else lost(why)

    async def _ask_service(self, request: Mapping[str, Any]) -> dict[str, Any]:
        verdict = await self._remote().judge(query_of(request))
        return response_of(verdict, request_id_of(request))

    def reward(
        self,
        prompt: object,
        completion: object = None,
        answer: object = None,
        answer_type: str | None = None,
        **more: Unpack[More],
    ) -> dict[str, Any]:
        """Judge one answer and wait for it.

        Texts may be numbers or, except for ``answer``, lists of messages; an ``answer`` may be a
        list of all accepted references, or missing. ``completions``, a list of one, is another name
        of ``completion``. The dict has ``reward`` and ``acc_reward`` (in [0, 1], or None),
        ``source`` (llm, rule, rule_fallback, cache ...), ``status`` ("ok", or the judge's failure;
        "invalid" for bad arguments), ``explanation``, ``parts`` and ``detailed_scores`` (components
        of the score), ``request_id``, ``judge`` and ``latency`` (seconds).
        """
        asked = _request(prompt, completion, answer, answer_type, more)
        return self.reward_batch([asked])[0]

    def reward_batch(self, requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Judge many answers at once; each request is a mapping of :meth:`reward`'s arguments."""
        requests = list(requests)
        results: list[dict[str, Any] | None] = [None] * len(requests)
        thread, work = self._begin(requests, results)
        why = thread.wait(work, self.config.deadline + _GRACE_SECONDS)
        return self._completed(requests, results, why)

    async def areward(
        self,
        prompt: object,
        completion: object = None,
        answer: object = None,
        answer_type: str | None = None,
        **more: Unpack[More],
    ) -> dict[str, Any]:
        """Do as :meth:`reward` without blocking the caller's event loop."""
        asked = _request(prompt, completion, answer, answer_type, more)
        return (await self.areward_batch([asked]))[0]

    async def areward_batch(self, requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        requests = list(requests)
        results: list[dict[str, Any] | None] = [None] * len(requests)
        thread, work = self._begin(requests, results)
        why = await thread.waited(work, self.config.deadline + _GRACE_SECONDS)
        return self._completed(requests, results, why)

    async def acheck(self) -> list[str]:
        """Return why there is no service at ``config.judge_url``, a line each; empty if there is
        one, even if it is not ready yet."""
        thread = self._run().thread
        work = thread.submit(self._remote().check(waits=True))
        why = await thread.waited(work, _GRACE_SECONDS)
        return work.result() if why is None else [why]

    def run(self, work: Coroutine[Any, Any, Answer], patience: float = 0.0) -> Answer:
        """Block until a coroutine is done on the loop of the service's requests. Raises RunPaused
        if no verdict came for ``patience`` seconds beyond its deadline."""
        thread = self._run().thread
        future = thread.submit(work)
        why = thread.wait(future, self.config.deadline + _GRACE_SECONDS + patience)
        if why is not None:
            raise RunPaused(why)
        return future.result()

    def compute_reward(
        self,
        prompt: object,
        completion: object = None,
        answer: object = None,
        answer_type: str | None = None,
        **more: Unpack[More],
    ) -> RewardResult:
        """Do as :meth:`reward`, and return an object whose ``score`` is the reward."""
        return RewardResult.of(self.reward(prompt, completion, answer, answer_type, **more))

    def get_metrics(self) -> dict[str, Any]:
        """Return the counts and rates of this process so far. ``cache_hit_rate``, ``error_rate``
        and ``latency`` are numbers from the start; other shares of nothing are None.

        A judge's zeros (``zero_rate``, of the scored) are separate from its failures
        (``error_rate``, including the ``fallbacks``). Latencies are seconds, of the latest 2,000
        calls; ``latency`` is their mean.
        """
        return metrics_of(self._runtime, self.config.circuit_breaker_threshold > 0)

    def start(self) -> None:
        """Start the thread, as the first call does."""
        self._run()

    def close(self) -> None:
        """Cancel running work and end the thread, within seconds. Further calls raise
        RuntimeError."""
        self._closed = True
        if self._ending is not None:
            self._ending()

    stop = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Runtime:
        with self._starting:
            if self._closed:
                raise RuntimeError("this JudgeRewardSystem was closed")
            if self._runtime is None or not self._runtime.thread.is_alive:
                runtime = self._runtime = Runtime()
                self._ending = weakref.finalize(self, runtime.end)
            return self._runtime

    def _remote(self) -> RemoteJudge:
        runtime = self._run()
        if runtime.remote is None:
            runtime.remote = RemoteJudge(self.config)
        return runtime.remote

    def _threads(self) -> ThreadPoolExecutor:
        runtime, config = self._run(), self.config
        if runtime.threads is None:
            most = min(config.max_concurrent_requests * config.max_batch_size, _MOST_THREADS)
            runtime.threads = ThreadPoolExecutor(most, "judge-reward-own")
        return runtime.threads

    def _begin(
        self, requests: Sequence[object], results: list[dict[str, Any] | None]
    ) -> "tuple[LoopThread, Future[None]]":
        runtime = self._run()
        queries: list[tuple[int, JudgeQuery]] = []
        for number, request in enumerate(requests):
            why = None
            with boundary("request") as attribution:  # any method of its objects may raise
                try:
                    queries.append((number, query_of(request)))
                except ValueError as error:
                    why = str(error)
            if attribution.failure is not None:
                why = attribution.failure.message
            if why is not None:
                results[number] = lost(why, "invalid", request_id_of(request))
                runtime.sources["invalid"] += 1
                _log.warning("a request is invalid and has no reward: %s", why)

        async def answer() -> None:
            judge = runtime.judge or runtime.wrap(self.make_judge(), self.config)
            await runtime.answer_all(judge, queries, results)

        return runtime.thread, runtime.thread.submit(answer())

    def _completed(
        self, requests: Sequence[object], results: Sequence[dict[str, Any] | None], why: str | None
    ) -> list[dict[str, Any]]:
        if why is not None:
            missing = results.count(None)
            _log.warning("%d of %d requests have no reward: %s", missing, len(results), why)
        status = "timeout" if why is not None and why.startswith("Timeout") else "unavailable"
        return [
            lost(why or "", status, request_id_of(request)) if result is None else result
            for request, result in zip(requests, results, strict=True)
        ]


Config = str | Path | Mapping[str, Any]
"""The address of a judge service; a YAML file with ``reward``; or the keys of ``reward.config``."""

BaseJudgeReward = JudgeRewardSystem
"""Base class for judges of one's own."""


def create_judge_reward(
    config: Config,
    system: type[JudgeRewardSystem] = JudgeRewardSystem,
    *,
    has_rules: bool = True,
) -> JudgeRewardSystem:
    """Return the reward system of a service's address; of a YAML file with ``reward``; of such a
    mapping, with ``type: judge_model`` and ``config``; or of a mapping of the config's keys alone,
    such as ``{"judge_url": url}``. ``has_rules`` is the default of ``fallback_to_rule``. Raises
    ConfigError."""
    section = _section_of(config)
    if "fallback_to_rule" not in section.model_fields_set:
        section = section.model_copy(update={"fallback_to_rule": has_rules})
    return system(section)


def _section_of(config: Config) -> JudgeRewardSection:
    if isinstance(config, str) and config.startswith(("http://", "https://")):
        config = {"judge_url": config}
    if not isinstance(config, Mapping):
        return load_judge_reward(Path(config))
    if "type" not in config and "config" not in config:
        return judge_reward(config)
    if config.get("type") != "judge_model":
        raise UserError(f"reward.type: must be judge_model, not {config.get('type')!r}")
    return judge_reward(config.get("config") or {}, "reward.config")


def _request(
    prompt: object, completion: object, answer: object, answer_type: str | None, more: More
) -> dict[str, Any]:
    first = {"prompt": prompt, "completion": completion}
    return {**first, "answer": answer, "answer_type": answer_type, **more}
