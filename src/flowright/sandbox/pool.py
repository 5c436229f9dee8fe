"""The sandbox as its users see it: run a program, check a solution. (Interface first; body coming.)"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from flowright.sandbox.reports import Limits, RunResult, TestReport


class Sandbox:
    """A pool of ``workers`` isolated interpreters; at most that many executions at a time.

    An async context manager, for one event loop, which it never blocks::

        async with Sandbox() as sandbox:
            result = await sandbox.run("print(6 * 7)")
            report = await sandbox.check(solution, "", tests, "add")

    Entering raises UserError when the kernel offers less isolation than required and
    ``allow_weaker`` is false.
    """

    def __init__(
        self, limits: Limits | None = None, workers: int | None = None, allow_weaker: bool = False
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def run(self, source: str, stdin: str = "", limits: Limits | None = None) -> RunResult:
        """Run a program as ``__main__`` and report how it went.

        Raises FailureError(SANDBOX_LOST) when the sandbox itself failed, twice.
        """
        ...

    async def check(
        self,
        solution: str,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        limits: Limits | None = None,
    ) -> TestReport:
        """Grade a solution by tests that it cannot see, in order, after ``setup``.

        ``tests`` are Python source that uses the solution's names (``assert add(1, 2) == 3``, or a
        ``def check(candidate)`` with its call); a test that raises fails. The names that setup and
        tests use and do not define, and ``entry_point``, are the solution's. Raises ValueError when
        there is no test and FailureError(SANDBOX_LOST) when the sandbox itself failed, twice.
        """
        ...
