#!/usr/bin/env python3
"""How long the viewer takes on a large run: `python benchmarks/viewer.py [--attempts 1000000]`.

The run is SYNTHETIC: records of the form that training keeps, with words drawn at random. It is
written to a folder, indexed, and asked for pages by HTTP from a server in a process of its own.
Prints seconds of indexing, sizes, and for each page the median time of several answers and what
they took of a processor, which on a busy machine tells more.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import zstandard

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from flowright.viewer.index import Indexer, forget, index_path  # noqa: E402

PER_STEP, GROUP, PROBLEMS, WORDS = 1000, 8, 4000, 30_000
OPERATORS = ("answer", "generate", "ensemble", "programmer", "review", "revise", "test")
REASONS = ("syntax", "type", "crashed", "no_answer", "call_budget")
ANSWERS = 5
SETTLE = 5.0  # seconds


def words(rng: random.Random, count: int) -> str:
    """Frequent and rare words, as texts have them."""
    return " ".join(f"w{int(WORDS ** rng.random())}" for _ in range(count))


def record(rng: random.Random, step: int, place: int, problems: list[str]) -> dict[str, Any]:
    """One invented attempt."""
    group, index = divmod(place, GROUP)
    number = (step * 131 + group) % len(problems)
    failed, right = rng.random() < 0.05, rng.random() < 0.6
    gold = right if rng.random() < 0.97 else not right
    names = rng.sample(OPERATORS, rng.randint(1, 3))
    usage = {"calls": 1, "prompt_tokens": rng.randint(80, 900), "completion_tokens": 150}
    trace = [
        {"operator": name, "arguments": {"problem": problems[number]}, "result": words(rng, 4),
         "error": None, "started": 0.1 * n, "seconds": rng.random(), "usage": usage,
         "exchanges": [{"prompt": f"Solve this. {problems[number]}", "reply": words(rng, 60),
                        "finish_reason": "stop", "usage": usage, "seconds": 0.5, "attempts": 1}],
         "children": []}
        for n, name in enumerate(names)
    ]  # fmt: skip
    source = "async def workflow(problem):\n    " + "\n    ".join(
        f"x{n} = await {name}(problem, {rng.randint(0, 50)})" for n, name in enumerate(names)
    )
    failure = {
        "reason": rng.choice(REASONS),
        "blame": "policy",
        "message": words(rng, 8),
        "line": 2,
    }
    verdict = {"score": float(right), "correct": right, "source": "llm", "status": "ok",
               "reason": words(rng, 20), "attempts": 1, "judge": "synthetic", "seconds": 0.2,
               "replies": [{"text": words(rng, 25), "finish_reason": "stop"}]}  # fmt: skip
    return {
        "step": step, "group": group, "index": index,
        "task": {"id": f"problem/{number}", "kind": ("math", "code", "qa")[number % 3],
                 "source": f"set{number % 7}", "problem": problems[number], "reference": "7"},
        "completion": source, "tokens": rng.randint(20, 200), "finish_reason": "stop",
        "policy_version": step - 1,
        "workflow": {"source": source, "calls": names, "repairs": []},
        "execution": None if failed else {
            "answer": words(rng, 3), "failure": None, "trace": trace, "seconds": 60 * rng.random(),
            "usage": {"calls": len(names), "prompt_tokens": rng.randint(200, 3000),
                      "completion_tokens": rng.randint(50, 900)}},
        "verdict": None if failed else verdict,
        "gold": None if failed else {"correct": gold, "method": "numeric", "detail": "7"},
        "reward": {"value": -0.1 if failed else float(right), "parts": {}},
        "advantage": rng.gauss(0, 1), "failure": failure if failed else None,
    }  # fmt: skip


def write_run(run: Path, attempts: int) -> tuple[int, int]:
    """The synthetic run; returns the bytes of its records, and of its files."""
    rng = random.Random(0)
    (run / "rollouts").mkdir(parents=True)
    (run / "config.json").write_text('{"strategy_model": "synthetic"}')
    steps = -(-attempts // PER_STEP)
    state = {"status": "finished", "step": steps, "steps": steps, "simulated": True}
    (run / "state.json").write_text(json.dumps(state))
    problems = [words(rng, 50) for _ in range(PROBLEMS)]
    raw = 0
    with (run / "metrics.jsonl").open("w") as metrics:
        for step in range(1, steps + 1):
            count = min(PER_STEP, attempts - (step - 1) * PER_STEP)
            rows = [json.dumps(record(rng, step, n, problems)) for n in range(count)]
            data = "".join(f"{row}\n" for row in rows).encode()
            raw += len(data)
            path = run / "rollouts" / f"step_{step:06d}.jsonl.zst"
            path.write_bytes(zstandard.ZstdCompressor(level=3).compress(data))
            row = {"step": step, "reward/mean": rng.random(), "gold/accuracy": rng.random()}
            row |= {f"synthetic/{n}": rng.random() for n in range(100)}
            metrics.write(json.dumps(row) + "\n")
    return raw, sum(path.stat().st_size for path in (run / "rollouts").iterdir())


def pages(steps: int) -> Iterator[tuple[str, str]]:
    """What is asked for, and where it is."""
    middle = steps // 2
    asked: list[tuple[str, dict[str, Any]]] = [
        ("first page of attempts", {}),
        ("outcome=wrong", {"outcome": "wrong"}),
        ("judge right, gold wrong", {"against": "too_generous"}),
        ("two operators, reward > 0.5", {"operator": "answer,ensemble", "reward": ">0.5"}),
        ("seconds > 59.9, most LLM tokens first", {"seconds": ">59.9", "sort": "llm_tokens"}),
        ("advantage > 3.5 of crashed ones", {"advantage": ">3.5", "failure": "crashed"}),
        ("nothing: reward > 5", {"reward": ">5"}),
        ("one problem", {"task": "problem/77"}),
        (
            "steps in the middle, type errors",
            {"step": f"{middle}..{middle + 9}", "failure": "type"},
        ),
        ("search: a rare word", {"q": "w29871"}),
        ("search: a word that is everywhere", {"q": "w1"}),
        (
            "search: two words, worst reward first",
            {"q": "w25 w310", "sort": "reward", "dir": "asc"},
        ),
        ("search: a phrase in replies", {"q": '"w2 w7"', "in": "replies"}),
        ("a page far in, by reward", {"sort": "reward", "after": json.dumps([0.0, middle << 28])}),
    ]
    for name, query in asked:
        yield name, f"/run/run/attempts?{urlencode(query)}"
    yield "an attempt", f"/run/run/attempt/{middle}/3/1"
    yield "a group", f"/run/run/group/{middle}/3"
    yield "the run", "/run/run/"
    yield "all runs", "/"


def processor_ms(process: int) -> float:
    """What all threads of a process have had of a processor: on a busy machine the time of an
    answer says little, and this says what it would be on an idle one."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


def measure(run: Path, steps: int) -> None:
    """Seconds until the server answers, and milliseconds of each page."""
    began = time.perf_counter()
    command = [sys.executable, str(ROOT / "scripts/view.py"), str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0].rstrip("/")
            urlopen(f"{address}/").read()
            print(f"{'first answer after the start':<42}{time.perf_counter() - began:9.2f} s")
            time.sleep(SETTLE)  # what it does on its own at the start is not the pages'
            print(f"{'':<42}{'ms':>9}{'the first time':>18}{'of processor':>18}")
            for name, path in pages(steps):
                taken: list[float] = []
                before = processor_ms(server.pid)
                for _ in range(ANSWERS):
                    start = time.perf_counter()
                    urlopen(address + path).read()
                    taken.append(1000 * (time.perf_counter() - start))
                used = (processor_ms(server.pid) - before) / ANSWERS
                median = statistics.median(taken)
                print(f"{name:<42}{median:9.0f}{taken[0]:18.0f}{used:18.0f}", flush=True)
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the run is made, and stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = (options.keep or Path(temporary)) / "run"
        steps = -(-options.attempts // PER_STEP)
        if not run.exists():
            raw, packed = write_run(run, options.attempts)
            told = f"{raw / 1e9:.2f} GB of records, {packed / 1e9:.2f} GB on disk"
            print(f"SYNTHETIC run: {options.attempts:,} attempts, {steps:,} steps, {told}")
        forget(index_path(run))
        began, spent = time.perf_counter(), time.process_time()
        *_, progress = Indexer(run).update()
        took, cpu = time.perf_counter() - began, time.process_time() - spent
        size = index_path(run).stat().st_size
        print(f"indexed {progress.attempts:,} attempts in {took:.0f} s ({cpu:.0f} s of processor), "
              f"{size / 1e9:.2f} GB; load of the machine {os.getloadavg()[0]:.1f}")  # fmt: skip
        measure(run, steps)


if __name__ == "__main__":
    main()
