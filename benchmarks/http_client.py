"""What one chat call costs the trainer: its own client against the ``openai`` package.

Both ask the embedded server the same question, ``--in-flight`` requests at a time; CPU time is that
of this process alone, in which a trainer also drives workflows, judges and gold checks. Needs
requirements-test.txt, which has the package and its httpx2.

    python benchmarks/http_client.py [--calls 1500] [--in-flight 64]
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx2
import openai
import uvloop

from flowright.config.llm import LlmSection, SimulatedSection
from flowright.data.loading import build_offline
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.simulation.process import SimulatedServer

REPEATS = 3
Ask = Callable[[], Awaitable[object]]


async def cost(ask: Ask, calls: int, in_flight: int) -> float:
    """CPU milliseconds a call, the least of some repeats."""
    slots = asyncio.Semaphore(in_flight)

    async def one() -> None:
        async with slots:
            await ask()

    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        await asyncio.gather(*(one() for _ in range(calls)))
        found.append(1000 * (time.process_time() - began) / calls)
    return min(found)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--in-flight", type=int, default=64)
    arguments = parser.parse_args()
    task = build_offline(0).val[0]
    async with SimulatedServer([task], SimulatedSection()) as server:
        entry = server.entry()
        own = ChatClient("simulated", entry, LlmSection(max_concurrency=arguments.in_flight))
        limits = httpx2.Limits(max_connections=arguments.in_flight)
        async with openai.AsyncOpenAI(
            base_url=server.base_url,
            api_key="any",
            max_retries=0,
            http_client=httpx2.AsyncClient(trust_env=False, limits=limits),
        ) as package:
            request = ChatRequest([Message("user", task.problem)], seed=1)
            measured = {
                "flowright": await cost(
                    lambda: own.chat(request), arguments.calls, arguments.in_flight
                ),
                "openai": await cost(
                    lambda: package.chat.completions.create(
                        model=entry.model_name,
                        messages=[{"role": "user", "content": task.problem}],
                        seed=1,
                    ),
                    arguments.calls,
                    arguments.in_flight,
                ),
            }
        await own.aclose()
    print(f"{arguments.calls} calls, {arguments.in_flight} in flight, simulated server")
    for name, milliseconds in measured.items():
        ratio = milliseconds / measured["flowright"]
        print(f"{name:<10} {milliseconds:6.2f} ms of CPU a call   x {ratio:.1f}")


if __name__ == "__main__":
    uvloop.run(main())
