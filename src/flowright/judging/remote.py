"""A judge service as a judge: many queries in one ``POST /batch_judge``.

A service that fails is a verdict with a status, never a 0 (law 1).
"""

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flowright.config.judge import JudgeServiceSection
from flowright.core.errors import boundary
from flowright.judging.payloads import (
    CLIENT_HEADER,
    body_of,
    encoded,
    read_limits,
    read_responses,
    request_of,
)
from flowright.judging.remote_limits import Reach
from flowright.judging.verdict import JudgeQuery, Status, Verdict
from flowright.llm.balance import Balance, Lease
from flowright.llm.counters import Counters
from flowright.llm.retries import RetriedCall, Retries, RetryPolicy
from flowright.llm.transport import (
    CONNECT_SECONDS,
    Connection,
    RequestError,
    is_refusal,
    misplaced,
    status_error,
)

FIRST_PAUSE = 0.25  # seconds
ROLE = "judge_service"

# Refusals of the request, whatever else is served.
_REFUSED = frozenset({"http_400", "http_413", "http_422"})
_NEEDS_NO_CONTROL = _REFUSED | {"http_500"}  # the latter is mostly a service that is down
_CONTROL = JudgeQuery("What is 2 + 2?", "4", "4", "number", key="control")

# What a service that restarts, or the proxy before it, answers.
_RESTARTING = frozenset({"unreachable", "connection", "http_502", "http_503", "http_504"})

_MOST_ALONE = 2  # failures of a batch with others served in between: one may end in a restart

_log = logging.getLogger("JudgeReward")


@dataclass(slots=True)
class _Question:
    name: str
    body: bytes
    verdict: "asyncio.Future[Verdict]"


class RemoteJudge:
    """Client of a judge service, for one event loop. Close it with :meth:`aclose`.

    Queries wait up to ``batch_timeout`` to be batched, at most ``max_batch_size`` in a request and
    ``max_concurrent_requests`` requests at a time, or fewer by the service's own limits
    (:class:`~flowright.judging.remote_limits.Reach`). A service without room (429, 503 with
    ``Retry-After``) is retried up to ``deadline``, which runs from a question's first turn. A batch
    that is refused while others are served is halved until only the question at fault is
    ``refused``; if none is in flight, a control question shows whether others are. ``counters``
    counts the requests.
    """

    def __init__(self, section: JudgeServiceSection) -> None:
        self._section = section
        self.name = section.judge_url.rstrip("/")
        self._connection = Connection(self.name, None, {CLIENT_HEADER: uuid.uuid4().hex})
        self._key = (section.api_key or "").strip()  # a file's last line has an end
        self._reach = Reach(section, self._connection, self._key, self.name)
        self._window = self._reach.window
        self._balance = Balance({self.name: self._window}, (self._key,))
        self._retries = Retries(self._balance)
        self._policy = RetryPolicy(
            attempts=section.max_retries + 1,
            first_pause=FIRST_PAUSE,
            longest_pause=section.timeout,
            deadline=section.deadline,
            away=_RESTARTING,
            away_seconds=section.reconnect_seconds,
        )
        self._timeout = section.timeout
        self.counters = Counters((self.name,))
        self._waiting: list[_Question] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._control: asyncio.Task[bool] | None = None
        self._orders = itertools.count()
        self._down_since: float | None = None
        self.simulated = False  # as of the latest check
        self.notes: tuple[str, ...] = ()  # on its verdicts, as of the latest check
        self.asked = 0  # queries
        self.batched = 0  # of these, sent along with others

    @property
    def requests(self) -> int:
        """Requests sent, retries included."""
        return int(self.counters.role(ROLE)["attempts"])

    @property
    def retries(self) -> int:
        return self.requests - int(self.counters.role(ROLE)["calls"])

    async def judge(self, query: JudgeQuery) -> Verdict:
        loop = asyncio.get_running_loop()
        request = request_of(query)
        question = _Question(request["request_id"], encoded(request), loop.create_future())
        self.asked += 1
        self._waiting.append(question)
        if len(self._waiting) >= self._reach.most:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._section.batch_timeout, self._flush)
        return await question.verdict

    async def check(self, waits: bool = False) -> list[str]:
        """Return why the service cannot be used, in a line; empty if it can. ``waits``: one that is
        there and not ready is none."""
        try:
            response = await self._connection.ask("/health", self._key, CONNECT_SECONDS)
        except RequestError as error:
            if error.kind == "timeout":
                return [f"{self.name}: no answer within {CONNECT_SECONDS:g} s"]
            why = error.message.removeprefix(f"{self.name}: ")
            mend = "change judge_url or the machine's settings"
            if not error.final:
                mend = "start the judge service or change judge_url"
            return [f"{self.name}: cannot be reached ({why}); {mend}"]
        if response.status in (404, 405):
            parts = self.name.split("/")
            parents = ["/".join(parts[:end]) for end in range(len(parts) - 1, 2, -1)]
            found = await misplaced(self.name, None, self._key, dict.fromkeys(parents, "/health"))
            if found is not None:
                state = f"{self.name}: answered {response.status} to /health, and {found[0]} is up"
                return [f"{state}: set judge_url to {found[0]}"]
        limits = read_limits(response.content)
        self.simulated, self.notes = limits.simulated, limits.notes
        self._reach.obey(limits)
        if response.status >= 500 and waits:
            return []
        if response.status in (200, 404, 405) and (limits.in_flight is None or self._key):
            # Another server's page, or none, or a key to be tried: an empty batch is refused only
            # where there is no judge service.
            with contextlib.suppress(RequestError):
                response = await self._connection.ask(
                    "/batch_judge", self._key, CONNECT_SECONDS, body_of(())
                )
                if response.status in (404, 405):
                    mend = "a large model's is an entry of llm.file"
                    return [
                        f"{self.name}: no judge service is there ({response.status} to "
                        f"/batch_judge); set judge_url to the address of one, {mend}"
                    ]
                if response.status not in (401, 403):
                    return []
        if response.status == 200:
            return []
        return [status_error(response, self.name, "judge_url, api_key").message]

    async def page(self, path: str) -> bytes | None:
        """Return a page of the service, such as ``/trained_on``; None if it has none. Raises
        RequestError without a reply."""
        response = await self._connection.ask(path, self._key, CONNECT_SECONDS)
        return response.content if response.status == 200 else None

    async def aclose(self) -> None:
        """Cancel questions in flight and close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        for question in self._waiting:
            question.verdict.cancel()
        tasks = {*self._sending, *filter(None, [self._control])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reach.aclose()
        self._balance.close()
        await self._connection.aclose()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        self._start(waiting, self._send_all(waiting, next(self._orders)))

    def _start(self, waiting: Sequence[_Question], work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task; every question gets a verdict or is cancelled, whatever
        happens."""

        async def run() -> None:
            try:
                with boundary(ROLE) as attribution:
                    await work
            except asyncio.CancelledError:
                for question in waiting:
                    question.verdict.cancel()
                raise
            if attribution.failure is not None:
                why = str(attribution.failure)
                _resolve(waiting, Verdict(None, None, "llm", "unavailable", why, judge=self.name))

        task = asyncio.get_running_loop().create_task(run())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_all(self, waiting: Sequence[_Question], order: int) -> None:
        await self._reach.learn()
        live = [question for question in waiting if not question.verdict.done()]
        for batch in self._reach.batches(live):  # without cancelled questions
            if len(batch) > 1:
                self.batched += len(batch)
            self._start(batch, self._deliver(batch, order, self._policy))

    async def _deliver(self, batch: Sequence[_Question], order: int, policy: RetryPolicy) -> None:
        live = list(batch)
        counts = self.counters.role(ROLE)
        call = RetriedCall(policy, batch[0].body, counts, len(live), order)
        try:
            while live:  # more than once if the window lets only a part through
                call = RetriedCall(policy, live[0].body, counts, len(live), order)
                await self._retries.run(call, partial(self._ask, call, live, []))
                live = [question for question in live if not question.verdict.done()]
            return
        except RequestError as error:
            failure = error
        live = [question for question in live if not question.verdict.done()]
        others_pass = call.began is not None and self._window.answered_at > call.began
        if not others_pass and failure.kind not in _NEEDS_NO_CONTROL and is_refusal(failure.kind):
            others_pass = await self._serves_control()
        if len(live) > 1 and call.left > 0 and _divides(failure, others_pass):
            half = len(live) // 2
            _log.debug("%s: %s; %d questions halved", self.name, failure.kind, len(live))
            rest = replace(policy, deadline=call.left)
            for part in (live[:half], live[half:]):
                self._start(part, self._deliver(part, order, rest))
            return
        verdict = self._failed(failure, others_pass, call.spent)
        _log.debug("%s: %d questions without a verdict: %s", self.name, len(live), verdict.reason)
        _resolve(live, verdict)
        if failure.kind not in _REFUSED and not others_pass:
            self._balance.give_up(failure)  # later questions would only fail later

    async def _ask(
        self, call: RetriedCall, batch: Sequence[_Question], failed_at: list[float], _: Lease
    ) -> None:
        """Make one attempt, and resolve the answered questions. Raises RequestError."""
        live = [question for question in batch if not question.verdict.done()][: call.granted]
        if not live:
            return
        body = body_of([question.body for question in live])
        # A slow judge gets more time, instead of starting again and again.
        seconds = min(self._timeout * 2.0 ** call.failures["timeout"], call.left)
        began = time.monotonic()
        _log.debug("%s: %d questions, %d bytes sent", self.name, len(live), len(body))
        try:
            response = await self._connection.ask("/batch_judge", self._key, seconds, body)
            if response.status != 200:
                raise status_error(response, self.name, "judge_url, api_key")
        except RequestError as error:
            self._reach.learn_from(error, call, len(live), len(body), began)
            if not self._waits_for_it(error, failed_at):
                call.policy = replace(call.policy, away_seconds=0.0)
            raise
        if self._down_since is not None and began > self._down_since:
            self._down_since = None
        read = read_responses(response.content, [each.name for each in live], self.name)
        answered = 0
        for question, verdict in zip(live, read.verdicts, strict=True):
            if verdict is not None and not question.verdict.done():
                question.verdict.set_result(verdict)
                answered += 1
                call.counts.replied(verdict.usage.prompt_tokens, verdict.usage.completion_tokens)
        _log.debug(
            "%s: %d verdicts after %.3f s; window %.0f",
            *(self.name, answered, time.monotonic() - began, self._window.width),
        )
        if answered:
            # The wait in the service's queue is part of a request's time: a long one ends growth.
            took = time.monotonic() - began
            self._window.answered(answered, took, grows=took < self._timeout / 2)
            self._timeout = max(self._timeout, seconds if call.failures["timeout"] else 0.0)
        if None in read.verdicts:
            raise RequestError("malformed", read.problem)

    async def _serves_control(self) -> bool:
        """Return whether a control question gets a verdict now; callers that wait share one."""
        if self._control is None or self._control.done():
            self._control = asyncio.create_task(self._ask_control())
        return await asyncio.shield(self._control)

    async def _ask_control(self) -> bool:
        request = request_of(_CONTROL)
        body, seconds = body_of([encoded(request)]), min(self._timeout, self._section.deadline)
        try:
            response = await self._connection.ask("/batch_judge", self._key, seconds, body)
            read = read_responses(response.content, [request["request_id"]], self.name)
        except RequestError:
            return False
        return response.status == 200 and None not in read.verdicts

    def _waits_for_it(self, error: RequestError, failed_at: list[float]) -> bool:
        """Return whether a service that fails so may be restarting: for ``reconnect_seconds`` of an
        outage, unless the batch fails again and again while others are served in between.
        ``failed_at`` has the time of its last failure, once for each such time."""
        if error.kind not in _RESTARTING:
            return True
        others_pass = bool(failed_at) and self._window.answered_at > failed_at[-1]
        if failed_at and (error.kind == "unreachable" or not others_pass):
            failed_at.pop()
        failed_at.append(time.monotonic())
        if self._down_since is None:
            self._down_since = time.monotonic()
            seconds = self._section.reconnect_seconds
            _log.warning("%s; waiting up to %g s for the service", error.message, seconds)
        waited = time.monotonic() - self._down_since
        return waited < self._section.reconnect_seconds and len(failed_at) <= _MOST_ALONE

    def _failed(self, error: RequestError, others_pass: bool, seconds: float) -> Verdict:
        status: Status = "unavailable"
        why = error.message
        if error.is_overload:
            status, why = "overloaded", f"Request queue full: {why}"
        elif error.kind == "timeout":
            status, why = "timeout", f"Timeout waiting for results: {why}"
        elif error.kind in _REFUSED or (others_pass and is_refusal(error.kind)):
            status = "refused"
        return Verdict(None, None, "llm", status, why, judge=self.name, seconds=seconds)


def _divides(error: RequestError, others_pass: bool) -> bool:
    """Return whether half a batch may be served, because one question may be the cause. A server
    that is down refuses all."""
    is_ours = error.is_overload or error.kind == "unreachable"
    return error.kind in _REFUSED or (others_pass and not is_ours)


def _resolve(batch: Sequence[_Question], verdict: Verdict) -> None:
    for question in batch:
        if not question.verdict.done():
            question.verdict.set_result(verdict)
