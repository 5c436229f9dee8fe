"""What running a workflow costs beyond its calls of the model, against two ways without a sandbox.

The model is a stand-in that replies at once, or after ``--seconds`` in the second part. The
workflow is a class with a gather of five calls. Rivals: ``exec`` in this process (what
AFlow does; a ``while True`` in it would hang us) and a Python process per workflow, which answers
its operators itself and so has no traffic with the host (less than it would need).

    python benchmarks/workflows.py [--runs 200] [--many 1000] [--workers 8] [--seconds 1]
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import uvloop

from flowright.config.workflow import WorkflowSection
from flowright.data.task import Problem
from flowright.llm.chat import ChatReply, ChatRequest, Usage
from flowright.sandbox import RunResult, TestReport
from flowright.workflows.executor import Executor
from flowright.workflows.interpreter import Interpreter
from flowright.workflows.runtime import Called, RunningProgram

PROGRAM = """\
import asyncio
from collections import Counter
class Workflow:
    def __init__(self):
        self.n = 5

    async def __call__(self, problem):
        answers = await asyncio.gather(*[answer(problem) for _ in range(self.n)])
        return Counter(answers).most_common(1)[0][0]
"""
TASK = Problem("t", "math", "benchmark", "What is six times seven?", "42")
IN_PROCESS = """
import asyncio
async def answer(problem): return "42"
"""


class InstantModel:
    """A model that replies after ``seconds`` with 42."""

    name = "instant"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return ChatReply("Answer: 42", "stop", Usage(1, 100, 10), self.name, self.seconds)


class NoSandbox:
    """The workflow of this benchmark runs no code of the model's."""

    async def run(self, source: str, *, wall_seconds: float | None = None) -> RunResult:
        raise NotImplementedError

    async def check(
        self,
        solution: str,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        *,
        wall_seconds: float | None = None,
    ) -> TestReport:
        raise NotImplementedError


async def by_exec(seconds: float) -> str:
    """The program in this process, its operators plain coroutines."""

    async def answer(problem: str) -> str:
        if seconds:
            await asyncio.sleep(seconds)
        return "42"

    space: dict = {"answer": answer}
    exec(compile(PROGRAM, "workflow", "exec"), space)
    return await space["Workflow"]()(TASK.problem)


async def by_process() -> None:
    """A Python process per workflow."""
    start = f"\nprint(asyncio.run(Workflow()({TASK.problem!r})))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", IN_PROCESS + PROGRAM + start, stdout=subprocess.DEVNULL
    )
    if await process.wait() != 0:
        raise RuntimeError("the process failed")


async def milliseconds(work: Callable[[int], Awaitable[object]], runs: int) -> list[float]:
    """Time of each of ``runs`` calls, one after the other, after three that do not count."""
    times = []
    for number in range(-3, runs):
        started = time.perf_counter()
        await work(number)
        if number >= 0:
            times.append(1e3 * (time.perf_counter() - started))
    return times


class LoopGaps:
    """How long the event loop was not free, as seen by a task that sleeps a millisecond."""

    def __init__(self) -> None:
        self.gaps: list[float] = []

    async def __aenter__(self) -> "LoopGaps":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            self.gaps.append(1e3 * (time.perf_counter() - started) - 1)

    def quantile(self, share: float) -> float:
        return sorted(self.gaps)[int(share * (len(self.gaps) - 1))]


async def parked_size(text: str) -> int:
    """Bytes that the program's state takes while it waits for its five calls."""

    def answer() -> None: ...

    async with Interpreter(WorkflowSection(workers=1)) as interpreter:
        program = RunningProgram(
            interpreter, text, {"answer": answer, "problem": TASK.problem}, "size"
        )
        event = await program.start()
        while isinstance(event, Called):
            event = await program.defer()
        await program.park()
        return program.parked_bytes


def show(name: str, times: Sequence[float], base: float) -> None:
    median = statistics.median(times)
    p99 = sorted(times)[int(0.99 * (len(times) - 1))]
    print(f"{name:<44}{median:9.3f} ms {p99:9.3f} ms {median / base:8.3g} x")


async def one_at_a_time(runs: int) -> None:
    limits = WorkflowSection(workers=1)
    async with Executor(InstantModel(0.0), NoSandbox(), limits) as executor:
        workflow = await executor.validate(PROGRAM)

        async def execute(number: int) -> None:
            execution = await executor.execute(workflow, TASK, str(number))
            if execution.answer != "42":
                raise RuntimeError(str(execution.failure))

        async def validate_new(number: int) -> None:
            await executor.validate(f"{PROGRAM}# {number}")

        async def validate_known(number: int) -> None:
            await executor.validate(PROGRAM)

        rows = [
            ("execute, sandboxed", await milliseconds(execute, runs)),
            ("validate a new program", await milliseconds(validate_new, runs)),
            ("validate a known program", await milliseconds(validate_known, runs)),
        ]
        started = time.perf_counter()
        await asyncio.gather(*(execute(number) for number in range(64)))
        together = 1e3 * (time.perf_counter() - started) / 64
    rows.append(("exec in process", await milliseconds(lambda _: by_exec(0.0), runs)))
    rows.append(("a process each", await milliseconds(lambda _: by_process(), min(runs, 30))))
    base = statistics.median(rows[0][1])
    print(f"{'one in flight, replies at once':<44}{'median':>12} {'p99':>12} {'to ours':>10}")
    for name, times in rows:
        show(name, times, base)
    print(f"{'execute, 64 in flight, per workflow':<44}{together:9.3f} ms\n")


async def many_at_once(many: int, workers: int, seconds: float) -> None:
    limits = WorkflowSection(workers=workers, in_flight=many)
    async with Executor(InstantModel(seconds), NoSandbox(), limits) as executor:
        workflow = await executor.validate(PROGRAM)
        await executor.execute(workflow, TASK, "warm-up")
        async with LoopGaps() as gaps:
            started = time.perf_counter()
            done = await asyncio.gather(
                *(executor.execute(workflow, TASK, str(i)) for i in range(many))
            )
            ours = time.perf_counter() - started
        if any(execution.answer != "42" for execution in done):
            raise RuntimeError("an execution failed")
    started = time.perf_counter()
    await asyncio.gather(*(by_exec(seconds) for _ in range(many)))
    bare = time.perf_counter() - started
    print(f"{many} workflows with 5 calls of {seconds:g} s each at once")
    print(f"{f'sandboxed, {workers} workers':<44}{ours:9.3f} s")
    print(f"{'exec in process':<44}{bare:9.3f} s  ours takes {ours / bare:.2f} x")
    print(
        f"{'state of a parked workflow':<44}{await parked_size(workflow.program) / 1024:9.1f} KiB"
    )
    print(f"{'loop gap, sandboxed, p99 / longest':<44}{gaps.quantile(0.99):9.3f} ms"
          f" {gaps.quantile(1.0):9.3f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    uvloop.run(one_at_a_time(options.runs))
    uvloop.run(many_at_once(options.many, options.workers, options.seconds))


if __name__ == "__main__":
    main()
