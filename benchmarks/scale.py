"""Where rollouts on many nodes saturate: a simulation of queues.

    python benchmarks/scale.py                          # measures its costs first, with one worker
    python benchmarks/scale.py --cpu 0.8 --trainer 0.01 # with given ones

A group's attempts wait for large models (times drawn exponentially, ``--calls`` in flight at most),
need a core of a worker's node for sandbox and interpreter, then the trainer's thread. A step ends
with an update, while the next one rolls out (``pipeline.max_staleness: 1``). Two batches: one for
any number of nodes, and one that grows with them, as its update does. Every line of the table is
simulated; only the CPU seconds of the first line are measured.
"""

import argparse
import asyncio
import heapq
import os
import random
import time
from pathlib import Path

from flowright.config.grpo import RolloutSection
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode
from flowright.environments.registry import load_config
from flowright.environments.remote import with_workers
from flowright.policy.sampling import Sample

MEASURED_GROUPS, ATTEMPTS = 8, 4
LARGE_SHARE = 0.6
"""Least share of a rollout in which a part that limits it is busy."""


def cpu_below(root: int) -> float:
    """CPU seconds of all processes below ``root`` but the embedded server's, which stands for
    other machines."""
    rows: dict[int, tuple[int, float, bytes]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        ticks = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        rows[int(folder.name)] = int(fields[1]), ticks, command
    found, below = 0.0, [root]
    while below:
        parent = below.pop()
        for pid, (above, seconds, command) in rows.items():
            if above == parent and b"flowright.simulation.process" not in command:
                found += seconds
                below.append(pid)
    return found


async def measure() -> tuple[float, float]:
    """CPU seconds of an attempt at a worker, and of a group in the trainer's process."""
    config = load_config("quickstart")
    environment = make_environment(config)
    tasks = environment.tasks().train[:MEASURED_GROUPS]
    programs = [baseline.completion for baseline in environment.baselines()]
    environment = with_workers(environment, RolloutSection(workers=1), print)
    groups = [
        [
            Episode.single(
                task, Sample((1,), (0.0,), programs[n % len(programs)], "stop", 0), f"0/1/{p}/{n}"
            )
            for n in range(ATTEMPTS)
        ]
        for p, task in enumerate(tasks)
    ]
    async with environment.open(tasks):
        below, own = cpu_below(os.getpid()), time.process_time()
        await environment.rollout(groups)
        below, own = cpu_below(os.getpid()) - below, time.process_time() - own
    return below / (len(groups) * ATTEMPTS), own / len(groups)


class Server:
    """Places that serve one after the other; ``busy`` are the seconds of all."""

    def __init__(self, places: int) -> None:
        self.free = [0.0] * places
        self.busy = 0.0

    def serve(self, arrival: float, seconds: float) -> float:
        end = max(arrival, heapq.heappop(self.free)) + seconds
        heapq.heappush(self.free, end)
        self.busy += seconds
        return end


def rolled_out(
    nodes: int, groups: int, costs: argparse.Namespace
) -> tuple[float, dict[str, float]]:
    """Seconds until the last group of a batch is in the trainer, and the share of that time in
    which each part is busy; of the nodes, the busiest one."""
    rng = random.Random(0)
    models, trainer = Server(costs.calls), Server(1)
    cores = [Server(costs.cores) for _ in range(nodes)]
    arrivals = []
    for _ in range(groups):
        node = cores[rng.randrange(nodes)]  # by a hash of the task
        answered = sorted(
            models.serve(0.0, rng.expovariate(1 / costs.llm)) for _ in range(costs.attempts)
        )
        arrivals.append(max(node.serve(at, costs.cpu) for at in answered))
    end = max(trainer.serve(at, costs.trainer) for at in sorted(arrivals))
    busiest = max(node.busy for node in cores)
    busy = {
        "large models": models.busy / costs.calls,
        "a node's cores": busiest / costs.cores,
        "trainer's thread": trainer.busy,
    }
    return end, {name: seconds / end for name, seconds in busy.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate queues of 1, 8 and 64 nodes.")
    parser.add_argument("--cpu", type=float, help="CPU seconds of an attempt (default: measured)")
    parser.add_argument("--trainer", type=float, help="trainer's seconds of a group (measured)")
    parser.add_argument("--llm", type=float, default=20.0, help="seconds of an attempt's calls")
    parser.add_argument("--calls", type=int, default=512, help="calls in flight at all servers")
    parser.add_argument("--update", type=float, default=60.0, help="seconds of an update")
    parser.add_argument("--groups", type=int, default=64, help="groups of a step, or for each node")
    parser.add_argument("--attempts", type=int, default=16)
    parser.add_argument("--cores", type=int, default=16, help="cores of a node")
    costs = parser.parse_args()
    if costs.cpu is None or costs.trainer is None:
        cpu, trainer = asyncio.run(measure())
        print(f"measured  {cpu:.3f} CPU s an attempt at a worker, {trainer:.4f} s a group here")
        costs.cpu, costs.trainer = costs.cpu or cpu, costs.trainer or trainer
    print(f"assumed   {costs.llm:g} s of calls, {costs.calls} in flight, update {costs.update:g} s")
    for grows in (False, True):
        for nodes in (1, 8, 64):
            groups = costs.groups * (nodes if grows else 1)
            update = costs.update * groups / costs.groups
            seconds, busy = rolled_out(nodes, groups, costs)
            step = max(seconds, update)
            name, share = max(busy.items(), key=lambda item: item[1])
            why = f"rollout: {name} busy {share:.0%}"
            if share < LARGE_SHARE:
                why = "rollout: its slowest attempt, no part is busy"
            if update >= seconds:
                why = "update: more trainer GPUs"
            print(
                f"simulated {nodes:2} nodes, {groups:4} groups a step: rollout {seconds:6.1f} s, "
                f"update {update:6.1f} s, {groups * costs.attempts / step:6.2f} attempts/s; {why}"
            )


if __name__ == "__main__":
    main()
