"""The simulator behind the OpenAI protocol: an ASGI application, its faults and its latency.

Chat completions (whole or streamed), the list of models, and a health check; nothing else of the
protocol. Every reply carries ``"system_fingerprint": "simulated"``.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flowright.config import SimulatedSection
from flowright.data.task import Problem
from flowright.errors import FailureError
from flowright.sandbox import Sandbox
from flowright.simulation.assessor import Assessor
from flowright.simulation.biases import check_biases
from flowright.simulation.cues import Ask, Judgement, read_prompt
from flowright.simulation.draws import Draws, digest, unit
from flowright.simulation.index import TaskIndex
from flowright.simulation.mutants import WrongSolutions
from flowright.simulation.protocol import (
    CHARS_PER_TOKEN,
    MODEL_CARD,
    BadRequest,
    ChatQuery,
    Choice,
    Receive,
    Send,
    formed,
    parse,
    read_body,
    send_error,
    send_json,
    send_reply,
)
from flowright.simulation.solver import Solver
from flowright.simulation.table import TABLE

HANG_SECONDS = 600.0
_REMEMBERED = 1 << 18  # requests whose occurrences are counted, for faults
_LATENCY_CAP = 8.0  # times the mean

Scope = Mapping[str, Any]
Fault = Literal["hang", "error_500", "error_429", "malformed", "empty", "truncate"]
_FAULTS: tuple[Fault, ...] = ("hang", "error_500", "error_429", "malformed", "empty", "truncate")


class SimulatedApp:
    """The ASGI application. ``sandbox`` verifies wrong code; it belongs to the caller."""

    def __init__(
        self, tasks: Sequence[Problem], section: SimulatedSection, sandbox: Sandbox
    ) -> None:
        check_biases(section)
        self._section = section
        self._index = TaskIndex(tasks)
        popular = len(TABLE["code"].popularity)
        wrong_code = WrongSolutions(sandbox, section.seed, popular)
        self._solver = Solver(self._index.tasks, section.seed, wrong_code)
        self._assessor = Assessor(section, self._solver)
        self._occurrences: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        route = (scope["method"], scope["path"].rstrip("/"))
        if route == ("POST", "/v1/chat/completions"):
            await self._chat(body, receive, send)
        elif route == ("GET", "/v1/models"):
            await send_json(send, 200, {"object": "list", "data": [MODEL_CARD]})
        elif route == ("GET", "/health"):
            health = {"status": "ok", "simulated": True, "tasks": len(self._index.tasks)}
            await send_json(send, 200, health)
        else:
            await send_error(send, 404, f"{scope['method']} {scope['path']} is not served here")

    async def _chat(self, body: bytes, receive: Receive, send: Send) -> None:
        try:
            request = parse(body)
        except BadRequest as error:
            await send_error(send, error.status, error.message)
            return
        asked = read_prompt(request.messages, self._index)
        name = digest(body)
        occurrence = self._count(name)
        fault = self._fault(
            name, occurrence, "judge" if isinstance(asked, Judgement) else "executor"
        )
        await self._wait(name, occurrence)
        if fault == "hang":
            await _disconnected(receive)
            return
        if fault == "error_500":
            await send_error(send, 500, "injected fault: internal server error (simulated)")
            return
        if fault == "error_429":
            wait = [(b"retry-after-ms", b"100"), (b"retry-after", b"1")]
            await send_error(send, 429, "injected fault: too many requests (simulated)", wait)
            return
        try:
            choices = [await self._choice(request, asked, i, fault) for i in range(request.choices)]
        except FailureError as error:  # the sandbox that verifies wrong code
            await send_error(send, 500, str(error))
            return
        await send_reply(send, request, choices, name, malformed=fault == "malformed")

    async def _choice(
        self, request: ChatQuery, asked: Ask | Judgement, index: int, fault: Fault | None
    ) -> Choice:
        if fault == "empty":
            return Choice(None, "length", "(simulated: the budget was spent on reasoning)")
        seed = (request.seed, index) if request.sampled else ("greedy",)
        if isinstance(asked, Judgement):
            key = (asked.question, asked.answer, asked.rival)
            draws = Draws(self._section.seed, "judge", *key, *seed)
            text = self._assessor.reply(asked, draws, request.response_format)
        else:
            prompt = digest(repr(request.messages).encode("utf-8", "replace"))
            task_id = asked.task.id if asked.task else ""
            draws = Draws(self._section.seed, task_id, asked.way, *seed, prompt)
            text = formed(await self._solver.reply(asked, draws), request.response_format)
        limit = len(text) // 2 if fault == "truncate" else len(text)
        if request.max_tokens is not None:
            limit = min(limit, request.max_tokens * CHARS_PER_TOKEN)
        return Choice(text[:limit], "length" if limit < len(text) else "stop")

    def _count(self, name: str) -> int:
        """How often this very request has come before; forgotten after many others."""
        if not any(getattr(self._section.faults, fault) for fault in _FAULTS):
            return 0
        occurrence = self._occurrences.pop(name, 0)
        self._occurrences[name] = occurrence + 1
        if len(self._occurrences) > _REMEMBERED:
            del self._occurrences[next(iter(self._occurrences))]
        return occurrence

    def _fault(self, name: str, occurrence: int, role: str) -> Fault | None:
        faults = self._section.faults
        if faults.roles not in ("all", role):
            return None
        left = unit(self._section.seed, "fault", name, occurrence)
        for fault in _FAULTS:
            left -= getattr(faults, fault)
            if left < 0:
                return fault
        return None

    async def _wait(self, name: str, occurrence: int) -> None:
        """Exponentially distributed, so that some replies are much later than the mean."""
        mean = self._section.latency_ms / 1000
        if mean > 0:
            drawn = -math.log(1.0 - unit(self._section.seed, "latency", name, occurrence))
            await asyncio.sleep(mean * min(drawn, _LATENCY_CAP))


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has gone, ten minutes at most."""
    try:
        async with asyncio.timeout(HANG_SECONDS):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
