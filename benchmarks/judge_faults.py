"""What the faults of its server cost the judge: verdicts lost, calls, time, and no false verdict.

First the embedded server (simulated) injects one fault at a time; then its process is killed and
another one takes its port some seconds later. Its judge is set to make no mistake, so each verdict
that disagrees with the truth would be a failure turned into a score; the exit status is 1 if there
is one. A real judge's mistakes, and the kinds of fault beside these, are not measured here.

    python benchmarks/judge_faults.py [--queries 1500] [--in-flight 32] [--away 20]
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from flowright.config.judge import JudgeSection
from flowright.config.llm import FaultSection, LlmSection, ModelEntry, SimulatedSection
from flowright.data.task import Problem, write_tasks
from flowright.judging.build import build_judge
from flowright.judging.llm_judge import LlmJudge
from flowright.judging.rules import RuleJudge
from flowright.judging.verdict import Judge, JudgeQuery, Verdict
from flowright.judging.wrappers import CircuitBreaker, Gated, WithRuleFallback
from flowright.llm.chat import ChatModel, ChatReply, ChatRequest
from flowright.llm.client import ChatClient
from flowright.simulation.draws import unit
from flowright.simulation.process import SimulatedServer
from flowright.simulation.protocol import MODEL

SERVER_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "serve_simulated_llm.py"
FAULTS: dict[str, FaultSection] = {
    "none": FaultSection(),
    "13 % empty": FaultSection(empty=0.13),
    "10 % HTTP 500": FaultSection(error_500=0.10),
    "5 % hang": FaultSection(hang=0.05),
    "20 % malformed": FaultSection(malformed=0.20),
    "20 % truncated": FaultSection(truncate=0.20),
    "10 % of the queries filtered": FaultSection(),
    "a model that the server does not have": FaultSection(),
    "none, again": FaultSection(),
}
FILTERED = 0.10
WARM_UP = 4.0  # seconds of queries before the server is killed
AFTERWARDS = 15.0  # and after it is back


@dataclass(frozen=True, slots=True)
class Case:
    query: JudgeQuery
    right: bool


@dataclass(frozen=True, slots=True)
class Told:
    """What the judge said of a case, when it was asked and when it said so."""

    case: Case
    verdict: Verdict
    began: float
    ended: float

    @property
    def misjudged(self) -> bool:
        return self.verdict.score is not None and self.verdict.correct != self.case.right


@dataclass(frozen=True, slots=True)
class Filtered:
    """A model behind a content filter, which stops every reply to some of the queries: those are
    told by the prompt, so another attempt does not help."""

    inner: ChatModel

    @property
    def name(self) -> str:
        return self.inner.name

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        reply = await self.inner.chat(request, deadline)
        asked = re.findall(r"\d+ \+ \d+", request.messages[-1].content)
        stopped = unit("filter", *asked) < FILTERED
        return replace(reply, text="", finish_reason="content_filter") if stopped else reply


@dataclass(slots=True)
class Watched:
    """A circuit breaker, and how many failures it took to open."""

    breaker: CircuitBreaker
    opened_at: list[float] = field(default_factory=list)
    failures: int = 0  # until it first opened

    @property
    def name(self) -> str:
        return self.breaker.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self.breaker.judge(query)
        if not self.opened_at:
            self.failures += verdict.score is None
        if self.breaker.opened > len(self.opened_at):
            self.opened_at.append(time.monotonic())
        return verdict


def sums(count: int) -> list[Case]:
    """Different sums, every other answer wrong."""
    cases: list[Case] = []
    for n in range(count):
        one, other, right = 1000 + 7 * n, 3 + 5 * n, n % 2 == 0
        said = one + other + (0 if right else 1 + n % 9)
        query = JudgeQuery(
            f"What is {one} + {other}?",
            answer=f"I add the two numbers.\nThe answer is {said}.",
            reference=str(one + other),
            answer_type="number",
            key=str(n),
        )
        cases.append(Case(query, right))
    return cases


async def ask(judge: Judge, cases: Sequence[Case], in_flight: int, rate: float = 0) -> list[Told]:
    """Judge all, at most ``in_flight`` at a time; ``rate``: how many begin a second (0: no pause
    between them)."""
    slots = asyncio.Semaphore(in_flight)

    async def one(case: Case, begin: float) -> Told:
        await asyncio.sleep(begin)
        async with slots:
            began = time.monotonic()
            verdict = await judge.judge(case.query)
            return Told(case, verdict, began, time.monotonic())

    begins = (n / rate if rate else 0.0 for n in range(len(cases)))
    return await asyncio.gather(*map(one, cases, begins))


def statuses(told: Sequence[Told]) -> str:
    """How many have no score, and why."""
    found = Counter(t.verdict.status for t in told if t.verdict.score is None)
    names = ", ".join(f"{count} {status}" for status, count in found.most_common())
    return f"{found.total()} ({names})" if found else "0"


async def faults(options: argparse.Namespace) -> int:
    """Print a row for each fault; returns how many verdicts were false."""
    cases = sums(options.queries)
    print(
        f"{len(cases)} queries, half of them with a wrong answer, {options.in_flight} in flight; "
        f"replies after {options.latency_ms:g} ms on average; deadline of a verdict "
        f"{options.deadline:g} s, all else as configured by default; simulated server\n\n"
        "| fault | unscored | misjudged | chat calls per verdict | "
        "HTTP requests per verdict | "
        "seconds | x no fault |\n|---|---|---|---|---|---|---|"
    )
    false = 0
    no_fault = 0.0
    problems: list[str] = []
    for name, fault in FAULTS.items():
        section = perfect(options.latency_ms, fault)
        async with SimulatedServer([known_task()], section) as server:
            entry = server.entry()
            if "does not have" in name:
                entry = entry.model_copy(update={"model_name": "gpt-oss-120b"})
            client = ChatClient("judge", entry, LlmSection())
            if problem := await client.check():
                problems += problem
            model = Filtered(client) if "filtered" in name else client
            judge = build_judge(
                JudgeSection(deadline_seconds=options.deadline, second_reading=False), model
            )
            began = time.monotonic()
            told = await ask(judge, cases, options.in_flight)
            seconds = time.monotonic() - began
            counts = client.counters.role("executor")
            await client.aclose()
        no_fault = no_fault or seconds
        misjudged = sum(t.misjudged for t in told)
        false += misjudged
        calls, attempts = counts["calls"] / len(told), counts["attempts"] / len(told)
        print(
            f"| {name} | {statuses(told)} | {misjudged} | {calls:.2f} | {attempts:.2f} | "
            f"{seconds:.1f} | {seconds / no_fault:.2f} |",
            flush=True,
        )
    print("\nthe check before a run, of the last row:", *problems, sep="\n")
    return false


def perfect(latency_ms: float, fault: FaultSection) -> SimulatedSection:
    """The settings of an embedded judge that makes no mistake."""
    return SimulatedSection(
        latency_ms=latency_ms, judge_true_positive=1.0, judge_false_positive=0.0, faults=fault
    )


def known_task() -> Problem:
    """A server needs one; the judge's queries are about others, so it compares what it is shown."""
    return Problem("known", "math", "judge_faults", "How many days has a leap year?", "366")


class MortalServer:
    """The embedded server as a process to be killed and started again on the same port."""

    def __init__(self, folder: Path, latency_ms: float) -> None:
        tasks = folder / "tasks.jsonl"
        write_tasks(tasks, [known_task()])
        self._command = [sys.executable, str(SERVER_SCRIPT), "--tasks", str(tasks)]
        self._command += ["--true-positive", "1", "--false-positive", "0"]
        self._command += ["--latency-ms", str(latency_ms)]
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self) -> None:
        """Returns when it answers."""
        command = [*self._command, "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = re.search(r":(\d+)/v1", self._process.stdout.readline())
        if port is None:
            raise SystemExit("the server did not start; its message is above")
        self._port = int(port[1])

    def kill(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


@dataclass(slots=True)
class Setup:
    """A judge with a client of its own, and what came of its queries."""

    name: str
    judge: JudgeSection
    llm: LlmSection = field(default_factory=LlmSection)
    watched: Watched | None = None
    told: list[Told] = field(default_factory=list)

    async def run(self, base_url: str, cases: Sequence[Case], in_flight: int, rate: float) -> None:
        """Judge ``cases``, of which ``rate`` come a second."""
        client = ChatClient("judge", ModelEntry(base_url=base_url, model_name=MODEL), self.llm)
        # As build_judge does it, with an observer around the breaker.
        judge: Judge = LlmJudge(client, self.judge)
        if self.judge.breaker_threshold:
            breaker = CircuitBreaker(
                judge, self.judge.breaker_threshold, self.judge.breaker_seconds
            )
            judge = self.watched = Watched(breaker)
        if self.judge.mode == "judge_with_rule_fallback":
            judge = WithRuleFallback(judge, RuleJudge(only_certain=True))
        try:
            self.told = await ask(Gated(judge), cases, in_flight, rate)
        finally:
            await client.aclose()

    def row(self, gone: float, back: float) -> str:
        """A row of the table; ``gone`` and ``back``: when the server went and was there again."""
        told = self.told
        after = [t.ended - back for t in told if t.ended > back and _of_model(t.verdict)]
        others = [t.ended - back for t in told if not _of_model(t.verdict)]
        cells = [self.name, statuses(told), sum(t.verdict.source == "rule_fallback" for t in told)]
        cells += [sum(t.misjudged for t in told)]
        if self.watched is None:
            cells += ["", ""]
        elif not self.watched.opened_at:
            cells += ["never", 0]
        else:
            took = self.watched.opened_at[0] - gone
            cells += [f"{self.watched.failures} ({took:.1f} s)", self.watched.breaker.refused]
        cells += [f"{min(after):.1f} s" if after else "never"]
        cells += [f"{max(others):.1f} s" if others else ""]
        cells += [f"{max(t.ended - t.began for t in told):.1f} s"]
        return f"| {' | '.join(map(str, cells))} |"


def _of_model(verdict: Verdict) -> bool:
    return verdict.source == "llm" and verdict.score is not None


def setups() -> list[Setup]:
    waits = JudgeSection()
    quick = JudgeSection(deadline_seconds=4, breaker_threshold=5, breaker_seconds=5)
    falls_back = quick.model_copy(update={"mode": "judge_with_rule_fallback"})
    return [
        Setup(f"`judge`, deadline {waits.deadline_seconds:g} s", waits),
        Setup("the same, `llm.reconnect_seconds: 0`", waits, LlmSection(reconnect_seconds=0)),
        Setup("`judge`, deadline 4 s, breaker", quick),
        Setup("`judge_with_rule_fallback`, the same", falls_back),
    ]


async def outage(options: argparse.Namespace) -> int:
    """One outage for several judges beside each other; returns how many verdicts were false."""
    cases = sums(int(options.rate * (WARM_UP + options.away + AFTERWARDS)))
    asked = setups()
    with tempfile.TemporaryDirectory() as folder:
        server = MortalServer(Path(folder), options.latency_ms)
        try:
            await asyncio.to_thread(server.start)
            running = [
                asyncio.create_task(s.run(server.base_url, cases, options.in_flight, options.rate))
                for s in asked
            ]
            await asyncio.sleep(WARM_UP)
            server.kill()
            gone = time.monotonic()
            await asyncio.sleep(options.away)
            await asyncio.to_thread(server.start)
            back = time.monotonic()
            await asyncio.gather(*running)
        finally:
            server.kill()
    print(
        f"\nthe server's process killed, and answering again after {back - gone:.1f} s; "
        f"{len(cases)} queries for each judge, {options.rate:g} a second, at most "
        f"{options.in_flight} in flight; breaker: {asked[-1].judge.breaker_threshold} failures, "
        f"{asked[-1].judge.breaker_seconds:g} s\n\n"
        "| judge | unscored | by rules | misjudged | breaker opened after failures | refused | "
        "after the return: first by the model | last otherwise | longest verdict |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for setup in asked:
        print(setup.row(gone, back))
    return sum(t.misjudged for setup in asked for t in setup.told)


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--queries", type=int, default=1500, help="for each fault")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--latency-ms", type=float, default=100, help="mean of the server's")
    parser.add_argument("--deadline", type=float, default=8, help="of a verdict, seconds")
    parser.add_argument("--away", type=float, default=20, help="seconds without a server")
    parser.add_argument("--rate", type=float, default=12, help="queries a second meanwhile")
    options = parser.parse_args()
    false = await faults(options) + await outage(options)
    print(f"\nfailures that became a score: {false}")
    return 1 if false else 0


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
