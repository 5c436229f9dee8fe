"""Whether verdicts are lost where callers want more than a judge service can take, and how much of
its throughput they get.

The service is the real one with its defaults, in a process of its own; its judge calls everything
right after ``--seconds``. Each of ``--adapters`` processes has a reward system with its defaults
(no cache, no fallback) and asks its share of ``--questions`` at once. The ideal is what the
service's places can do: max_in_flight / seconds. What is lost has no reward.

    python benchmarks/judge_overload.py [--questions 4096] [--seconds 0.05 1 3] [--adapters 1]
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import uvloop

from flowright import JudgeQuery, JudgeRewardSystem, Verdict
from flowright.config.judge import JudgeServerSection
from flowright.core.net import DrainingServer, listen
from flowright.judging.service.app import create_app


class Slow:
    """Takes its time and calls everything right."""

    name = "slow"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def judge(self, query: JudgeQuery) -> Verdict:
        await asyncio.sleep(self._seconds)
        return Verdict(1.0, True, "llm", "ok", judge=self.name)


def serve(seconds: float, address: Connection) -> None:
    listener = listen("127.0.0.1", 0)
    address.send(f"http://127.0.0.1:{listener.getsockname()[1]}")

    async def serving() -> None:
        app = create_app(Slow(seconds), JudgeServerSection())
        server = DrainingServer(app, app.state.traffic.drain, 1.0, lambda line: None)
        await server.serve(sockets=[listener])

    uvloop.run(serving())


def ask(url: str, name: str, count: int, go: Connection) -> None:
    """Sends how many rewards were lost, requests, repeated ones, open circuits, seconds."""
    questions = [
        {"prompt": f"What is {n} + 1?", "completion": str(n + 1), "answer": str(n + 1),
         "request_id": f"{name}/{n}"}
        for n in range(count)
    ]  # fmt: skip
    options = {"judge_url": url, "use_cache": False, "fallback_to_rule": False}
    with JudgeRewardSystem(options) as system:
        go.send("ready")
        go.recv()
        began = time.perf_counter()
        told = system.reward_batch(questions)
        took = time.perf_counter() - began
        metrics = system.get_metrics()
    lost = [one for one in told if one["reward"] is None]
    for why in {one["explanation"] for one in lost}:
        print(f"  lost: {why}")
    opened = metrics["circuit_breaker"]["opened"]
    go.send((len(lost), metrics["http_requests"], metrics["retries"], opened, took))


def measure(seconds: float, questions: int, adapters: int) -> None:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    server = spawning.Process(target=serve, args=(seconds, theirs))
    server.start()
    url = ours.recv()
    pipes, askers = [], []
    for number in range(adapters):
        mine, its = spawning.Pipe()
        arguments = (url, str(number), questions // adapters, its)
        askers.append(spawning.Process(target=ask, args=arguments))
        askers[-1].start()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    found = [pipe.recv() for pipe in pipes]
    took = time.perf_counter() - began
    for process in askers:
        process.join()
    server.terminate()
    server.join()
    lost, requests, retries, opened, each = zip(*found, strict=True)
    ideal = JudgeServerSection().max_in_flight / seconds
    reached = questions / took
    shares = f"; slowest/fastest adapter {max(each) / min(each):.2f}" if adapters > 1 else ""
    print(
        f"{seconds:g} s a verdict, {adapters} adapters: {sum(lost)} of {questions} lost, "
        f"{reached:.1f} verdicts/s of {ideal:.1f} ({reached / ideal:.0%}), median adapter "
        f"{statistics.median(each):.1f} s{shares}; {sum(requests)} requests, {sum(retries)} of "
        f"them repeated; circuit opened {sum(opened)} times",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--questions", type=int, default=4096)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.05, 1.0, 3.0])
    parser.add_argument("--adapters", type=int, default=1)
    options = parser.parse_args()
    for seconds in options.seconds:
        measure(seconds, options.questions, options.adapters)


if __name__ == "__main__":
    main()
