"""Whose fault a refused request is: the prompt's, or that of what goes with every prompt.

A server that answers 400, 413 or 422 may mean the prompt (too long, stopped by a filter), for which
who wrote it answers, or a parameter of our configuration. No retries, and no rewards, here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flowright.core.memo import Memo
from flowright.llm.chat import (
    ChatModel,
    ChatReply,
    ChatRequest,
    Message,
    RequestRefused,
    ServerMisconfigured,
)

CONTROL = (Message("user", "Reply with the word yes."),)
_KEPT = 16  # sets of parameters


class SettingsRefused(ServerMisconfigured):
    """The server refuses any prompt with these parameters."""


@dataclass(eq=False)
class WithControl:
    """A :class:`~flowright.llm.chat.ChatModel` whose RequestRefused is about the prompt alone.

    The control tells: the same request with a prompt of five words. It is asked after a refusal,
    once for all who wait for it, and one that was served counts for up to ``seconds``. Where it is
    refused as well ``chat`` raises SettingsRefused, and where the server fails otherwise what that
    raises: neither says anything about the prompt.
    """

    inner: ChatModel
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _served: Memo[ChatReply] = field(default_factory=lambda: Memo(_KEPT), init=False)
    _since: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        return self.inner.name

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        try:
            return await self.inner.chat(request, deadline)
        except RequestRefused as refused:
            await self._control(request, refused)
            raise

    async def _control(self, request: ChatRequest, refused: RequestRefused) -> None:
        control = replace(request, messages=CONTROL, seed=None)
        asked, now = repr(control), self.clock()
        if now - self._since.get(asked, -self.seconds) >= self.seconds:
            self._since[asked] = now
        try:
            await self._served.get((asked, self._since[asked]), lambda: self.inner.chat(control))
        except RequestRefused:
            raise SettingsRefused(
                f"{refused.failure.message}; it refuses a prompt of five words too, so change the "
                "parameters: max_tokens, temperature, reasoning_effort of `executor` or of the "
                "model's entry"
            ) from None
