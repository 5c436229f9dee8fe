"""What a slow group costs: steps in the order of their batches beside groups as they end
(``pipeline.order``).

A toy environment grades at once, but one group in twelve waits ten times as long as the others; all
arms train with the same waits. ``batch`` with a staleness of n samples n steps ahead, ``ready``
one step, whatever its staleness. Waits are made up, the rest is real.

    python benchmarks/stragglers.py [--steps 20] [--wait 0.5]
"""

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from flowright import Demonstration, Environment, Episode, Gold, Reward, Rollout, Task, TaskSets
from flowright.runs.run_files import read_metrics

WAIT = "STRAGGLERS_WAIT"
SLOW, TIMES = 12, 10
ARMS = [("batch", 1), ("batch", 2), ("ready", 2), ("ready", 3)]
CONFIG = """
environment: benchmarks.stragglers:Parity
policy:
  max_prompt_tokens: 48
  max_new_tokens: 4
  lora: {rank: 4, alpha: 8}
  tiny: {hidden_size: 32, heads: 2, kv_heads: 1, vocab_size: 300, steps: 60, examples: 200}
grpo: {prompts_per_step: 8, group_size: 4, learning_rate: 0.01}
evaluation: {every: 0, problems: 4, final_problems: 4}
"""


class Parity(Environment):
    """Says whether a number is even; a task's group waits before it is graded."""

    def tasks(self) -> TaskSets:
        tasks = [
            Task(str(n), "number", "parity", f"Is {n} even?", "no" if n % 2 else "yes")
            for n in range(1000)
        ]
        return TaskSets(train=tasks[:900], val=tasks[900:])

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        async def graded(group: Sequence[Episode]) -> list[Rollout]:
            slow = random.Random(group[0].task.id).randrange(SLOW) == 0
            await asyncio.sleep(float(os.environ[WAIT]) * (TIMES if slow else 1))
            return [self.graded(episode) for episode in group]

        return await asyncio.gather(*map(graded, groups))

    def graded(self, episode: Episode) -> Rollout:
        task, sample = episode.task, episode.sample
        right = sample.text.strip() == task.reference
        reward = Reward(float(right), {"correctness": float(right)})
        return Rollout(task, sample, reward, gold=Gold(right, "equal", task.reference))

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        rng = random.Random(seed)
        answers = [rng.choices(["yes", "no"], k=completions) for _ in range(count)]
        return [Demonstration(self.messages(rng.choice(tasks)), some) for some in answers]


def main() -> None:
    from quickstart import trained  # a run imports this module, too, from elsewhere

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--wait", type=float, default=0.5, help="seconds of most groups")
    options = parser.parse_args()
    os.environ[WAIT] = str(options.wait)
    print("| order | max_staleness | staleness | seconds a step |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "stragglers.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        for order, most in ARMS:
            settings = [f"pipeline.order={order}", f"pipeline.max_staleness={most}"]
            settings.append(f"grpo.steps={options.steps}")
            name = f"{order}-{most}"
            run = trained(Path(folder), name, "--config", str(config), *settings)
            rows = read_metrics(run)[4:]
            mean = {key: fmean(r[key] for r in rows) for key in ("pipeline/staleness", "time/step")}
            stale, seconds = mean.values()
            print(f"| {order} | {most} | {stale:.2f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
