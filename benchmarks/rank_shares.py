"""How evenly the tokens of an update are spread over ranks, by the lengths of a run's samples.

Printed is the mean over steps of the mean load of a rank over the largest: 1 means that no rank
waits. ``whole groups``: each rank takes every N-th group. ``even shares``: what the learner does.
Computed from token counts, not timed. A prompt counts where its samples are; what all prompts share
is not counted, as every rank computes it.

    python benchmarks/rank_shares.py RUN [--prompt 120] [--length 1]
        [--minibatches 1] [--ranks 2 4 8 16 32]
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from flowright.grpo.ranks import even_shares
from flowright.runs.run_files import read_metrics, read_rollouts

Costs = list[tuple[int, list[int]]]


def efficiency(costs: Costs, ranks: int) -> tuple[float, float]:
    """Mean over largest load, of whole groups and of even shares."""
    total = sum(prompt + sum(samples) for prompt, samples in costs)
    in_turn = [sum(p + sum(s) for p, s in costs[rank::ranks]) for rank in range(ranks)]
    even = [
        sum(costs[n][0] + sum(costs[n][1][i:j]) for n, i, j in share)
        for share in even_shares(costs, ranks)
    ]
    return total / ranks / max(in_turn), total / ranks / max(even)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompt", type=int, default=120, help="own tokens of a problem")
    parser.add_argument("--length", type=int, default=1, help="factor of the samples' lengths")
    parser.add_argument("--minibatches", type=int, default=1, help="of a step")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    options = parser.parse_args()
    steps: list[Costs] = []
    for row in read_metrics(options.run)[1:]:
        groups = defaultdict[int, list[int]](list)
        for record in read_rollouts(options.run, int(row["step"])):
            if record["advantage"]:
                groups[record["group"]].append(options.length * record["tokens"])
        steps.append([(options.prompt, samples) for samples in groups.values()])
    count = options.minibatches
    parts = [step[i::count] for step in steps for i in range(count)]
    print("| ranks | whole groups | even shares |\n| --- | --- | --- |")
    for ranks in options.ranks:
        found = [efficiency(costs, ranks) for costs in parts if costs]
        print(f"| {ranks} | {fmean(a for a, _ in found):.2f} | {fmean(b for _, b in found):.2f} |")


if __name__ == "__main__":
    main()
