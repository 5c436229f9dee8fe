"""The interpreter of workflows: Monty's worker processes behind events. Knows no operators.

A program is driven from one event to the next: it called a host function, it waits for results, it
finished. Between events it can be parked: its state is taken out of the worker, which serves other
programs until the result is there. Apart from :mod:`flowright.workflows.checker`, nothing else in
the package names Monty.
"""

import asyncio
import builtins
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, Self

from pydantic_monty import (
    AsyncFunctionSnapshot,
    AsyncFutureSnapshot,
    AsyncMonty,
    AsyncMontySession,
    AsyncNameLookupSnapshot,
    AsyncSnapshot,
    MontyComplete,
    MontyCrashedError,
    MontyRuntimeError,
    MontySyntaxError,
    OSPolicy,
    ResourceLimits,
)

from flowright.config import WorkflowSection
from flowright.errors import FailureError, FlowrightError, Reason
from flowright.workflows.exit import hold_exit

PRINTED_CHARS = 2000
MAX_RECURSION = 300
TURNS_PER_LLM_CALL = 64  # events of one program, per model call that it may make

# A program sees one moment only: its result must not depend on when it ran.
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Called:
    """The program called a host function, in its line ``line``; answer with
    :meth:`Program.defer`."""

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The program can do nothing before one of these deferred calls is settled (ascending ids)."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The program's value, in plain types except for objects of its own classes."""

    value: Any


Event = Called | Waiting | Finished


class InterpreterDied(FlowrightError):
    """A worker process ended under a program. Whose fault it is, only a second run can tell."""

    def __init__(self, message: str, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Interpreter:
    """The pool of worker processes; an async context manager, for one event loop."""

    def __init__(self, limits: WorkflowSection) -> None:
        self.limits = limits
        self.workers = limits.workers or len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(self.workers)
        self._wanted = 0
        # Every limit is set, also those that the interpreter's own should make unreachable.
        self._pool = AsyncMonty(
            min_processes=self.workers,
            max_processes=self.workers,
            checkout_timeout=60.0,
            request_timeout=10.0 * limits.own_seconds + 10.0,
            max_checkouts_per_worker=10_000,
            feed_duration_limit_grace=4.0,
            turn_duration_limit_grace=4.0,
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        hold_exit()
        await self._stack.enter_async_context(self._pool)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
        hold_exit()

    @property
    def crowded(self) -> bool:
        """Whether programs wait for a worker."""
        return self._wanted > 0

    def program(self, text: str, inputs: Mapping[str, Any], seed: str) -> "Program":
        """A program that has not started. ``inputs`` are its globals: plain values and host
        functions; ``seed`` fixes its ``random``."""
        return Program(self, text, inputs, seed)

    async def checkout(self, policy: OSPolicy) -> tuple[AsyncMontySession, AsyncExitStack]:
        """A fresh session and what gives it back. Waits for a free worker."""
        async with AsyncExitStack() as stack:
            self._wanted += 1
            try:
                await self._slots.acquire()
            finally:
                self._wanted -= 1
            stack.callback(self._slots.release)
            own = self.limits.own_seconds
            limits: ResourceLimits = {
                "max_feed_duration_secs": own,
                "max_turn_duration_secs": own,
                "max_memory": self.limits.memory_mb << 20,
                "gc_interval": None,
                "max_recursion_depth": MAX_RECURSION,
                "max_suspensions": 2 * self.max_turns,
                "max_total_sleep_secs": 0.0,
            }
            session = await stack.enter_async_context(
                self._pool.checkout(
                    script_name="workflow.py",
                    limits=limits,
                    type_check=False,
                    assert_message_annotations=False,
                    os_policy=policy,
                )
            )
            return session, stack.pop_all()

    @property
    def max_turns(self) -> int:
        return TURNS_PER_LLM_CALL * self.limits.max_llm_calls


class Program:
    """One program while it runs. ``own_seconds`` is the time spent in its turns, ``turns`` their
    number. Failures of the program are raised as FailureError, after which it must be closed."""

    def __init__(
        self, interpreter: Interpreter, text: str, inputs: Mapping[str, Any], seed: str
    ) -> None:
        self.turns = 0
        self.own_seconds = 0.0
        self._interpreter = interpreter
        self._text = text
        self._inputs = dict(inputs)
        self._functions = {name for name, value in inputs.items() if callable(value)}
        self._policy: OSPolicy = {
            "datetime": _NOW,
            "timezone": "utc",
            "sleep": "zero",
            "process_time": "zero",
            "random_start": {"seed": seed},
        }
        self._printed: list[str] = []
        self._session: AsyncMontySession | None = None
        self._stack = AsyncExitStack()
        self._snapshot: AsyncSnapshot | None = None
        self._parked: bytes | None = None

    @property
    def printed(self) -> str:
        """The beginning of what the program printed."""
        return "".join(self._printed)[:PRINTED_CHARS]

    @property
    def parked_bytes(self) -> int:
        """The size of its state while it is parked, else 0."""
        return len(self._parked or b"")

    async def start(self) -> Event:
        session = await self._checkout()
        return await self._turn(
            lambda: session.feed_start(self._text, inputs=self._inputs, print_callback=self._print)
        )

    async def defer(self) -> Event:
        """Answer the last call with the promise of a result."""
        snapshot = await self._awake()
        assert isinstance(snapshot, AsyncFunctionSnapshot)
        return await self._turn(lambda: snapshot.resume({"future": ...}))

    async def settle(self, results: Mapping[int, Any]) -> Event:
        """Hand over the results of deferred calls, by id."""
        snapshot = await self._awake()
        assert isinstance(snapshot, AsyncFutureSnapshot)
        settled: Any = {id: {"return_value": value} for id, value in results.items()}
        return await self._turn(lambda: snapshot.resume(settled))

    async def park(self) -> None:
        """Take the program out of its worker; the next answer brings it back into one."""
        if self._session is not None and self._parked is None:
            started = time.perf_counter()
            try:
                self._parked = await self._session.dump()
            except MontyCrashedError as error:
                raise InterpreterDied(str(error), error.timed_out) from None
            self.own_seconds += time.perf_counter() - started
            await self.close()

    async def close(self) -> None:
        """Give the worker back; the program cannot go on unless it is parked."""
        self._session = self._snapshot = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _checkout(self) -> AsyncMontySession:
        self._session, self._stack = await self._interpreter.checkout(self._policy)
        return self._session

    async def _awake(self) -> AsyncSnapshot:
        if self._parked is not None:
            session = await self._checkout()
            state, self._parked = self._parked, None
            try:
                self._snapshot = await session.load_snapshot(state, print_callback=self._print)
            except MontyCrashedError as error:
                raise InterpreterDied(str(error), error.timed_out) from None
        assert self._snapshot is not None
        return self._snapshot

    async def _turn(self, resume: Callable[[], Awaitable[AsyncSnapshot]]) -> Event:
        """Let the program run to its next event; what needs no operator is answered here."""
        while True:
            self.turns += 1
            if self.turns > self._interpreter.max_turns:
                raise FailureError(
                    Reason.CALL_BUDGET, f"more than {self._interpreter.max_turns} calls of the host"
                )
            started = time.perf_counter()
            try:
                snapshot = await resume()
            except MontyCrashedError as error:
                raise InterpreterDied(str(error), error.timed_out) from None
            except (MontyRuntimeError, MontySyntaxError) as error:
                _blame(error)
            finally:
                self.own_seconds += time.perf_counter() - started
            self._snapshot = snapshot
            event = self._event(snapshot)
            if event is not None:
                return event
            resume = self._refuse(snapshot)

    def _event(self, snapshot: AsyncSnapshot) -> Event | None:
        """What a snapshot means; None where the program asks for what there is not."""
        match snapshot:
            case MontyComplete():
                return Finished(_crossed(lambda: snapshot.output, Reason.NO_ANSWER))
            case AsyncFutureSnapshot():
                return Waiting(tuple(sorted(snapshot.pending_call_ids)))
            case AsyncFunctionSnapshot() if (
                not snapshot.is_os_function and snapshot.function_name in self._functions
            ):
                args, kwargs = _crossed(
                    lambda: (snapshot.args, snapshot.kwargs), Reason.BAD_ARGUMENT
                )
                return Called(
                    id=snapshot.call_id,
                    name=snapshot.function_name,
                    args=args,
                    kwargs=kwargs,
                    line=self._text.encode().count(b"\n", 0, snapshot.position.start) + 1,
                )
            case _:
                return None

    def _refuse(self, snapshot: AsyncSnapshot) -> Callable[[], Awaitable[AsyncSnapshot]]:
        """The answer to an unknown name, an unknown function or a call of the operating system:
        the exception that Python raises for it."""
        match snapshot:
            case AsyncFunctionSnapshot() if snapshot.is_os_function:
                return snapshot.resume_not_handled
            case AsyncFunctionSnapshot():
                message = f"name {snapshot.function_name!r} is not defined"
                return lambda: snapshot.resume({"exc_type": "NameError", "message": message})
            case AsyncNameLookupSnapshot():
                return snapshot.resume
            case _:
                raise TypeError(f"unexpected {type(snapshot).__name__}")

    def _print(self, stream: str, text: str) -> None:
        """Keep the beginning; called from the pool's threads."""
        if sum(map(len, self._printed)) < PRINTED_CHARS:
            self._printed.append(text[:PRINTED_CHARS])


def _crossed(read: Callable[[], Any], reason: Reason) -> Any:
    """A value out of the interpreter; one that has no counterpart here is the program's fault."""
    try:
        return read()
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise FailureError(reason, f"a value that cannot leave the workflow: {error}") from None


def _blame(error: MontyRuntimeError | MontySyntaxError) -> NoReturn:
    """Raise the FailureError that an exception of the program's amounts to."""
    kind = type(error.exception()).__name__
    message = error.display(format="type-msg")[:500]
    frames = error.traceback()
    line = frames[-1].line if frames else None
    reason = Reason.CRASHED
    if kind == "TimeoutError" and "time limit exceeded" in message:
        reason, message = Reason.TIME_BUDGET, "the program's own computing takes too long"
    elif kind == "MemoryError":
        reason = Reason.MEMORY_BUDGET
    elif kind == "SyntaxError":
        reason = Reason.SYNTAX
    elif (
        kind in ("NotImplementedError", "ModuleNotFoundError")
        or "not yet support" in message
        or (kind == "AttributeError" and _is_python(message))
    ):
        reason = Reason.UNSUPPORTED
    raise FailureError(reason, message, line) from None


def _is_python(message: str) -> bool:
    """Whether the attribute that the interpreter misses on a built-in object is there in Python."""
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", message)
    kind = getattr(builtins, found[1], None) if found else None
    return isinstance(kind, type) and found is not None and hasattr(kind, found[2])
