"""A judge behind HTTP as a judge here: many queries in one request.

Speaks to the judge service (:mod:`flowright.judging.service`) or to anything with its
``POST /batch_judge``. A service that fails is a verdict with a status, never a 0 (law 1). No cache
and no breaker: those are wrappers. The form of requests and answers is
:mod:`flowright.judging.payloads`'s.
"""

import asyncio
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
from flowright.llm.counters import Counters
from flowright.llm.retries import Balance, Call, Lease, Retries, RetryPolicy
from flowright.llm.transport import (
    CONNECT_SECONDS,
    Connection,
    RequestError,
    misplaced,
    status_error,
)

FIRST_PAUSE = 0.25  # seconds
ROLE = "judge_service"

# What a question may be to blame for: one of a batch spoils the others.
_REFUSED = frozenset({"http_400", "http_413", "http_422"})

_log = logging.getLogger("JudgeReward")


@dataclass(slots=True)
class _Asked:
    query: JudgeQuery
    name: str
    body: bytes
    verdict: "asyncio.Future[Verdict]"


class RemoteJudge:
    """Asks a judge service, for one event loop. Close it with :meth:`aclose`.

    Queries wait up to ``batch_timeout`` for others to go with, at most ``max_batch_size`` of them
    in a request and ``max_concurrent_requests`` requests at a time; less where the service says in
    its /health that it takes less, or shows it by its refusals
    (:class:`~flowright.judging.remote_limits.Reach`). A service without room (429, 503 with
    ``Retry-After``) is waited for up to ``deadline``, which runs from a question's first turn. A
    batch that is refused is halved until only the question at fault is refused. ``counters`` has
    the requests.
    """

    def __init__(self, section: JudgeServiceSection) -> None:
        self._section = section
        self.name = section.judge_url.rstrip("/")
        self._connection = Connection(self.name, None, {CLIENT_HEADER: uuid.uuid4().hex})
        self._key = (section.api_key or "").strip()  # a file's last line has an end
        self._reach = Reach(section, self._connection, self._key, self.name)
        self._window = self._reach.window
        self._retries = Retries(Balance((self.name,), (self._key,)), self._window)
        self._policy = RetryPolicy(
            attempts=section.max_retries + 1,
            first_pause=FIRST_PAUSE,
            longest_pause=section.timeout,
            deadline=section.deadline,
        )
        self._timeout = section.timeout
        self.counters = Counters((self.name,))
        self._waiting: list[_Asked] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._orders = itertools.count()
        self.simulated = False  # whether it said so, when it was checked last
        self.notes: tuple[str, ...] = ()  # what it said of its verdicts then
        self.asked = 0  # queries
        self.batched = 0  # of these, sent along with others

    @property
    def requests(self) -> int:
        """Requests that were sent, retries included."""
        return int(self.counters.role(ROLE)["attempts"])

    @property
    def retries(self) -> int:
        return self.requests - int(self.counters.role(ROLE)["calls"])

    async def judge(self, query: JudgeQuery) -> Verdict:
        loop = asyncio.get_running_loop()
        request = request_of(query)
        asked = _Asked(query, request["request_id"], encoded(request), loop.create_future())
        self.asked += 1
        self._waiting.append(asked)
        if len(self._waiting) >= self._reach.most:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._section.batch_timeout, self._flush)
        return await asked.verdict

    async def check(self) -> list[str]:
        """What keeps the service from being used, in a line; empty when all is well."""
        try:
            response = await self._connection.ask("/health", self._key, CONNECT_SECONDS)
        except RequestError as error:
            if error.kind == "timeout":
                return [f"{self.name}: no answer within {CONNECT_SECONDS:g} s"]
            why = error.message.removeprefix(f"{self.name}: ")
            mend = "start the judge service or change judge_url"
            return [f"{self.name}: cannot be reached ({why}); {mend}"]
        if response.status in (404, 405):
            ends = dict.fromkeys(_parents(self.name), "/health")
            found = await misplaced(self.name, None, self._key, ends)
            if found is not None:
                told = f"{self.name}: answered {response.status} to /health, and {found[0]} is up"
                return [f"{told}: set judge_url to {found[0]}"]
        limits = read_limits(response.content)
        self.simulated, self.notes = limits.simulated, limits.notes
        self._reach.obey(limits)
        if response.status == 200:
            return []
        return [status_error(response, self.name, "judge_url, api_key").message]

    async def aclose(self) -> None:
        """Give up what is on its way and close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        for asked in self._waiting:
            asked.verdict.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._reach.aclose()
        await self._connection.aclose()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        self._start(waiting, self._send_all(waiting, next(self._orders)))

    def _start(self, waiting: Sequence[_Asked], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._settling(waiting, work))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _settling(self, waiting: Sequence[_Asked], work: Coroutine[Any, Any, None]) -> None:
        """Do the work; whatever becomes of it, nobody waits for ever."""
        try:
            with boundary(ROLE) as attribution:
                await work
        except asyncio.CancelledError:
            _cancel(waiting)
            raise
        if attribution.failure is not None:
            said = str(attribution.failure)
            _settle(waiting, Verdict(None, None, "llm", "unavailable", said, judge=self.name))

    # What is sent.

    async def _send_all(self, waiting: Sequence[_Asked], order: int) -> None:
        await self._reach.learn()
        live = [asked for asked in waiting if not asked.verdict.done()]
        for batch in self._reach.batches(live):  # who was cancelled is not asked for
            if len(batch) > 1:
                self.batched += len(batch)
            self._start(batch, self._deliver(batch, order, self._policy))

    async def _deliver(self, batch: Sequence[_Asked], order: int, policy: RetryPolicy) -> None:
        live = list(batch)
        counts = self.counters.role(ROLE)
        call = Call(policy, batch[0].body, counts, len(live), order)
        try:
            while live:  # more than once where the window lets only a part through
                call = Call(policy, live[0].body, counts, len(live), order)
                await self._retries.run(call, partial(self._ask, call, live))
                live = [asked for asked in live if not asked.verdict.done()]
            return
        except RequestError as error:
            failure = error
        live = [asked for asked in live if not asked.verdict.done()]
        others_pass = call.began is not None and self._window.answered_at > call.began
        if len(live) > 1 and call.left > 0 and _divides(failure, others_pass):
            half = len(live) // 2
            _log.debug("%s: %s; %d questions halved", self.name, failure.kind, len(live))
            rest = replace(policy, deadline=call.left)
            for part in (live[:half], live[half:]):
                self._start(part, self._deliver(part, order, rest))
            return
        verdict = self._failed(failure, others_pass, call.spent)
        _log.debug("%s: %d questions without a verdict: %s", self.name, len(live), verdict.reason)
        _settle(live, verdict)
        if failure.kind not in _REFUSED and not others_pass:
            self._window.give_up(failure)  # who waits behind would only fail later

    async def _ask(self, call: Call, batch: Sequence[_Asked], _: Lease) -> None:
        """One attempt: settles those of the batch that are answered. Raises RequestError."""
        live = [asked for asked in batch if not asked.verdict.done()][: call.granted]
        if not live:
            return
        body = body_of([asked.body for asked in live])
        # A judge that takes its time is given more of it, instead of starting again and again.
        seconds = min(self._timeout * 2.0 ** call.failures["timeout"], call.left)
        began = time.monotonic()
        _log.debug("%s: %d questions, %d bytes sent", self.name, len(live), len(body))
        try:
            response = await self._connection.ask("/batch_judge", self._key, seconds, body)
            if response.status != 200:
                raise status_error(response, self.name, "judge_url, api_key")
        except RequestError as error:
            self._reach.learn_from(error, call, len(live), len(body), began)
            raise
        read = read_responses(response.content, [asked.name for asked in live], self.name)
        answered = 0
        for asked, verdict in zip(live, read.verdicts, strict=True):
            if verdict is not None and not asked.verdict.done():
                asked.verdict.set_result(verdict)
                answered += 1
                call.counts.replied(verdict.usage.prompt_tokens, verdict.usage.completion_tokens)
        _log.debug(
            "%s: %d verdicts after %.3f s; window %.0f",
            *(self.name, answered, time.monotonic() - began, self._window.width),
        )
        if answered:
            # Waiting in the service's queue is part of a request's time: no more of it than that.
            took = time.monotonic() - began
            self._window.answered(answered, took, grows=took < self._timeout / 2)
            self._timeout = max(self._timeout, seconds if call.failures["timeout"] else 0.0)
        if None in read.verdicts:
            raise RequestError("malformed", read.problem)

    def _failed(self, error: RequestError, others_pass: bool, seconds: float) -> Verdict:
        status: Status = "unavailable"
        said = error.message
        if error.is_overload:
            status, said = "overloaded", f"Request queue full: {said}"
        elif error.kind == "timeout":
            status, said = "timeout", f"Timeout waiting for results: {said}"
        elif error.kind in _REFUSED:
            status = "refused"
        elif error.kind == "malformed" and others_pass:
            status = "parse_error"
        return Verdict(None, None, "llm", status, said, judge=self.name, seconds=seconds)


def _parents(url: str) -> list[str]:
    """The addresses above a URL's path."""
    parts = url.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts) - 1, 2, -1)]


def _divides(error: RequestError, others_pass: bool) -> bool:
    """Whether half a batch may be served where the whole was not: where one question may be to
    blame. A server that is down refuses everybody."""
    if error.kind in _REFUSED:
        return True
    is_ours = error.final or error.is_overload or error.kind == "unreachable"
    return others_pass and not is_ours


def _settle(batch: Sequence[_Asked], verdict: Verdict) -> None:
    for asked in batch:
        if not asked.verdict.done():
            asked.verdict.set_result(verdict)


def _cancel(batch: Sequence[_Asked]) -> None:
    for asked in batch:
        asked.verdict.cancel()
