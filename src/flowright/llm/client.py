"""The HTTP client for large models.

A client belongs to one event loop; make one per model and share it between roles.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any, Self

from flowright.config.llm import LlmSection, ModelEntry
from flowright.config.section import check_address
from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.core.plugins import suggest
from flowright.llm.balance import Lease, balance_of
from flowright.llm.chat import (
    LENGTH_STOPS,
    ChatReply,
    ChatRequest,
    NoCompletion,
    RequestRefused,
    ServerMisconfigured,
    Usage,
)
from flowright.llm.context import context_of
from flowright.llm.control_tokens import OwnTokens, tokenizer_folder, tokens_of
from flowright.llm.counters import Counters
from flowright.llm.retries import RetriedCall, Retries, RetryPolicy
from flowright.llm.transport import (
    CONNECT_SECONDS,
    HINTS,
    Connection,
    RequestError,
    Response,
    is_refusal,
    misplaced,
    status_error,
)
from flowright.llm.wire import ChatCompletion, MalformedReply, decode_reply, encode_request


class ChatClient:
    """A :class:`flowright.llm.chat.ChatModel` over one or several OpenAI-compatible servers.

    At most ``section.max_concurrency_per_server`` requests are in flight at each server, fewer
    where it answers 429, 503 or late; the others wait, and that waiting is not part of their
    deadline.

    408, 409, 425, 429, 5xx, connection errors, timeouts and unreadable bodies are tried again,
    with the same body (so the same seed); other statuses end the call at once. A server that
    refuses connections is restarting, or gone: for ``section.reconnect_seconds`` of a call this
    does not count as attempts.

    ``counters`` has what was asked, by role; see :meth:`as_role`. Raises ConfigError for a base URL
    that is none, and for a tokenizer that is not there.
    """

    def __init__(self, name: str, entry: ModelEntry, section: LlmSection) -> None:
        self.name = name
        self.entry = entry
        self._role = "executor"
        self._section = section
        where = f"{section.file}: models.{name}.base_url"
        for url in entry.base_urls:
            try:
                check_address(url)
            except ValueError as error:
                shown = "" if "@" in url else f" (got {url!r})"
                raise ConfigError(f"{where}: {error}{shown}") from None
        urls = tuple(url.rstrip("/") for url in entry.base_urls)
        keys = tuple(key or "sk-none" for key in entry.api_keys)
        folder = entry.tokenizer or tokenizer_folder(entry.model_name)
        if entry.tokenizer is not None and not tokens_of(folder):
            place = f"{section.file}: models.{name}.tokenizer"
            raise ConfigError(f"{place}: no tokenizer_config.json or tokenizer.json in {folder}")
        self._own_tokens = OwnTokens(tokens_of(folder))
        self._retries = Retries(balance_of(urls, keys, section), section.request_seconds / 2)
        self._policy = RetryPolicy(
            attempts=section.attempts,
            first_pause=section.backoff_seconds,
            deadline=section.deadline_seconds,
            away=frozenset({"unreachable"}),
            away_seconds=section.reconnect_seconds,
        )
        self._connections = {url: Connection(url, entry.no_proxy) for url in urls}
        self._contexts: dict[str, int | None] = {}  # of the servers that were asked for it
        self._simulated: set[str] = set()
        self.counters = Counters(urls)

    @property
    def simulated(self) -> bool:
        """True if a server was a simulated one at the latest :meth:`check`."""
        return bool(self._simulated)

    def as_role(self, role: str) -> Self:
        """Return this client with its calls counted under ``role``; connections are shared."""
        client = copy(self)
        client._role = role
        return client

    @property
    def concurrency(self) -> int:
        """Most requests in flight, over all servers."""
        return self._section.in_flight(len(self._connections))

    async def aclose(self) -> None:
        self._retries.balance.close()
        for connection in self._connections.values():
            await connection.aclose()

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        """Return the model's reply, which may be empty. ``deadline``: seconds, default from the
        config.

        Raises FailureError(LLM_UNAVAILABLE) when attempts or deadline are spent, its subclass
        NoCompletion if the server answered each of them; at once ServerMisconfigured on a status
        that no retry mends, and RequestRefused when the request itself is at fault. ``usage.calls``
        of a reply is 1 however many attempts it took: see ``attempts``.
        """
        policy = self._policy if deadline is None else replace(self._policy, deadline=deadline)
        call = RetriedCall(policy, self._encoded(request), self.counters.role(self._role))
        try:
            completion = await self._retries.run(call, lambda lease: self._ask(lease, call))
        except RequestError as error:
            raise self._failure(call, error) from None
        counts = completion.prompt_tokens, completion.completion_tokens
        price = self.entry.price
        usage = Usage(1, *counts, price.of(*counts, completion.cached_tokens) if price else 0.0)
        call.counts.replied(usage.prompt_tokens, usage.completion_tokens)
        call.counts["empty"] += not completion.text.strip()
        return ChatReply(
            text=completion.text,
            finish_reason=completion.finish_reason,
            usage=usage,
            model=completion.model or self.entry.model_name,
            seconds=call.spent,
            attempts=call.attempts,
            reasoning=completion.reasoning,
            context=min(filter(None, self._contexts.values()), default=None),
        )

    def _encoded(self, request: ChatRequest) -> bytes:
        """Encode a request, its messages free of the model's control tokens."""
        messages = tuple(
            replace(message, content=self._own_tokens.broken(message.content))
            for message in request.messages
        )
        return encode_request(self.entry, replace(request, messages=messages))

    async def _ask(self, lease: Lease, call: RetriedCall) -> ChatCompletion:
        url = lease.server.url
        limit = min(self._section.request_seconds, call.left)
        try:
            response = await self._connections[url].ask(
                "/chat/completions", lease.key.value, limit, call.key
            )
            if response.status != 200:
                raise status_error(response, url, str(self._section.file))
            completion = decode_reply(response.content)
        except RequestError as error:
            if error.kind == "timeout" and limit < self._section.request_seconds:
                error.blames_server = False  # a short deadline is no fault of the server
            raise
        except MalformedReply as error:
            raise RequestError("malformed", f"{url}: {error}") from None
        if completion.finish_reason in LENGTH_STOPS and url not in self._contexts:
            await self._learn_context(url, lease.key.value)  # a retry will want more room
        return completion

    async def _learn_context(self, url: str, key: str) -> None:
        self._contexts[url] = None
        with suppress(RequestError):  # a reply was had, whatever becomes of this
            response = await self._connections[url].ask("/models", key, CONNECT_SECONDS)
            self._contexts[url] = context_of(model_cards(response) or (), self.entry.model_name)

    def _failure(self, call: RetriedCall, error: RequestError) -> FailureError:
        if error.kind in ("http_400", "http_413", "http_422"):
            return RequestRefused(f"{self.name}: {error.message}")
        if error.final:
            return ServerMisconfigured(f"{self.name}: {error.message}")
        kinds = ", ".join(f"{n} x {kind}" for kind, n in call.failures.most_common())
        made = f"{call.attempts} attempt{'s' * (call.attempts > 1)} in {call.spent:.3g} s"
        message = f"no usable reply after {made} ({kinds}); last: {error.message}"
        if all(map(is_refusal, call.failures)):
            return NoCompletion(f"{self.name}: {message}")
        return FailureError(Reason.LLM_UNAVAILABLE, f"{self.name}: {message}")

    async def check(self, budgets: Mapping[str, int] | None = None) -> list[str]:
        """Return one line for each server that cannot be used; empty when all can.

        Asks every server for its list of models; one without such a list passes. ``budgets``:
        tokens of a reply by configuration key; they must leave room for a prompt in the server's
        context (vLLM's ``max_model_len``).
        """
        found = await asyncio.gather(
            *(self._check_server(url, budgets or {}) for url in self._connections)
        )
        return [problem for problem in found if problem]

    async def _check_server(self, url: str, budgets: Mapping[str, int]) -> str | None:
        where = f"{self._section.file}: models.{self.name}: {url}"
        key = self._retries.balance.keys[0].value
        try:
            response = await self._connections[url].ask("/models", key, CONNECT_SECONDS)
        except RequestError as error:
            if error.kind == "timeout":
                late = f"no answer within {CONNECT_SECONDS:g} s"
                return f"{where}: {late}; is the server still loading?"
            why = error.message.removeprefix(f"{url}: ")
            mend = "change base_url or the machine's settings"
            if not error.final:
                mend = "start the server, wait until it has loaded, or change base_url"
            return f"{where}: cannot be reached ({why}); {mend}"
        if response.status in (404, 405, 501):
            found = await misplaced(url, self.entry.no_proxy, key, openai_ends(url))
            if found is None or (cards := model_cards(found[1])) is None:
                return None
            return (
                f"{where}: answered {response.status} to /models, and {found[0]} serves "
                f"{_shown([str(card['id']) for card in cards])}: set base_url to {found[0]}"
            )
        if response.status != 200:
            hint = HINTS.get(response.status, "see the server's log")
            return f"{where}: answered {response.status} to /models; {hint}"
        cards = model_cards(response)
        if any(card.get("simulated") is True for card in cards or ()):
            self._simulated.add(url)
        if cards is None:
            return f"{where}: this is not an OpenAI-compatible server; check base_url"
        model, names = self.entry.model_name, [str(card["id"]) for card in cards]
        if names and model not in names:
            hint = suggest(model, names)
            return f"{where}: serves {_shown(names)}, not {model}; set model_name{hint}"
        window = self._contexts[url] = context_of(cards, model)
        above = [f"{name} is {n}" for name, n in budgets.items() if window and n >= window]
        if not above:
            return None
        return (
            f"{where}: max_model_len of {self.entry.model_name} is {window}, but "
            f"{' and '.join(above)}, which leaves no room for a prompt: lower it, or start the "
            "server with a larger --max-model-len"
        )


def openai_ends(url: str) -> dict[str, str]:
    """Return other addresses of the list of models: below ``url``, or above it if it is the address
    of a request."""
    root = url.removesuffix("/completions").removesuffix("/chat")
    ends = [f"{url}/v1", root, f"{root.rpartition('/')[0]}/v1"]
    return {end: "/models" for end in ends if end != url and end.count("/") > 2}


def model_cards(response: Response) -> list[dict[str, Any]] | None:
    """Return the rows of a list of models, each with an id; None for anything else."""
    try:
        rows = json.loads(response.content)["data"]
        return [{**row, "id": row["id"]} for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "nothing") + more
