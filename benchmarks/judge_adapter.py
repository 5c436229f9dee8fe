"""What the reward adapter costs and saves, against callers without it, at one judge service.

The service is a stand-in on this machine that answers every request, whatever its size, after
``--latency`` seconds, and counts what it was asked. One question in ``--repeats`` is new; the same
questions go to a caller that asks one after the other, to a pool of 32 threads, and to the adapter
without and with its batching and cache.

    python benchmarks/judge_adapter.py [--requests 640] [--latency 0.05] [--repeats 4]
"""

import argparse
import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop
from aiohttp import web

from flowright.judging.reward.adapter import JudgeRewardSystem

IN_FLIGHT = 32
OK = {"score": 1.0, "correct": True, "status": "ok", "source": "llm", "explanation": ""}


class Service:
    """On a thread of its own; ``requests`` and ``members`` are what it was asked."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.requests = self.members = 0
        self.url = ""
        self._ready = threading.Event()
        threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/batch_judge", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await asyncio.Event().wait()

    async def _answer(self, request: web.Request) -> web.Response:
        members = (await request.json())["requests"]
        self.requests += 1
        self.members += len(members)
        await asyncio.sleep(self.latency)
        return web.json_response({"responses": [OK] * len(members)})


def questions(count: int, repeats: int) -> list[dict[str, Any]]:
    """``count`` questions, each of which occurs ``repeats`` times, far apart."""
    different = max(1, count // repeats)
    return [
        {"prompt": f"What is {n} + 1?", "completion": str(n + 1), "answer": str(n + 1)}
        for n in (i % different for i in range(count))
    ]


def plain(url: str, question: Mapping[str, str]) -> float:
    """What a caller without the adapter does: one request, standard library."""
    body = json.dumps({"requests": [question]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/batch_judge", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["responses"][0]["score"]


def by_adapter(service: Service, **options: Any) -> Callable[[Sequence[dict[str, Any]]], Any]:
    def run(asked: Sequence[dict[str, Any]]) -> dict[str, Any]:
        with JudgeRewardSystem({"judge_url": service.url, **options}) as system:
            system.reward("warm", "up", "warm")

            async def some() -> None:
                work = iter(asked)

                async def one_after_the_other() -> None:
                    for question in work:
                        told = await system.areward(**question)
                        assert told["reward"] == 1.0, told

                await asyncio.gather(*(one_after_the_other() for _ in range(IN_FLIGHT)))

            started = time.perf_counter()
            uvloop.run(some())
            return {"seconds": time.perf_counter() - started, **system.get_metrics()}

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=4)
    options = parser.parse_args()
    service = Service(options.latency)
    asked = questions(options.requests, options.repeats)
    single = {"use_cache": False, "max_batch_size": 1, "batch_timeout": 0.0}
    batched = {"use_cache": False, "batch_timeout": 0.005}

    def one_by_one(asked: Sequence[dict[str, Any]]) -> None:
        few = asked[: max(1, len(asked) // 10)]  # its time is known: a tenth will do
        for question in few:
            plain(service.url, question)

    def pool(asked: Sequence[dict[str, Any]]) -> None:
        with ThreadPoolExecutor(IN_FLIGHT) as threads:
            list(threads.map(lambda question: plain(service.url, question), asked))

    rows = (
        ("one after the other", one_by_one),
        (f"{IN_FLIGHT} threads", pool),
        ("adapter, neither batches nor cache", by_adapter(service, **single)),
        ("adapter, batches", by_adapter(service, **batched)),
        ("adapter, batches and cache", by_adapter(service, batch_timeout=0.005)),
    )
    naive = 0.0
    print(f"{len(asked)} questions, {len(asked) // options.repeats} different, {options.latency} s")
    print(f"{'':<36}{'seconds':>9}{'a second':>10}{'x naive':>9}{'requests':>10}{'members':>9}")
    for name, run in rows:
        service.requests = service.members = 0
        started = time.perf_counter()
        found = run(asked) or {}
        seconds = found.get("seconds", time.perf_counter() - started)
        seconds *= 10 if run is one_by_one else 1
        naive = naive or seconds
        print(
            f"{name:<36}{seconds:>9.2f}{len(asked) / seconds:>10.0f}{naive / seconds:>9.1f}"
            f"{service.requests:>10}{service.members:>9}"
            + (f"  batched {found['batched_share']:.0%}" if found else "")
        )
    # Without latency all that is left is what the adapter and the HTTP of both sides take.
    service.latency = 0.0
    busy = time.process_time()
    found = by_adapter(service, **single)(asked)
    each, cpu = (1e3 * s / len(asked) for s in (found["seconds"], time.process_time() - busy))
    print(f"adapter and service, {IN_FLIGHT} in flight, no latency, no batches: {each:.2f} ms each")
    print(f"of which both compute {cpu:.2f} ms")


if __name__ == "__main__":
    main()
