"""Requests to the sandbox and its reports: limits, results, isolation, and the verdict on an
exit."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from flowright.sandbox.programs import IOTest, same_output
from flowright.sandbox.worker import Exit, WorkerLost

Status = Literal["ok", "error", "timeout", "memory", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one execution, enforced by the kernel.

    ``cpu_seconds`` is the limit that decides: the program's own CPU time, which hardly grows on a
    busy machine. ``wall_seconds`` is the backstop, about ten times as long: a program that slept
    has timed out, one that waited for a CPU goes on. ``memory_bytes`` is address space beyond that
    of the bare interpreter. ``processes`` counts threads: a program can never start a process.
    ``file_bytes`` bounds each file and, by the sandbox's own limits, all of a program's temporary
    files together; ``output_bytes`` bounds what is kept of stdout and of stderr (each).
    """

    cpu_seconds: float = 5.0
    wall_seconds: float = 50.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 256 << 10
    processes: int = 32
    file_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class RunResult:
    """One program's run. ``stdout`` is cut after ``output_bytes``, ``stderr`` keeps its tail.

    ``ok``: ended with exit status 0. ``error``: an exception or another exit status. ``timeout``:
    over ``cpu_seconds``, or asleep until ``wall_seconds``. ``memory``: MemoryError. ``killed``:
    died of a signal that it brought upon itself (a segmentation fault, say). ``seconds`` is wall
    time, ``cpu_seconds`` the program's own.
    """

    status: Status
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test: its source, whether it passed, and why not.

    ``source`` and ``message`` may hold expected values: for the judge and the logs, never for the
    policy (unless the tests were public).
    """

    __test__ = False  # not a pytest class

    source: str
    passed: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class TestReport:
    """A solution against its tests, in the tests' order; ``passed`` means every one of them.

    ``status`` is how the solution's process fared: ``ok`` if it served the tests until the end
    (they may still have failed), ``error`` if it did not load or ended early, else as in
    :class:`RunResult`.
    """

    __test__ = False  # not a pytest class

    passed: bool
    results: tuple[TestResult, ...]
    status: Status
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def count(self) -> int:
        """Number of passed tests."""
        return sum(result.passed for result in self.results)


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation in force, as the start-up self-test found it; ``str()`` is for people.

    ``escapes`` are things that an isolated process could do and must not, ``hindrances`` things
    that it could not do and should. ``landlock`` is the kernel's version of it, 0 for none.
    ``namespaces`` means own user or root-made mount, pid, network, ipc and host name namespaces,
    and with them an own file system and temporary files. ``sealed``: there is neither, and system
    calls that take a path are refused altogether. ``private_uid``: children run under a user id of
    their own.
    """

    seccomp: bool
    landlock: int
    namespaces: bool
    private_uid: bool
    sealed: bool = False
    escapes: tuple[str, ...] = ()
    hindrances: tuple[str, ...] = ()

    @property
    def sufficient(self) -> bool:
        """The required level: the system calls and the files are both restricted, and it held."""
        disk = self.landlock > 0 or self.namespaces or self.sealed
        restricted = self.seccomp and disk
        return restricted and not self.escapes and not self.hindrances

    def __str__(self) -> str:
        parts = [
            "seccomp" if self.seccomp else "no seccomp",
            f"Landlock {self.landlock}" if self.landlock else "no Landlock",
            "namespaces" if self.namespaces else "no namespaces (so no temporary files)",
            "disk sealed (no import beyond what is loaded)" if self.sealed else "",
            "own user id" if self.private_uid else "",
            f"ESCAPES: {', '.join(self.escapes)}" if self.escapes else "",
            f"broken: {', '.join(self.hindrances)}" if self.hindrances else "",
        ]
        text = ", ".join(part for part in parts if part)
        return text if self.sufficient else f"WEAKER THAN REQUIRED: {text}"


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The isolation of a sandbox, how many executions were tried again, and how many got more time
    because the machine was busy."""

    isolation: Isolation
    retried: int = 0
    prolonged: int = 0

    def metrics(self) -> dict[str, float]:
        return {
            "sandbox/sufficient": float(self.isolation.sufficient),
            "sandbox/landlock": float(self.isolation.landlock),
            "sandbox/namespaces": float(self.isolation.namespaces),
            "sandbox/retried": float(self.retried),
            "sandbox/prolonged": float(self.prolonged),
        }


_MEMORY_EXIT = 86  # see inside/solution.py
_SIGKILL = -9
_SPENT = 0.9  # of the CPU limit: the timer's clock and the final account differ a little
_GREEDY = 4  # a quarter of the memory limit


def status_of(end: Exit, limits: Limits, again: bool) -> Status:
    """Return the status that an exit means. Raises WorkerLost when it means nothing about the
    program.

    A program cannot send itself SIGKILL (see inside/seccomp.py): without an order of ours it comes
    from the CPU timer or from a machine that ran out of memory. The latter is the program's doing
    if it held a good part of its limit, ``again`` and with nothing else beside it: otherwise a
    large program on a small machine would never be graded.
    """
    if end.code == _SIGKILL:
        if end.ordered:
            spent = end.cpu_seconds >= limits.cpu_seconds - 0.02
            return "timeout" if end.overtime or spent else "ok"
        if end.cpu_seconds >= _SPENT * limits.cpu_seconds:
            return "timeout"
        if again and end.memory_bytes >= limits.memory_bytes // _GREEDY:
            return "memory"
        raise WorkerLost("a sandboxed process was killed by the machine (out of memory?)")
    if end.code < 0:
        return "killed"
    if end.code == 0:
        return "ok"
    return "memory" if end.code == _MEMORY_EXIT else "error"


def report_of(
    tests: tuple[str, ...],
    lines: bytes,
    status: Status,
    suite_status: Status,
    seconds: float,
    cpu_seconds: float,
) -> TestReport:
    """The tests' outcomes as their process wrote them; what it did not write did not pass."""
    written = _read_verdict(lines)
    complete = len(written) == len(tests) + 1 and suite_status == "ok"
    broken = str(written.pop()[1]) if complete else ""
    if status == "ok" and (broken or not complete):
        status = "error" if complete else suite_status
    reason = why(status)
    results = [
        TestResult(source, passed is True, printable(str(message)) + reason * (message == broken))
        for source, (passed, message) in zip(tests, written, strict=False)
    ]
    results += [TestResult(source, False, f"not run{reason}") for source in tests[len(results) :]]
    passed = complete and not broken and all(result.passed for result in results)
    return TestReport(passed, tuple(results), status, seconds, cpu_seconds)


def program_result(source: str, test: IOTest, result: RunResult) -> TestResult:
    """The outcome of one run of a program by its test."""
    if result.status != "ok":
        message = f"{result.status}{why(result.status)}: {result.stderr.strip()[-2000:]}"
        return TestResult(source, False, message.strip(": "))
    if same_output(test.output, result.stdout):
        return TestResult(source, True)
    shown = [text[:1000] + "..." * (len(text) > 1000) for text in (result.stdout, test.output)]
    return TestResult(source, False, f"printed {shown[0]!r}, expected {shown[1]!r}")


def joined(tests: tuple[str, ...], reports: list[TestReport]) -> TestReport:
    """One report in the order of ``tests`` of several on parts of them."""
    if len(reports) == 1 and len(reports[0].results) == len(tests):
        return reports[0]
    by_source = {result.source: result for report in reports for result in report.results}
    failed: list[Status] = [report.status for report in reports if report.status != "ok"]
    return TestReport(
        all(report.passed for report in reports),
        tuple(by_source[source] for source in tests),
        failed[0] if failed else "ok",
        sum(report.seconds for report in reports),
        sum(report.cpu_seconds for report in reports),
    )


def _read_verdict(lines: bytes) -> list[Any]:
    """The pairs that the tests' process wrote, up to the first that is cut short."""
    written = []
    for line in lines.splitlines():
        try:
            first, second = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        written.append((first, second))
    return written


_WHY: dict[Status, str] = {
    "timeout": "over the time limit",
    "memory": "over the memory limit",
    "killed": "crashed",
}


def why(status: Status) -> str:
    """Return the limit that a status is about, in brackets behind a space; else nothing."""
    return f" ({_WHY[status]})" if status in _WHY else ""


_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def printable(text: str | bytes) -> str:
    """Text that any terminal and any encoder survives: no lone surrogate, no control character
    but newline and tab (each is shown as its escape)."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace").replace("\r\n", "\n")
    return text.encode("utf-8", "backslashreplace").decode().translate(_CONTROL)
