"""Stand-ins for the large model and the sandbox in the tests of workflows."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from flowright.data.task import Kind, Problem
from flowright.llm.chat import ChatReply, ChatRequest, Usage
from flowright.sandbox import RunResult, TestReport, TestResult

Reply = str | ChatReply | Exception


def task(kind: Kind = "math", **fields: object) -> Problem:
    values: dict = {
        "id": "t1",
        "kind": kind,
        "source": "tests",
        "question": "What is six times seven?",
        "reference": "42",
    }
    if kind == "code":
        values |= {
            "question": "Write add(a, b), the sum.",
            "reference": "def add(a, b):\n    return a + b",
            "entry_point": "add",
            "public_tests": ("assert add(1, 2) == 3",),
            "hidden_tests": ("assert add(5, 7) == 12",),
        }
    return Problem(**{**values, **fields})


@dataclass
class ScriptedModel:
    """Replies by ``script``, a function of the prompt, or with one text for ever. ``delay`` is in
    seconds, or a function of how many requests came before; ``served`` is the time that a reply
    claims to have taken."""

    script: Callable[[str], Reply] | str = "Answer: 42"
    delay: float | Callable[[int], float] = 0.0
    served: float = 0.0
    name: str = "scripted"
    requests: list[ChatRequest] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    cancelled: int = 0

    @property
    def prompts(self) -> list[str]:
        return [request.messages[-1].content for request in self.requests]

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            delay = self.delay if isinstance(self.delay, float) else self.delay(len(self.requests))
            if delay:
                await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        text = request.messages[-1].content
        reply = self.script if isinstance(self.script, str) else self.script(text)
        if isinstance(reply, Exception):
            raise reply
        return replace(said(reply) if isinstance(reply, str) else reply, seconds=self.served)


def said(text: str, finish_reason: str = "stop", tokens: int = 10) -> ChatReply:
    return ChatReply(text, finish_reason, Usage(1, 100, tokens), "scripted", 0.0)


@dataclass
class ScriptedSandbox:
    """Runs nothing: programs and solutions get the next outcome of a list, the last for ever."""

    runs: Sequence[RunResult] = ()
    reports: Sequence[TestReport] = ()
    programs: list[str] = field(default_factory=list)
    checked: list[tuple[str, str, tuple[str, ...], str | None]] = field(default_factory=list)
    delay: float = 0.0
    walls: list[float | None] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def _take_time(self, wall_seconds: float | None) -> None:
        self.walls.append(wall_seconds)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.in_flight -= 1

    async def run(self, source: str, *, wall_seconds: float | None = None) -> RunResult:
        await self._take_time(wall_seconds)
        self.programs.append(source)
        return self.runs[min(len(self.programs), len(self.runs)) - 1]

    async def check(
        self,
        solution: str,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        *,
        wall_seconds: float | None = None,
        reference: str = "",
    ) -> TestReport:
        await self._take_time(wall_seconds)
        self.checked.append((solution, setup, tuple(tests), entry_point))
        return self.reports[min(len(self.checked), len(self.reports)) - 1]


def printed(text: str) -> RunResult:
    return RunResult("ok", text, "", 0.01, 0.01)


def raised(text: str) -> RunResult:
    return RunResult("error", "", text, 0.01, 0.01)


PASSED = TestReport(True, (TestResult("assert add(1, 2) == 3", True),), "ok")
FAILED = TestReport(
    False,
    (
        TestResult("assert add(1, 2) == 3", True),
        TestResult("assert add(2, 2) == 4", False, "AssertionError: got 5"),
    ),
    "ok",
)
