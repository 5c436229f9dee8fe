"""The sandbox as its users see it: run a program, check a solution.

Keeps the workers, hands each execution its files, tries once more what was lost.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, Self, TypeVar

from flowright.core.batch_calls import Memo
from flowright.core.errors import FailureError, Reason, UserError
from flowright.sandbox.control import Control
from flowright.sandbox.grants import Kind, packages_for, zygote_config
from flowright.sandbox.names import suite_names
from flowright.sandbox.programs import IOTest, as_python, parse_io_test
from flowright.sandbox.reports import (
    Isolation,
    Limits,
    RunResult,
    SandboxStatus,
    Status,
    TestReport,
    TestResult,
    joined,
    printable,
    program_result,
    report_of,
    status_of,
    why,
)
from flowright.sandbox.worker import Exit, Job, MachineBusy, Worker, WorkerLost


class Turns:
    """At most ``width`` turns at once; none beside an exclusive one, and no new ones while one is
    wanted. ``taken`` are under way. For one event loop."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.taken = 0
        self._quiet = 0
        self._alone = False
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    async def take(self, alone: bool = False) -> None:
        """Wait for a turn; ``alone``: one without others. Give it back by :meth:`end`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, alone)
        self._waiting.append(entry)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end()
            else:
                with suppress(ValueError):
                    self._waiting.remove(entry)
                self._admit()
            raise

    def end(self) -> None:
        self.taken -= 1
        self._alone = False
        self._admit()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No new turn begins; those under way go on."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1
            self._admit()

    def _admit(self) -> None:
        while self._waiting and not (self._quiet or self._alone):
            turn, alone = self._waiting[0]
            if self.taken >= (1 if alone else self._width):
                return
            self._waiting.popleft()
            if not turn.cancelled():
                self.taken += 1
                self._alone = alone
                turn.set_result(None)


Layer = Literal["landlock", "namespaces", "sealed"]
Report = TypeVar("Report")
_CHECKS_KEPT = 4096
_PROGRAM_LIMITS = 10  # CPU time of all tests of a program, in limits of one


class Sandbox:
    """A pool of ``workers`` isolated interpreters; at most that many executions at a time.

    An async context manager, for one event loop, which it never blocks::

        async with Sandbox() as sandbox:
            result = await sandbox.run("print(6 * 7)")
            report = await sandbox.check(solution, "", tests, "add")

    ``workers`` defaults to the number of CPUs. Entering raises UserError when the kernel offers
    less isolation than required and ``allow_weaker`` is false. ``layers`` are used where
    the kernel has them, above seccomp and resource limits ("sealed", no disk at all, where it has
    neither of the others); fewer is for tests and comparisons. ``patience_seconds`` is how long an
    execution that gets no CPU on a busy machine may go on beyond its wall time.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        allow_weaker: bool = False,
        layers: Collection[Layer] = ("landlock", "namespaces", "sealed"),
        patience_seconds: float = 600.0,
    ) -> None:
        self.limits = limits or Limits()
        self.retried = 0  # executions that were lost and tried again
        self.prolonged = 0  # executions that had no CPU and got more time
        self._workers = workers or len(os.sched_getaffinity(0))
        self._allow_weaker = allow_weaker
        self._layers = tuple(layers)
        self._idle: dict[Kind, list[Worker]] = {}
        self._all: set[Worker] = set()
        self._patience = patience_seconds
        self._turns = Turns(self._workers)
        self._control = Control()
        self._isolation: Isolation | None = None
        self._started = 0
        self._closed = False
        self._closings: set[asyncio.Future[None]] = set()
        self._checked: Memo[TestReport] = Memo(_CHECKS_KEPT)

    @property
    def isolation(self) -> Isolation:
        """The isolation in force; known once the sandbox was entered."""
        if self._isolation is None:
            raise RuntimeError("enter the sandbox first: async with Sandbox() as sandbox")
        return self._isolation

    @property
    def busy(self) -> int:
        """Executions under way; at most as many as there are workers."""
        return self._turns.taken

    @property
    def status(self) -> SandboxStatus:
        return SandboxStatus(self.isolation, self.retried, self.prolonged)

    async def __aenter__(self) -> Self:
        if sys.platform != "linux":
            raise UserError("sandbox: untrusted code needs Linux (5.13 or later)")
        self._closed = False
        try:
            first = await self._start(())
            self._isolation = _isolation(first)
            if not (self._isolation.sufficient or self._allow_weaker):
                raise UserError(_refusal(self._isolation))
            more = [self._start(()) for _ in range(self._workers - 1)]
            self._idle[()] = [first, *await asyncio.gather(*more)]
        except BaseException as error:
            await self.__aexit__(None, None, None)
            if isinstance(error, WorkerLost):
                raise UserError(f"sandbox: {error}; see docs/workflows.md") from error
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closed = True
        self._idle.clear()
        await asyncio.gather(*map(self._close, list(self._all)))
        await asyncio.gather(*self._closings)

    async def run(
        self,
        source: str,
        stdin: str = "",
        limits: Limits | None = None,
        wall_seconds: float | None = None,
    ) -> RunResult:
        """Run a program as ``__main__`` and report how it went. ``wall_seconds`` shortens the
        limits'.

        Raises FailureError(SANDBOX_LOST) when the sandbox itself failed, twice, or when a busy
        machine had no CPU for the program.
        """
        limits = self._limits(limits, wall_seconds)
        return await self._twice(lambda again: self._run(source, stdin, limits, again))

    async def check(
        self,
        solution: str,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        limits: Limits | None = None,
        wall_seconds: float | None = None,
        reference: str = "",
    ) -> TestReport:
        """Grade a solution by tests that it cannot see, in order, after ``setup``.

        ``tests`` are Python source that uses the solution's names (``assert add(1, 2) == 3``, or a
        ``def check(candidate)`` with its call); a test that raises fails. The names that setup and
        tests use and do not define are the ``reference``'s if it has them, else the solution's;
        ``entry_point`` is the solution's. Or they are tests of
        input and output (:class:`~flowright.sandbox.programs.IOTest`): the solution is run as a
        program once for each, until one exceeds a limit; all together may use ten times the CPU
        time of one. ``wall_seconds`` shortens the limits'. Raises ValueError when there is no test
        and FailureError as :meth:`run` does.

        The same solution against the same tests is run once and gets the same report again: the
        attempts of a group often agree to the letter.
        """
        if not tests:
            raise ValueError("a solution cannot be checked without tests")
        room = self._limits(limits, wall_seconds)
        asked = (solution, setup, tuple(tests), entry_point, reference, room)
        key = blake2b(repr(asked).encode("utf-8", "surrogatepass")).digest()
        return await self._checked.get(key, lambda: self._check_all(*asked))

    def _limits(self, limits: Limits | None, wall_seconds: float | None) -> Limits:
        limits = limits or self.limits
        if wall_seconds is None or wall_seconds >= limits.wall_seconds:
            return limits
        return replace(limits, wall_seconds=wall_seconds)

    async def _twice(self, work: Callable[[bool], Awaitable[Report]]) -> Report:
        """Try a lost execution again with nothing beside it."""
        try:
            return await work(False)
        except MachineBusy as error:
            raise FailureError(Reason.SANDBOX_LOST, str(error)) from error
        except (WorkerLost, OSError):
            self.retried += 1
        try:
            return await work(True)
        except (WorkerLost, OSError) as error:
            raise FailureError(Reason.SANDBOX_LOST, str(error)) from error

    async def _outcome(
        self, worker: Worker, jobs: Sequence[Job], limits: Limits
    ) -> tuple[list[Exit], float]:
        """Return how the children ended, the one that decides first, and after how many seconds.

        On a busy machine the wall time of a child without CPU is counted a second time, by the CPU
        that the machine offers, and no other execution begins.
        """

        async def longer(done: asyncio.Future[Exit]) -> None:
            self.prolonged += 1
            with self._turns.quiet():
                offered = await self._control.offers(limits.wall_seconds, self._patience, done)
            if offered is not None:
                raise MachineBusy(
                    f"the machine is too busy: it had {offered:.1f} s of CPU to give within "
                    f"{self._patience:.0f} s; lower its load or raise sandbox.patience_seconds"
                )

        begin = time.monotonic()
        ends = await worker.outcome(jobs, limits.wall_seconds, longer)
        return ends, time.monotonic() - begin

    async def _run(self, source: str, stdin: str, limits: Limits, again: bool) -> RunResult:
        job = {"role": "run", "source": source, "limits": asdict(limits)}
        with contextlib.ExitStack() as files:
            texts = [json.dumps(job).encode(), stdin.encode("utf-8", "surrogatepass"), b"", b""]
            descriptors = [_memory_file(text, files) for text in texts]
            async with self._worker(packages_for(source), again) as worker:
                (end,), seconds = await self._outcome(worker, worker.launch([descriptors]), limits)
            status = status_of(end, limits, again)
            stdout = os.pread(descriptors[2], limits.output_bytes, 0)
            size = os.fstat(descriptors[3]).st_size
            stderr = os.pread(descriptors[3], size, max(0, size - limits.output_bytes))
        return RunResult(status, printable(stdout), printable(stderr), seconds, end.cpu_seconds)

    async def _check_all(
        self,
        solution: str,
        setup: str,
        tests: tuple[str, ...],
        entry_point: str | None,
        reference: str,
        limits: Limits,
    ) -> TestReport:
        """Check by tests of any form; those of programs come last."""
        parsed = {source: parse_io_test(source) for source in tests}
        programs = {s: test for s, test in parsed.items() if test and test.is_program}
        others = tuple(source for source in tests if source not in programs)
        reports = []
        if others:
            asked = (solution, setup, others, entry_point, reference, limits)
            reports.append(await self._twice(lambda again: self._check(*asked, again)))
        if programs:
            reports.append(await self._check_program(solution, programs, limits))
        return joined(tests, reports)

    async def _check_program(
        self, solution: str, tests: Mapping[str, IOTest], limits: Limits
    ) -> TestReport:
        """Run the solution as a program with each test's input and compare its output here."""
        results: list[TestResult] = []
        seconds = used = 0.0
        status: Status = "ok"
        for source, test in tests.items():
            left = _PROGRAM_LIMITS * limits.cpu_seconds - used
            if status not in ("ok", "error") or left <= 0:
                status = "timeout" if status in ("ok", "error") else status
                results.append(TestResult(source, False, f"not run{why(status)}"))
                continue
            room = replace(
                limits,
                cpu_seconds=min(limits.cpu_seconds, left),
                wall_seconds=max(limits.wall_seconds - seconds, limits.cpu_seconds),
                output_bytes=max(limits.output_bytes, 2 * len(test.output.encode())),
            )
            given = str(test.input)
            run = partial(self._run, solution, given, room)
            result = await self._twice(run)
            seconds, used = seconds + result.seconds, used + result.cpu_seconds
            if result.status != "ok" and status == "ok":
                status = result.status
            results.append(program_result(source, test, result))
        passed = all(result.passed for result in results)
        return TestReport(passed, tuple(results), status, seconds, used)

    async def _check(
        self,
        solution: str,
        setup: str,
        tests: tuple[str, ...],
        entry_point: str | None,
        reference: str,
        limits: Limits,
        again: bool,
    ) -> TestReport:
        sources, tests = tests, tuple(as_python(source, entry_point) for source in tests)
        names = suite_names(setup, tests, entry_point, reference)
        # The tests spend time on the solution's data, too: twice its limit is theirs.
        own = replace(limits, cpu_seconds=2 * limits.cpu_seconds)
        asked = {**asdict(names), "names": names.solution, "entry_point": entry_point}
        asked["reference"] = reference
        suite = {"role": "suite", "setup": setup, "tests": tests, "limits": asdict(own), **asked}
        served = {
            "role": "solution",
            "source": solution,
            "names": names.solution,
            "shared": names.shared,
            "method": entry_point if tests != sources else None,
            "limits": asdict(limits),
        }
        with contextlib.ExitStack() as files:
            verdict = _memory_file(b"", files)
            orders = [_memory_file(json.dumps(job).encode(), files) for job in (served, suite)]
            kind = packages_for("\n".join([solution, setup, reference, *tests]))
            async with self._worker(kind, again) as worker:
                with contextlib.ExitStack() as channel:  # the children's alone once they are forked
                    ends = socket.socketpair()
                    one, other = (channel.enter_context(end).fileno() for end in ends)
                    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                    channel.callback(os.close, null)
                    quiet = [null, null, null]
                    # The tests' child first: nothing hostile runs yet that could be in its way.
                    children = [[orders[1], *quiet, other, verdict], [orders[0], *quiet, one]]
                    jobs = worker.launch(children)
                (tested, solved), seconds = await self._outcome(worker, jobs, limits)
            lines = os.pread(verdict, os.fstat(verdict).st_size, 0)
        status, suite_status = status_of(solved, limits, again), status_of(tested, own, again)
        return report_of(sources, lines, status, suite_status, seconds, solved.cpu_seconds)

    @contextlib.asynccontextmanager
    async def _worker(self, kind: Kind, alone: bool) -> AsyncIterator[Worker]:
        """An idle worker of that kind, for one execution, ``alone`` or with others beside it; it is
        free again, or replaced, once the last child has ended, which is later when the caller was
        cancelled."""
        await self._turns.take(alone)
        try:
            idle = self._idle.setdefault(kind, [])
            worker = idle.pop() if idle else await self._start(kind)
        except BaseException:
            self._turns.end()
            raise
        try:
            yield worker
        finally:
            worker.when_idle(lambda: self._rest(worker, idle))

    def _rest(self, worker: Worker, idle: list[Worker]) -> None:
        self._turns.end()
        if worker.dead:
            closing = asyncio.ensure_future(self._close(worker))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
        else:
            idle.append(worker)

    async def _start(self, kind: Kind) -> Worker:
        if self._closed:
            raise WorkerLost("the sandbox was closed")
        worker = Worker()
        self._all.add(worker)
        self._started += 1
        try:
            await worker.start(
                zygote_config(kind, self._layers, self.limits.file_bytes, self._started)
            )
        except WorkerLost:
            self._all.discard(worker)
            raise
        return worker

    async def _close(self, worker: Worker) -> None:
        self._all.discard(worker)
        await worker.close()


def _isolation(worker: Worker) -> Isolation:
    found: dict[str, Any] = {n: tuple(worker.report[n]) for n in ("escapes", "hindrances")}
    return Isolation(**worker.report | found)


def _refusal(isolation: Isolation) -> str:
    return (
        f"sandbox: this machine cannot isolate untrusted code ({isolation}); needed is seccomp "
        "(see docs/workflows.md); run on another kernel or container runtime, or set "
        "sandbox.allow_weaker: true for code that you trust"
    )


def _memory_file(content: bytes, files: contextlib.ExitStack) -> int:
    """A file that lies nowhere on the disk, with ``content``, to be read from its beginning."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    files.callback(os.close, descriptor)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
