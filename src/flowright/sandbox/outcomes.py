"""What the ends of sandboxed processes mean: whose fault, which status, which tests passed.

Pure functions; the processes are the worker's affair, asking again the pool's.
"""

import json
from typing import Any

from flowright.sandbox.reports import Limits, Status, TestReport, TestResult
from flowright.sandbox.worker import Exit, WorkerLost

_MEMORY_EXIT = 86  # see inside/solution.py
_SIGKILL = -9
_SPENT = 0.9  # of the CPU limit: the timer's clock and the final account differ a little
_GREEDY = 4  # a quarter of the memory limit


def status_of(end: Exit, limits: Limits, again: bool) -> Status:
    """What an end says of the program. Raises WorkerLost when it says nothing of it.

    A program cannot send itself SIGKILL (see inside/seccomp.py): without an order of ours it comes
    from the CPU timer or from a machine that ran out of memory. That is the program's doing if it
    held a good part of what it may have, ``again`` and with nothing else beside it: otherwise
    whoever takes a lot on a small machine would never be graded.
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
    why = f" ({_WHY[status]})" if status in _WHY else ""
    results = [
        TestResult(source, passed is True, printable(str(message)) + why * (message == broken))
        for source, (passed, message) in zip(tests, written, strict=False)
    ]
    results += [TestResult(source, False, f"not run{why}") for source in tests[len(results) :]]
    passed = complete and not broken and all(result.passed for result in results)
    return TestReport(passed, tuple(results), status, seconds, cpu_seconds)


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
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def printable(text: str | bytes) -> str:
    """Text that any terminal and any encoder survives: no lone surrogate, no control character
    but newline and tab (each is shown as its escape)."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace").replace("\r\n", "\n")
    return text.encode("utf-8", "backslashreplace").decode().translate(_CONTROL)
