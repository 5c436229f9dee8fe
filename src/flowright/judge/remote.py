"""A judge behind HTTP as a judge here: many queries in one request.

Speaks to the judge service (:mod:`flowright.judge_service`) or to anything with its
``POST /batch_judge``. A service that fails is a verdict with a status, never a 0 (law 1). No cache
and no breaker: those are wrappers.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from flowright.config import JudgeServiceSection
from flowright.judge.verdict import JudgeQuery, Source, Status, Verdict
from flowright.llm.balance import Balance
from flowright.llm.chat import Usage
from flowright.llm.counters import Counters
from flowright.llm.retries import Call, Retries, RetryPolicy
from flowright.llm.transport import CONNECT_SECONDS, Connection, RequestError, status_error

FIRST_PAUSE = 0.25  # seconds
ROLE = "judge_service"


@dataclass(slots=True)
class _Asked:
    query: JudgeQuery
    verdict: "asyncio.Future[Verdict]"


class RemoteJudge:
    """Asks a judge service, for one event loop. Close it with :meth:`aclose`.

    Queries wait up to ``batch_timeout`` for others to go with, at most ``max_batch_size`` of them
    in a request and ``max_concurrent_requests`` requests at a time. ``counters`` has the requests.
    """

    def __init__(self, section: JudgeServiceSection) -> None:
        self._section = section
        self.name = section.judge_url.rstrip("/")
        self._connection = Connection(self.name, None)
        self._key = section.api_key or ""
        balance = Balance((self.name,), (self._key,))
        self._retries = Retries(balance, section.max_concurrent_requests)
        self._policy = RetryPolicy(
            attempts=section.max_retries + 1, first_pause=FIRST_PAUSE, longest_pause=section.timeout
        )
        self.counters = Counters((self.name,))
        self._waiting: list[_Asked] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self.simulated = False  # whether it said so, when it was checked last
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
        asked = _Asked(query, loop.create_future())
        self.asked += 1
        self._waiting.append(asked)
        if len(self._waiting) >= self._section.max_batch_size:
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
        self.simulated = _says_simulated(response.content)
        if response.status == 200:
            return []
        return [status_error(response, self.name, "judge_url, api_key").message]

    async def aclose(self) -> None:
        """Give up what is on its way and close the connections."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._connection.aclose()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [asked for asked in self._waiting if not asked.verdict.done()]
        self._waiting.clear()  # who was cancelled is not asked for
        if waiting:
            task = asyncio.get_running_loop().create_task(self._send(waiting))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: Sequence[_Asked]) -> None:
        began = time.monotonic()
        if len(batch) > 1:
            self.batched += len(batch)
        body = json.dumps({"requests": [_request(asked.query) for asked in batch]}).encode()
        call = Call(self._policy, body, self.counters.role(ROLE))
        try:
            verdicts = await self._retries.run(call, lambda _: self._ask(body, len(batch)))
            for verdict in verdicts:
                call.counts.replied(verdict.usage.prompt_tokens, verdict.usage.completion_tokens)
        except RequestError as error:
            verdicts = [self._failed(error, time.monotonic() - began)] * len(batch)
        except asyncio.CancelledError:
            for asked in batch:
                asked.verdict.cancel()
            raise
        for asked, verdict in zip(batch, verdicts, strict=True):
            if not asked.verdict.done():
                asked.verdict.set_result(verdict)

    async def _ask(self, body: bytes, count: int) -> list[Verdict]:
        timeout = self._section.timeout
        response = await self._connection.ask("/batch_judge", self._key, timeout, body)
        if response.status != 200:
            raise status_error(response, self.name, "judge_url, api_key")
        return _read(response.content, count, self.name)

    def _failed(self, error: RequestError, seconds: float) -> Verdict:
        status: Status = "timeout" if error.kind == "timeout" else "unavailable"
        return Verdict(None, None, "llm", status, error.message, judge=self.name, seconds=seconds)


def _says_simulated(health: bytes) -> bool:
    try:
        return json.loads(health).get("simulated") is True
    except (ValueError, AttributeError):
        return False  # not our service, which is no fault


def _request(query: JudgeQuery) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "prompt": query.question,
        "completion": query.answer,
        "answer": query.reference,
        "answer_type": query.answer_type,
        "alternatives": query.alternatives or None,
        "evidence": query.evidence,
        "rival": query.rival,
        "criteria": [{"text": c.text, "points": c.points} for c in query.criteria] or None,
        "instruction": query.instruction or None,
        "request_id": query.key[:256] or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _read(content: bytes, count: int, judge: str) -> list[Verdict]:
    """The verdicts of an answer. Raises RequestError for one that is none."""
    try:
        responses = json.loads(content)["responses"]
        if len(responses) != count:
            raise ValueError(f"{len(responses)} responses to {count} requests")
        return [_verdict(response, judge) for response in responses]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RequestError("malformed", f"{judge}: not a judge service's answer ({what})") from None


def _verdict(response: Mapping[str, Any], judge: str) -> Verdict:
    status = response["status"]
    metadata = response.get("metadata") or {}
    if status == "invalid":  # what we asked was no question, such as one without a reference
        return Verdict(None, None, "llm", "abstain", str(response["explanation"]), judge=judge)
    if status not in get_args(Status) or response["source"] not in (None, *get_args(Source)):
        raise ValueError(f"status {status!r}, source {response['source']!r}")
    score, correct = response["score"], response["correct"]
    is_tie = correct is None and score == 0.5
    sound = status != "ok" or (
        (isinstance(correct, bool) or is_tie) and isinstance(score, int | float) and 0 <= score <= 1
    )
    if not sound:
        raise ValueError(f"score {score!r}, correct {correct!r}")
    return Verdict(
        score=float(score) if status == "ok" else None,
        correct=correct if status == "ok" else None,
        source=response["source"] or "llm",
        status=status,
        reason=str(response.get("explanation", "")),
        attempts=int(metadata.get("attempts", 0)),
        judge=str(metadata.get("judge") or judge),
        usage=Usage(
            int(metadata.get("attempts", 0) > 0),
            int(metadata.get("prompt_tokens", 0)),
            int(metadata.get("completion_tokens", 0)),
        ),
        seconds=float(metadata.get("latency", 0.0)),
        parts={str(name): float(part) for name, part in (response.get("parts") or {}).items()},
    )
