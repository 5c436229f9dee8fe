"""Whether degenerate texts hold up the event loop: the longest gap between two beats of a heart.

The texts of hostile_corpus.py go through what a GRPO step goes through between sampling and its
rewards, and through the judge service, on one event loop: as completions, as programs, as answers,
as replies of the executor and of the judge (an HTTP server in a process of its own says nothing
else), and as members of batches that a client posts. A beat that is due after a millisecond and
comes late is a gap; what counts is this process's CPU time in it, all threads together, so that
other work on the machine is not blamed on a text. The function named is what a thread beside saw
the loop at.

    python benchmarks/hostile_loop.py [--quick] [--size 20000]

The exit status is 1 where a gap is longer than 50 ms. The sandbox is the real one.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from heapq import nlargest
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from aiohttp import web
from fastapi import FastAPI
from hostile_corpus import SHAPES, TEXTS, UNITS

from flowright.config.judge import JudgeSection, JudgeServerSection
from flowright.config.llm import LlmSection, ModelEntry
from flowright.config.workflow import RewardSection, WorkflowSection
from flowright.core.net import DrainingServer, listen
from flowright.data.task import Kind, Problem
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout, to_record
from flowright.environments.workflow.reward import WorkflowRollouts, workflow_record
from flowright.grading.gold import algebra
from flowright.judging.build import open_judge
from flowright.judging.service.app import create_app
from flowright.llm.client import ChatClient
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox
from flowright.workflows.executor import Executor

LONGEST_GAP = 0.050
BEAT = 0.001
LOOKED = 0.020  # seconds without a beat after which the thread beside looks where the loop is
BATCH = 16
AT_ONCE = 64  # rollouts

_fork = multiprocessing.get_context("fork")

Gap = tuple[float, str]
"""Seconds that a beat was late, and where the loop and other threads were."""

TASKS = (
    Problem(id="m", kind="math", source="s", question="What is 6 * 7?", reference="42"),
    Problem(id="q", kind="qa", source="s", question="Who was it?", reference="Ada Lovelace"),
    Problem(
        id="c", kind="code", source="s", question="Write add(a, b).", entry_point="add",
        reference="def add(a, b):\n    return a + b", public_tests=("assert add(1, 2) == 3",),
        hidden_tests=("assert add(5, 7) == 12",),
    ),
)  # fmt: skip

_RUN = "async def workflow(problem):\n    return await "
PROGRAMS: dict[Kind, Sequence[str]] = {
    "math": (_RUN + "answer(problem)", _RUN + "programmer(problem)", _RUN + "review(problem, 'a')"),
    "qa": (
        _RUN + "generate(problem)",
        "async def workflow(problem):\n    a = await answer(problem)\n"
        "    return await ensemble([a, a + '1', await generate(problem), '42'])",
        _RUN + "format(problem, await generate(problem))",
    ),
    "code": (_RUN + "write_code(problem)", _RUN + "revise(problem, 'a', 'b')"),
}
"""What calls the executor, whose replies are the texts."""


def completions(text: str) -> Iterator[str]:
    """A text as a completion, as a program, and as an answer."""
    yield text
    yield f"```python\nasync def workflow(problem):\n    return 'a'\n{text}\n```"
    yield f"async def workflow(problem):\n    return {text[:12_000]!r}"
    yield f"async def workflow(problem):\n    return await generate({text[:12_000]!r})"


def serve_texts(names: Sequence[str], size: int, told: Any) -> None:
    """An OpenAI server that says the texts in turn; it tells its port."""
    bodies = itertools.cycle(
        json.dumps(
            {
                "id": "x", "object": "chat.completion", "created": 0, "model": "m",
                "choices": [{
                    "index": 0, "finish_reason": "stop",
                    "message": {"role": "assistant", "content": TEXTS[name](size)},
                }],
                "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
            }
        )
        for name in names
    )  # fmt: skip

    async def say(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=next(bodies), content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", say)
    listener = listen("127.0.0.1", 0)
    told.send(listener.getsockname()[1])
    web.run_app(app, sock=listener, print=None)


def post_batches(names: Sequence[str], size: int, told: Any) -> None:
    """The texts as members of batches, in every field that takes one: to the port that it is told;
    it tells how many responses had which status."""
    connection = HTTPConnection("127.0.0.1", told.recv(), timeout=600)
    fields = itertools.cycle(("completion", "prompt", "answer"))
    found: Counter[str] = Counter()
    for start in range(0, len(names), BATCH):
        members = [
            {"prompt": "q", "completion": "a", "answer": "42", "include_raw": True}
            | {"answer_type": "number", next(fields): TEXTS[name](size)}
            for name in names[start : start + BATCH]
        ]
        content = json.dumps({"requests": members})
        connection.request("POST", "/batch_judge", content, {"content-type": "application/json"})
        reply = connection.getresponse()
        said = json.loads(reply.read())
        found.update(r["status"] for r in said.get("responses", [{"status": reply.status}]))
    told.send(dict(found))


class Heart:
    """Beats on the loop; keeps the gaps, and what the loop was seen at in each."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._last = time.perf_counter()
        self._cpu = time.process_time()
        self._seen = ""
        self._ended = False

    async def beat(self) -> None:
        while True:
            self._last, self._cpu, self._seen = time.perf_counter(), time.process_time(), ""
            await asyncio.sleep(BEAT)
            wall = time.perf_counter() - self._last - BEAT
            late = min(wall, time.process_time() - self._cpu)
            self.gaps.append((late, self._seen))

    def look(self) -> None:
        while not self._ended:
            time.sleep(LOOKED / 4)
            if not self._seen and time.perf_counter() - self._last > LOOKED:
                self._seen = " | ".join(
                    _place(frame)
                    for thread, frame in sys._current_frames().items()
                    if thread != threading.get_ident()
                )

    @contextmanager
    def beating(self) -> Iterator[None]:
        watcher = threading.Thread(target=self.look)
        watcher.start()
        task = asyncio.create_task(self.beat())
        try:
            yield
        finally:
            task.cancel()
            self._ended = True
            watcher.join()


def _place(frame: Any) -> str:
    """The innermost function on a stack, and the innermost one of this package."""
    stack = traceback.extract_stack(frame)
    ours = [each for each in stack if "/flowright/" in each.filename]
    shown = [f"{Path(each.filename).name}:{each.name}" for each in [*ours[-1:], stack[-1]]]
    return " > ".join(dict.fromkeys(shown))


def plays(names: Sequence[str], size: int) -> list[Episode]:
    """All the texts as completions, and each way of asking the executor again and again."""
    tasks = itertools.cycle(TASKS)
    played = [(next(tasks), text) for name in names for text in completions(TEXTS[name](size))]
    played += [
        (task, f"{program}  # {n}")
        for n in range(max(1, len(names) // 8))
        for task in TASKS
        for program in PROGRAMS[task.kind]
    ]
    return [
        Episode.single(task, Sample((1,), (0.0,), text, "stop", 0), f"1/{task.id}/{n}")
        for n, (task, text) in enumerate(played)
    ]


async def roll_out(rollouts: WorkflowRollouts, items: Sequence[Episode]) -> list[Rollout]:
    """In groups, and each recorded."""
    found: list[Rollout] = []
    for start in range(0, len(items), AT_ONCE):
        for group in await rollouts.rollout([items[start : start + AT_ONCE]]):
            found += group
            for index, each in enumerate(group):
                json.dumps(to_record(each, workflow_record(each), 1, start, index, 0.0))
                await asyncio.sleep(0)
    return found


async def judge_batches(app: FastAPI, poster: Any) -> object:
    """The judge service on this loop, until the poster has what it asked for."""
    with closing(listen("127.0.0.1", 0)) as listener:
        server = DrainingServer(app, app.state.traffic.drain, 5.0, print)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        poster.send(listener.getsockname()[1])
        found = await asyncio.to_thread(poster.recv)
        server.should_exit = True
        await serving
    return found


async def hold_up(names: Sequence[str], size: int, port: int, poster: Any) -> Sequence[Gap]:
    """The gaps while everything above goes on. What is opened once is open before."""
    entry = ModelEntry(base_url=f"http://127.0.0.1:{port}/v1", model_name="m")
    client = ChatClient("m", entry, LlmSection(max_concurrency=16))
    items, heart = plays(names, size), Heart()
    async with (
        Sandbox(workers=1) as sandbox,
        open_judge(JudgeSection(), "m", {"m": client}, algebra(sandbox)) as opened,
        Executor(client, sandbox, WorkflowSection(workers=1)) as executor,
    ):
        app = create_app(opened.judge, JudgeServerSection())
        rollouts = WorkflowRollouts(executor, opened.judge, sandbox, RewardSection())
        await rollouts.rollout([items[-3:]])
        with heart.beating():
            found = await roll_out(rollouts, items)
            ends = Counter(r.failure.reason.value if r.failure else "judged" for r in found)
            print(f"{len(found)} rollouts: {dict(ends)}", flush=True)
            print(f"{len(names)} verdicts: {await judge_batches(app, poster)}", flush=True)
    await client.aclose()
    return heart.gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="every eighth text")
    parser.add_argument("--size", type=int, default=20_000, help="characters of a text")
    args = parser.parse_args()
    names = [*SHAPES, *map(repr, UNITS)][:: 8 if args.quick else 1]
    began = time.monotonic()
    with (
        _beside(serve_texts, names, args.size) as server,
        _beside(post_batches, names, args.size) as poster,
    ):
        gaps = asyncio.run(hold_up(names, args.size, server.recv(), poster))
    print(f"{len(gaps)} beats in {time.monotonic() - began:.0f} s; the longest gaps:")
    for late, seen in nlargest(10, gaps):
        print(f"{late * 1e3:8.1f} ms  {seen}")
    sys.exit(max(gaps)[0] > LONGEST_GAP)


@contextmanager
def _beside(work: Callable[..., None], *given: Any) -> Iterator[Any]:
    """Another process that does some work; yields this end of a pipe to it."""
    ours, theirs = _fork.Pipe()
    process = _fork.Process(target=work, args=(*given, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()
