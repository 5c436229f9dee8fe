"""One program in the interpreter of workflows, behind events. Knows no operators.

A program is driven from one event to the next: it called a host function, it waits for results, it
finished. Between events it can be parked: its state is taken out of the worker, which serves other
programs until the result is there. Beside this module, :mod:`flowright.workflows.interpreter`,
:mod:`flowright.workflows.checker` and :mod:`flowright.workflows.runtime` alone name Monty.
"""

import builtins
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

from pydantic_monty import (
    AsyncFunctionSnapshot,
    AsyncFutureSnapshot,
    AsyncMontySession,
    AsyncNameLookupSnapshot,
    AsyncSnapshot,
    MontyComplete,
    MontyCrashedError,
    MontyRuntimeError,
    MontySyntaxError,
    OSPolicy,
)

from flowright.core.errors import FailureError, FlowrightError, Reason
from flowright.workflows.interpreter import Interpreter, WorkerClock

TOO_LONG = "the program's own computing takes too long"


def is_time_limit(error: MontyRuntimeError | MontySyntaxError) -> bool:
    """Return whether an exception has the message of the interpreter's time limit; a program can
    raise it, too."""
    message = error.display(format="type-msg")
    return message.startswith("TimeoutError") and "time limit exceeded" in message


def crossed(read: Callable[[], Any], reason: Reason) -> Any:
    """A value out of the interpreter; one that has no counterpart here is the program's fault."""
    try:
        return read()
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise FailureError(reason, f"a value that cannot leave the workflow: {error}") from None


def raise_failure(
    error: MontyRuntimeError | MontySyntaxError, is_time_limit: bool = False
) -> NoReturn:
    """Raise the FailureError that an exception of the program's amounts to."""
    kind = type(error.exception()).__name__
    message = error.display(format="type-msg")[:500]
    frames = error.traceback()
    line = frames[-1].line if frames else None
    reason = Reason.CRASHED
    if is_time_limit:
        reason, message = Reason.TIME_BUDGET, TOO_LONG
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
    """Return whether Python's built-in object has the attribute that the interpreter's lacks."""
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", message)
    kind = getattr(builtins, found[1], None) if found else None
    return isinstance(kind, type) and found is not None and hasattr(kind, found[2])


PRINTED_CHARS = 2000
PRINT_SECONDS, PRINT_CHAR_SECONDS = 5e-5, 2e-8  # of a piece that arrives, of a character
_SPENT = 0.9  # of the CPU time: the interpreter's own clock and the kernel's differ a little

# A program sees one moment only: its result must not depend on when it ran.
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Called:
    """The program called a host function, in its line ``line``; answer with
    :meth:`RunningProgram.defer`."""

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: int


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """The program can do nothing before one of these deferred calls is settled (ascending ids)."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The program's value, in plain types except for objects of its own classes."""

    value: Any


Event = Called | WaitingCalls | Finished
Result = TypeVar("Result")


class InterpreterDied(FlowrightError):
    """A worker process ended under a program. Whose fault it is, only a second run can tell."""


class InterpreterStarved(FlowrightError):
    """A program was out of wall time before it had the CPU time that is its own: the machine is
    busy. It can be run again with more (``patience`` of :class:`RunningProgram`)."""


class RunningProgram:
    """One program, which has not started. ``inputs`` are its globals: plain values and host
    functions; ``seed`` fixes its ``random``; ``patience`` is its wall time for computing, in units
    of the CPU time that it may use. ``turns`` is the number of its turns.

    Failures of the program are raised as FailureError, after which it must be closed; so must one
    that InterpreterDied or InterpreterStarved ended.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        text: str,
        inputs: Mapping[str, Any],
        seed: str,
        patience: float = 1.0,
    ) -> None:
        self.turns = 0
        self._patience = patience
        self._worker = -1
        self._cpu_seconds = 0.0
        self._wall_seconds = 0.0
        self._printing_seconds = 0.0
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
    def own_seconds(self) -> float:
        """The CPU time that it took in its workers, and what its printing costs us: a flat price,
        since a program that prints waits for us without any CPU of its own."""
        return self._cpu_seconds + self._printing_seconds

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
            session = self._session
            self._parked = await self._work(session.dump)
            await self.close()

    async def close(self) -> None:
        """Give the worker back; the program cannot go on unless it is parked."""
        self._session = self._snapshot = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _checkout(self) -> AsyncMontySession:
        self._session, self._stack = await self._interpreter.checkout(self._policy, self._patience)
        self._worker = self._session.worker_pid or -1
        return self._session

    async def _awake(self) -> AsyncSnapshot:
        if self._parked is not None:
            session = await self._checkout()
            state, self._parked = self._parked, None
            self._snapshot = await self._work(
                lambda: session.load_snapshot(state, print_callback=self._print)
            )
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
            try:
                snapshot = await self._work(resume)
            except (MontyRuntimeError, MontySyntaxError) as error:
                self._blame(error)
            self._snapshot = snapshot
            event = self._event(snapshot)
            if event is not None:
                return event
            resume = self._refuse(snapshot)

    def _blame(self, error: MontyRuntimeError | MontySyntaxError) -> NoReturn:
        """A program that raises the interpreter's own words has crashed: the wall time of that
        limit has not passed."""
        wall = _SPENT * self._patience * self._interpreter.limits.own_seconds
        is_limit = is_time_limit(error) and self._wall_seconds >= wall
        if is_limit and not self._spent:
            raise InterpreterStarved("the machine is too busy for the program's own computing")
        raise_failure(error, is_limit)

    @property
    def _spent(self) -> bool:
        return self.own_seconds >= _SPENT * self._interpreter.limits.own_seconds

    async def _work(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Let the worker do something and charge the program for the CPU time that it took. Raises
        InterpreterDied, InterpreterStarved, and TIME_BUDGET where only patience kept a program
        going that has had its time."""
        allowed = self._interpreter.limits.own_seconds
        clock = WorkerClock(self._worker, allowed - self.own_seconds)
        began = time.perf_counter()
        try:
            result = await work()
        except MontyCrashedError as error:
            self._cpu_seconds += clock.stop()
            if clock.expired or (error.timed_out and self._spent):
                raise FailureError(Reason.TIME_BUDGET, TOO_LONG) from None
            if error.timed_out:
                raise InterpreterStarved(str(error)) from None
            raise InterpreterDied(str(error)) from None
        finally:
            self._cpu_seconds += clock.stop()
            self._wall_seconds += time.perf_counter() - began
        if self._patience > 1 and self.own_seconds > allowed:
            raise FailureError(Reason.TIME_BUDGET, TOO_LONG)
        return result

    def _event(self, snapshot: AsyncSnapshot) -> Event | None:
        """Return the event of a snapshot; None if the program asks for a name that does not
        exist."""
        match snapshot:
            case MontyComplete():
                return Finished(crossed(lambda: snapshot.output, Reason.NO_ANSWER))
            case AsyncFutureSnapshot():
                return WaitingCalls(tuple(sorted(snapshot.pending_call_ids)))
            case AsyncFunctionSnapshot() if (
                not snapshot.is_os_function and snapshot.function_name in self._functions
            ):
                args, kwargs = crossed(
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
        self._printing_seconds += PRINT_SECONDS + PRINT_CHAR_SECONDS * len(text)
        if sum(map(len, self._printed)) < PRINTED_CHARS:
            self._printed.append(text[:PRINTED_CHARS])
