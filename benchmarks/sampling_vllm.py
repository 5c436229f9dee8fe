"""Sampling in the trainer's process and from a real vLLM on the same CPU: completion tokens a CPU
second, each side's own.

The server is one that runs already, with its base model: its CPU seconds are those of the process
``--pid`` and all below it, ours (of the requests) are added. The trainer's sampler draws from the
same model (``--model``, the folder that is served) on one thread. Both get the environment's full
prompt for problems of the offline data, and as many tokens for each completion; end tokens are
ignored. A first request of each, which is not counted, has first-time work in it. vLLM keeps
prompts that it has read unless it runs with ``--no-enable-prefix-caching``; ours begins anew.

    python benchmarks/sampling_vllm.py --model FOLDER --url http://127.0.0.1:8003/v1 --pid PID
        [--name SERVED] [--groups 2] [--size 8] [--length 64]
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import torch
from shapes import Shape, groups_in, policy, real_checkpoint

from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Sampling

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Of a process and all that are below it, and of those of their children that have ended."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which may hold spaces: state, parent, ..., utime is the 12th.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        number = int(path.parent.name)
        parents[number], used[number] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    if pid not in used:
        raise SystemExit(f"--pid {pid}: no such process; give that of the server")
    below, found = {pid}, 0
    while len(below) > found:
        found = len(below)
        below |= {number for number, parent in parents.items() if parent in below}
    return sum(used[number] for number in below)


async def ask(url: str, name: str, prompts: Sequence[Sequence[int]], size: int, length: int) -> int:
    """Tokens drawn: a request for each completion, all at once, as the trainer asks."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(3600)) as session:

        async def one(prompt: Sequence[int], seed: int) -> int:
            body = {
                "model": name, "prompt": list(prompt), "max_tokens": length, "ignore_eos": True,
                "temperature": 1.0, "top_k": 0, "seed": seed, "logprobs": 0,
            }  # fmt: skip
            async with session.post(f"{url}/completions", json=body) as response:
                if response.status != 200:
                    raise SystemExit(f"{url}: {response.status}: {await response.text()}")
                return int((await response.json())["usage"]["completion_tokens"])

        pairs = [(prompt, i) for prompt in prompts for i in range(size)]
        return sum(await asyncio.gather(*(one(p, seed) for seed, (p, _) in enumerate(pairs))))


def served(url: str, pid: int, name: str, prompts: Sequence[Sequence[int]], shape: Shape) -> float:
    """Tokens a CPU second of server and client together."""
    asyncio.run(ask(url, name, [prompts[0][:32]], 1, 8))
    server, ours = cpu_seconds(pid), time.process_time()
    tokens = asyncio.run(ask(url, name, prompts, shape.size, shape.length))
    return tokens / (cpu_seconds(pid) - server + time.process_time() - ours)


def local(folder: Path, prompts: Sequence[Sequence[int]], shape: Shape) -> float:
    torch.set_num_threads(1)
    sampler = LocalSampler(policy(folder), shape.groups * shape.size)
    sampler.draw([prompts[0][:32]], 2, Sampling(1.0, 1.0, 8, 0))
    began = time.process_time()
    sampler.draw(prompts, shape.size, Sampling(1.0, 1.0, shape.length, 0))
    return shape.groups * shape.size * shape.length / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens a CPU second, ours and a real vLLM's")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--url", required=True, help="up to and with /v1")
    parser.add_argument("--pid", type=int, required=True, help="of the server")
    parser.add_argument("--name", help="under which it is served; default: the folder")
    for name, count in (("groups", 2), ("size", 8), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    shape = Shape(options.groups, 0, 0, options.size, options.length)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real_checkpoint(options.model, folder, shape)
        prompts = [group.prompt_ids for group in groups_in(folder, shape)]
        url, known = options.url.rstrip("/"), options.name or str(options.model)
        print(f"{len(prompts)} prompts of {', '.join(str(len(p)) for p in prompts)} tokens, "
              f"{shape.size} x {shape.length} tokens each")  # fmt: skip
        server = served(url, options.pid, known, prompts, shape)
        here = local(folder, prompts, shape)
        print("| sampler | tokens / CPU s |\n|---|---|")
        print(f"| vLLM | {server:.1f} |\n| the trainer's | {here:.1f} |")
        print(f"the trainer's / vLLM {here / server:.2f}")


if __name__ == "__main__":
    main()
