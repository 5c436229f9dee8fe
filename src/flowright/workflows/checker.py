"""Type-check programs against the operators' stubs before they run, for less than a millisecond.

Starting a type-checked session costs tens of milliseconds, feeding it a program about one. So one
session serves all: each program is fed behind a call that only the stubs know, which ends the feed
before the program's first line; what did not run leaves nothing behind in the session.
"""

import asyncio
import builtins
import re
import sys
from contextlib import AsyncExitStack, suppress
from typing import Self

from pydantic_monty import (
    AsyncMonty,
    AsyncMontySession,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySyntaxError,
    MontyTypingError,
)

from flowright.core.errors import Failure, FailureError, Reason
from flowright.workflows.interpreter import WorkerClock, hold_exit, quiet_binary
from flowright.workflows.operators import OPERATORS
from flowright.workflows.reference import stubs
from flowright.workflows.registry import STOP, Operators

FEEDS_PER_SESSION = 2000
CPU_SECONDS = 1.0  # of the checker for one program; it is ended a second later
PATIENCE_SECONDS = 120.0  # on the wall, for a machine that is busy
_CONTROL = "await answer(problem)"
_UNCHECKED = "the program cannot be type-checked"
_LACKING = "The monty syntax parser does not yet support "

_DIAGNOSTIC = re.compile(
    r"^[^:\n]*:(?P<line>\d+):\d+: error\[(?P<rule>[\w-]+)\] (?P<message>.*)$", re.MULTILINE
)

# Rules whose breach raises at run time. The rest, such as an assignment against an annotation, is
# a matter of taste: Python runs it.
_FATAL = frozenset({
    "call-non-callable", "invalid-argument-type", "invalid-await", "invalid-key", "invalid-syntax",
    "missing-argument", "no-matching-overload", "not-iterable", "not-subscriptable",
    "parameter-already-assigned", "too-many-positional-arguments", "unknown-argument",
    "unresolved-attribute", "unresolved-import", "unresolved-reference", "unsupported-operator",
})  # fmt: skip


class ProgramChecker:
    """Checks one program at a time; an async context manager, for one event loop."""

    def __init__(self, operators: Operators = OPERATORS) -> None:
        self._operators = operators
        self._stubs = stubs(operators)
        self._lock = asyncio.Lock()
        self._pool = AsyncMonty(
            binary_path=quiet_binary(),
            min_processes=1,
            max_processes=1,
            request_timeout=PATIENCE_SECONDS,
        )
        self._stack = AsyncExitStack()
        self._session: AsyncMontySession | None = None
        self._session_stack = AsyncExitStack()
        self._feeds = 0

    async def __aenter__(self) -> Self:
        hold_exit()
        await self._stack.enter_async_context(self._pool)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._drop_session()
        await self._stack.aclose()
        hold_exit()

    async def check(self, program: str) -> Failure | None:
        """Return the error in a program, with the line of ``program``; None for a valid one.

        A program that takes the checker more CPU time than any honest one is refused. After a crash
        the checker is restarted and the program tried once more: it is the program's fault if it
        crashes again while another program can be checked. Otherwise, and when a busy machine has
        no CPU for the checker, raises FailureError(WORKER_LOST).
        """
        async with self._lock:
            for _ in range(2):
                with suppress(MontyCrashedError):
                    return await self._try(program)
            try:
                await self._try(_CONTROL)
            except MontyCrashedError as error:
                message = f"the type checker dies: {error}"
                raise FailureError(Reason.WORKER_LOST, message) from None
        return Failure(Reason.UNSUPPORTED, f"{_UNCHECKED}: it breaks the checker")

    async def _try(self, program: str) -> Failure | None:
        session = await self._ready_session()
        clock = WorkerClock(session.worker_pid or -1, CPU_SECONDS)
        try:
            return await self._check(session, program)
        except BaseException as error:  # died or cancelled half-way: its state is unknown
            await self._drop_session()
            if isinstance(error, MontyCrashedError) and clock.expired:
                return Failure(Reason.TIME_BUDGET, f"{_UNCHECKED}: it takes too long")
            if isinstance(error, MontyCrashedError) and error.timed_out:
                message = "the machine is too busy to type-check a program; lower its load"
                raise FailureError(Reason.WORKER_LOST, message) from None
            raise
        finally:
            clock.stop()

    async def _check(self, session: AsyncMontySession, program: str) -> Failure | None:
        behind_stop = f"{STOP}()\n{program}"
        self._feeds += 1
        try:
            await session.feed_run(behind_stop, external_lookup={})
        except MontyTypingError as error:
            failure = _verdict(error.display(), self._operators)
            if failure is not None:
                return failure
        except MontyError as error:
            return _refusal(error)
        else:  # a program that ran to its end was never stopped
            raise RuntimeError(f"{STOP}() did not stop a program that was to be checked")
        # There were only matters of taste; whether the interpreter can compile it is still open.
        try:
            await session.feed_run(behind_stop, external_lookup={}, skip_type_check=True)
        except MontyError as error:
            return _refusal(error)
        return None

    async def _ready_session(self) -> AsyncMontySession:
        if self._session is not None and self._feeds >= FEEDS_PER_SESSION:
            await self._drop_session()
        if self._session is None:
            checkout = self._pool.checkout(
                type_check=True,
                type_check_stubs=self._stubs,
                type_check_format="concise",
                limits={"max_suspensions": 10 * FEEDS_PER_SESSION},
            )
            self._session = await self._session_stack.enter_async_context(checkout)
            self._feeds = 0
        return self._session

    async def _drop_session(self) -> None:
        self._session = None
        stack, self._session_stack = self._session_stack, AsyncExitStack()
        await stack.aclose()


def _refusal(error: MontyError) -> Failure | None:
    """Return the result of a feed that passed the type checker: the stop, or the interpreter's
    refusal."""
    if isinstance(error, MontyCrashedError):
        raise error
    if isinstance(error, MontyRuntimeError | MontySyntaxError):
        frames = error.traceback()
        line = frames[-1].line - 1 if frames else None
        message = error.display(format="msg")
        inner = type(error.exception()).__name__
        if inner == "NameError" and STOP in message:
            return None
        message = message.replace(_LACKING, "the workflow language has no ", 1)
        reason = Reason.SYNTAX if inner == "SyntaxError" else Reason.UNSUPPORTED
        return Failure(reason, message[:500], line)
    raise error


def _verdict(diagnostics: str, operators: Operators) -> Failure | None:
    """The first diagnostic that means an exception at run time."""
    for match in _DIAGNOSTIC.finditer(diagnostics):
        rule, message = match["rule"], match["message"].strip()
        if rule in _FATAL and _is_certain(rule, message, operators):
            reason = _reason(rule, message)
            if reason is Reason.UNSUPPORTED:
                message = f"the workflow language lacks this: {message}"
            return Failure(reason, message[:500], int(match["line"]) - 1)
    return None


def _is_certain(rule: str, message: str, operators: Operators) -> bool:
    """Return whether a diagnostic holds for all values: one about some members of a union may never
    come true (a variable that a repair set to None, say)."""
    if "in union" in message:
        return False
    if rule == "invalid-argument-type":
        function, _, found = message.partition(", found ")
        name = re.search(r"function `(\w+)`", function)
        if name is not None:
            return name[1] in operators and "|" not in found
        owner = message.rpartition(" on object of type ")[2]
        return function.startswith("Method `__getitem__`") and "|" not in owner
    if rule == "no-matching-overload":
        return "`gather`" in message
    if rule in ("unsupported-operator", "not-iterable", "not-subscriptable", "call-non-callable"):
        return "|" not in message
    return True


def _reason(rule: str, message: str) -> Reason:
    """TYPE for a slip of the program, UNSUPPORTED for Python that the language lacks."""
    name = re.search(r"`([^`]*)`", message)
    if rule == "unresolved-reference" and name and hasattr(builtins, name[1]):
        return Reason.UNSUPPORTED
    if rule == "unresolved-import":
        return Reason.UNSUPPORTED
    if rule == "unresolved-attribute" and message.startswith("Module "):
        module = name[1].partition(".")[0] if name else ""
        return Reason.UNSUPPORTED if module in sys.stdlib_module_names else Reason.TYPE
    return Reason.SYNTAX if rule == "invalid-syntax" else Reason.TYPE
