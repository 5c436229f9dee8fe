"""What one workflow may spend on operators, and the count of what it did spend.

The limits of computing time and memory are in :mod:`flowright.workflows.interpreter`.
Every overrun raises FailureError on the host, where the program cannot catch it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowright.config.workflow import WorkflowSection
from flowright.core.errors import FailureError, Reason

# Calls that ask the model rarely or never (`test`, `ensemble`) also cost something: a workflow may
# make this many operator calls for each model call that it may make.
OPERATOR_CALLS_PER_LLM_CALL = 4


class Budget:
    """Counts calls, tokens and runs of code of one execution. A question is one call however often
    the host asks it again; the tokens of every reply count, those of empty ones too."""

    def __init__(self, limits: WorkflowSection) -> None:
        self.limits = limits
        self._operators = 0
        self._asking = 0
        self._calls = 0
        self.tokens = 0
        self._checks = 0
        self._sandbox = asyncio.Lock()

    def admit(self, asks_model: bool) -> None:
        """Count an operator call before it starts. Raises CALL_BUDGET, so that a flood of calls
        ends at its first call too many, before any further one was sent."""
        self._operators += 1
        self._asking += asks_model
        allowed = self.limits.max_llm_calls
        if self._asking > allowed or self._operators > allowed * OPERATOR_CALLS_PER_LLM_CALL:
            raise _too_many(allowed)

    def take_call(self) -> None:
        """Count a question to the model before it is sent. Raises CALL_BUDGET or TOKEN_BUDGET."""
        self._calls += 1
        if self._calls > self.limits.max_llm_calls:
            raise _too_many(self.limits.max_llm_calls)
        self._check_tokens(more=1)

    def spend(self, tokens: int) -> None:
        """Count the tokens of a question and its reply. Raises TOKEN_BUDGET."""
        self.tokens += tokens
        self._check_tokens()

    @asynccontextmanager
    async def execution(self) -> AsyncIterator[None]:
        """Around a run of code in the sandbox: counted before it starts, and one after another, so
        that the workers are shared by all workflows however many runs one of them asks for. Raises
        CALL_BUDGET."""
        self._checks += 1
        allowed = self.limits.max_checks
        if self._checks > allowed:
            raise FailureError(Reason.CALL_BUDGET, f"the workflow may run code {allowed} times")
        async with self._sandbox:
            yield

    def _check_tokens(self, more: int = 0) -> None:
        allowed = self.limits.max_tokens
        if self.tokens + more > allowed:
            message = f"the workflow may use {allowed} tokens; {self.tokens} are used"
            raise FailureError(Reason.TOKEN_BUDGET, message)


def _too_many(allowed: int) -> FailureError:
    return FailureError(Reason.CALL_BUDGET, f"the workflow may call the model {allowed} times")
