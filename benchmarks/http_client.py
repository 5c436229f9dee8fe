"""What one chat call costs the trainer: its own client against the ``openai`` package.

Both ask the embedded server the same question, ``--in-flight`` requests at a time; CPU time is that
of this process alone, in which a trainer also drives workflows, judges and gold checks. Needs
requirements-test.txt, which has the package and its httpx2.

    python benchmarks/http_client.py [--calls 1500] [--in-flight 64]

With ``--servers``, the replies a second of so many embedded servers, beside one: replies
take 0.5 s in the mean, and each server gets at most ``--in-flight`` of them at a time.

    python benchmarks/http_client.py --servers 8 --in-flight 4
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import httpx2
import openai
import uvloop

from flowright.config.llm import LlmSection, SimulatedSection
from flowright.data.loading import build_offline
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.simulation.process import SimulatedServer

REPEATS = 3
WARM, SECONDS = 3.0, 20.0
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


async def rate(count: int, in_flight: int) -> float:
    """Replies a second of so many servers, over SECONDS from the second WARM on."""
    task = build_offline(0).val[0]
    async with AsyncExitStack() as stack:
        section = SimulatedSection(latency_ms=500)
        servers = [SimulatedServer([task], section) for _ in range(count)]
        urls = [(await stack.enter_async_context(server)).base_url for server in servers]
        entry = servers[0].entry().model_copy(update={"base_url": tuple(urls)})
        client = ChatClient("simulated", entry, LlmSection(max_concurrency_per_server=in_flight))
        stack.push_async_callback(client.aclose)

        answered, seeds = 0, itertools.count()

        async def ask() -> None:
            nonlocal answered
            for seed in seeds:  # the latency of a request is a function of its text
                await client.chat(ChatRequest([Message("user", task.problem)], seed=seed))
                answered += 1

        asking = [asyncio.create_task(ask()) for _ in range(2 * count * in_flight)]
        await asyncio.sleep(WARM)
        began, before = time.monotonic(), answered
        await asyncio.sleep(SECONDS)
        found = (answered - before) / (time.monotonic() - began)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return found


async def compare_servers(count: int, in_flight: int) -> None:
    one, many = await rate(1, in_flight), await rate(count, in_flight)
    print(f"{in_flight} in flight at each server, 0.5 s a reply (simulated)")
    print(f"1 server   {one:6.1f} requests/s")
    print(f"{count} servers  {many:6.1f} requests/s   x {many / one:.2f}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--servers", type=int)
    arguments = parser.parse_args()
    if arguments.servers:
        await compare_servers(arguments.servers, arguments.in_flight)
        return
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
