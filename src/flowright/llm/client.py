"""The one HTTP client for large models: concurrency, retries, deadlines, health. No prompts here.

This module is the one owner of retries. A client belongs to one event loop; make one per model and
share it between roles.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import aiohttp

from flowright.config import LlmSection, ModelEntry
from flowright.errors import ConfigError, FailureError, Reason
from flowright.llm.balance import Balance, Lease, Server
from flowright.llm.chat import (
    ChatReply,
    ChatRequest,
    RequestRefused,
    ServerMisconfigured,
    Usage,
)
from flowright.llm.transport import CONNECT_SECONDS, Connection, Response
from flowright.llm.troubles import HINTS, Trouble, backoff, status_trouble, trouble_of, words_of
from flowright.llm.wire import Completion, MalformedReply, decode_reply, encode_request
from flowright.plugins import suggest

_RECONNECT_PAUSE = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counters since the client was made. ``tries`` = first tries + ``retries``; ``failures``
    counts failed tries by kind (``timeout``, ``connection``, ``malformed``, ``http_500`` ...);
    ``gave_up`` counts requests that ended in a FailureError. ``waiting`` wait for a free slot."""

    requests: int
    replies: int
    tries: int
    retries: int
    gave_up: int
    failures: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int
    in_flight: int
    waiting: int


@dataclass(slots=True)
class _Call:
    """One request on its way: what it sends, what is left of its deadline, what went wrong."""

    body: bytes
    left: float
    given: float
    tries: int = 0
    uncounted: int = 0  # of these, connections refused by a server that is waited for
    free_failovers: int = 0
    avoid: Server | None = None
    troubles: Counter[str] = field(default_factory=Counter)
    last: str = ""

    @property
    def spent(self) -> float:
        return self.given - self.left


class ChatClient:
    """A :class:`flowright.llm.chat.ChatModel` over one or several OpenAI-compatible servers.

    At most ``section.max_concurrency`` requests are in flight; the others wait, and that waiting
    is not part of their deadline: it is our own queue, not the server's slowness. The deadline
    covers tries and the pauses between them. A slot is held only while a try is on the wire.

    408, 409, 425, 429, 5xx, connection errors, timeouts and unreadable bodies are tried again,
    with the same body (so the same seed); other statuses end the call at once. Pauses double from
    ``section.backoff_seconds``, scaled by a factor in [0.5, 1) drawn from a hash of the body, so
    that a repeated run pauses alike. A ``Retry-After`` is obeyed; one that would outlast the
    deadline ends the call. With several servers the first retry goes to another one, unpaused.
    A server that refuses connections is restarting, or gone: for ``section.reconnect_seconds`` of
    a call this does not count as tries, and the pauses stay short.

    Raises ConfigError for a base URL that is none.
    """

    def __init__(self, name: str, entry: ModelEntry, section: LlmSection) -> None:
        self._name = name
        self._entry = entry
        self._section = section
        urls = tuple(url.rstrip("/") for url in entry.base_urls)
        where = f"{section.file}: models.{name}.base_url"
        if bad := [url for url in urls if not url.startswith(("http://", "https://"))]:
            raise ConfigError(*(f"{where}: {url!r} is not a URL; write http://..." for url in bad))
        keys = tuple(key or "sk-none" for key in entry.api_keys)
        self._balance = Balance(urls, keys)
        self._connections = {url: Connection(url, entry.no_proxy) for url in urls}
        self._slots = asyncio.Semaphore(section.max_concurrency)
        self._requests = self._replies = self._tries = self._retries = self._gave_up = 0
        self._prompt_tokens = self._completion_tokens = 0
        self._in_flight = self._waiting = 0
        self._failures: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return self._name

    @property
    def entry(self) -> ModelEntry:
        return self._entry

    def stats(self) -> ClientStats:
        return ClientStats(
            requests=self._requests,
            replies=self._replies,
            tries=self._tries,
            retries=self._retries,
            gave_up=self._gave_up,
            failures=dict(self._failures),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            in_flight=self._in_flight,
            waiting=self._waiting,
        )

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        """The model's reply, empty ones included. ``deadline``: seconds, default from the config.

        Raises FailureError(LLM_UNAVAILABLE) when tries or deadline are spent, at once its subclass
        ServerMisconfigured on a status that no retry mends, and its subclass RequestRefused when
        the request itself is at fault. ``usage.calls`` of a reply is 1 however many tries it took:
        see ``attempts``.
        """
        seconds = self._section.deadline_seconds if deadline is None else deadline
        call = _Call(encode_request(self._entry, request), left=seconds, given=seconds)
        self._requests += 1
        while True:
            try:
                completion = await self._try(call)
            except Trouble as trouble:
                await self._recover(call, trouble)
                continue
            return self._reply(call, completion)

    async def _try(self, call: _Call) -> Completion:
        """One try: wait for a slot, pick a server, ask it. Raises Trouble."""
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        lease = self._balance.lease(call.avoid)
        call.tries += 1
        self._tries += 1
        self._in_flight += 1
        began = time.monotonic()
        settled = False
        try:
            completion = await self._ask(lease, call)
            settled = True
            self._balance.succeeded(lease)
            return completion
        except Trouble as trouble:
            settled = True
            self._settle(lease, call, trouble)
            raise
        finally:
            if not settled:
                self._balance.abandoned(lease)
            call.left -= time.monotonic() - began
            self._in_flight -= 1
            self._slots.release()

    async def _ask(self, lease: Lease, call: _Call) -> Completion:
        url = lease.server.url
        limit = min(self._section.request_seconds, call.left)
        try:
            async with asyncio.timeout(limit):
                response = await self._connections[url].post(
                    "/chat/completions", lease.key.value, call.body
                )
            if response.status != 200:
                raise status_trouble(response, url, str(self._section.file))
            return decode_reply(response.content)
        except aiohttp.ClientError as error:  # before TimeoutError: one of them is both
            raise trouble_of(error, url) from None
        except TimeoutError:
            # A caller in a hurry says nothing about the server.
            patient = limit >= self._section.request_seconds
            message = f"{url}: no reply within {limit:.3g} s"
            raise Trouble("timeout", message, blames_server=patient) from None
        except MalformedReply as error:
            raise Trouble("malformed", f"{url}: {error}") from None

    def _settle(self, lease: Lease, call: _Call, trouble: Trouble) -> None:
        """Enter a failed try into the books."""
        self._failures[trouble.kind] += 1
        call.troubles[trouble.kind] += 1
        call.last = trouble.message
        call.avoid = lease.server
        if trouble.blames_server:
            self._balance.failed(lease, at_once=trouble.kind == "unreachable")
            return
        self._balance.succeeded(lease)
        if trouble.kind in ("http_401", "http_403") and self._balance.refuse_key(lease):
            trouble.final = False
            trouble.retry_after = 0.0
        elif trouble.kind == "http_429" and len(self._balance.keys) > 1:
            self._balance.limit_key(lease, trouble.retry_after or 1.0)
            if self._balance.has_other_key():
                trouble.retry_after = 0.0

    async def _recover(self, call: _Call, trouble: Trouble) -> None:
        """Pause before the next try. Raises FailureError where there is none."""
        if trouble.refuses_request:
            self._gave_up += 1
            raise RequestRefused(f"{self._name}: {trouble.message}")
        if trouble.final:
            self._gave_up += 1
            raise ServerMisconfigured(f"{self._name}: {trouble.message}")
        waits = trouble.kind == "unreachable" and call.spent < self._section.reconnect_seconds
        call.uncounted += waits
        if call.tries - call.uncounted >= self._section.attempts or call.left <= 0:
            self._give_up(call)
        pause = self._pause(call, trouble)
        if waits:
            pause = min(pause, _RECONNECT_PAUSE)
        if pause >= call.left:
            wish = f"; the server asks to wait {pause:.3g} s" if trouble.retry_after else ""
            self._give_up(call, wish)
        self._retries += 1
        if pause > 0:
            await asyncio.sleep(pause)
            call.left -= pause

    def _pause(self, call: _Call, trouble: Trouble) -> float:
        others = len(self._balance.servers) - 1
        if call.free_failovers < others and call.avoid and self._balance.has_other(call.avoid):
            call.free_failovers += 1
            return 0.0
        if trouble.retry_after is not None:
            return trouble.retry_after
        return backoff(call.body, call.tries, self._section.backoff_seconds)

    def _give_up(self, call: _Call, more: str = "") -> NoReturn:
        self._gave_up += 1
        kinds = ", ".join(f"{n} x {kind}" for kind, n in call.troubles.most_common())
        tries = f"{call.tries} {'try' if call.tries == 1 else 'tries'} in {call.spent:.3g} s"
        told = f"no usable reply after {tries} ({kinds}); last: {call.last}{more}"
        raise FailureError(Reason.LLM_UNAVAILABLE, f"{self._name}: {told}")

    def _reply(self, call: _Call, completion: Completion) -> ChatReply:
        self._replies += 1
        self._prompt_tokens += completion.prompt_tokens
        self._completion_tokens += completion.completion_tokens
        return ChatReply(
            text=completion.text,
            finish_reason=completion.finish_reason,
            usage=Usage(1, completion.prompt_tokens, completion.completion_tokens),
            model=completion.model or self._entry.model_name,
            seconds=call.spent,
            attempts=call.tries,
            reasoning=completion.reasoning,
        )

    async def check(self) -> list[str]:
        """What keeps this model from being used, one line per server; empty when all is well.

        Asks every server for its list of models; one that has no such list passes.
        """
        found = await asyncio.gather(*(self._check_server(s.url) for s in self._balance.servers))
        return [problem for problem in found if problem]

    async def _check_server(self, url: str) -> str | None:
        where = f"{self._section.file}: models.{self._name}: {url}"
        key = self._balance.keys[0].value
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                response = await self._connections[url].get("/models", key)
        except TimeoutError:
            return f"{where}: no answer within {CONNECT_SECONDS:g} s; is the server still loading?"
        except aiohttp.ClientError as error:
            why = words_of(error)
            return f"{where}: cannot be reached ({why}); start the server or change base_url"
        if response.status in (404, 405, 501):
            return None
        if response.status != 200:
            hint = HINTS.get(response.status, "see the server's log")
            return f"{where}: answered {response.status} to /models; {hint}"
        served = _model_ids(response)
        if served is None:
            return f"{where}: this is not an OpenAI-compatible server; check base_url"
        if not served or self._entry.model_name in served:
            return None
        shown = ", ".join(served[:5]) + (f" and {len(served) - 5} more" if len(served) > 5 else "")
        hint = suggest(self._entry.model_name, served)
        return f"{where}: serves {shown}, not {self._entry.model_name}; set model_name{hint}"


def _model_ids(response: Response) -> list[str] | None:
    try:
        rows = json.loads(response.content)["data"]
        return [str(row["id"]) for row in rows]
    except (ValueError, KeyError, TypeError):
        return None
