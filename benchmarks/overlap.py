"""What rollouts ahead of the learner save: a step's time with pipeline.max_staleness 0 and 1.

A real run (embedded policy, programs in Monty, code in the sandbox, HTTP to the embedded server,
judge, update) with few samples. The update is made longer by repeating it, and the rollouts by
the server's latency, as with a large model behind it: how many epochs and how much latency for
``--seconds`` of each is found first. Printed are the means of the steps after the first two, and
the step over the longer of its two stages: what waits (rollout) and what computes (sample and
update). Below 1 means that two batches were waiting at once.

    python benchmarks/overlap.py [--seconds 6] [--steps 8]
"""

import argparse
import logging
import statistics
import tempfile
from pathlib import Path

from quickstart import trained

from flowright.runs.run_files import read_metrics

SHAPE = (
    *("grpo.prompts_per_step=8", "grpo.group_size=8", "evaluation.every=0"),
    *("evaluation.final_problems=1", "evaluation.samples=1", "evaluation.baselines=false"),
    *("run.tensorboard=false", "run.checkpoint_every=1000", "grpo.kl_coefficient=0"),
)


def steps(output: Path, name: str, *more: str) -> list[dict[str, float]]:
    """The metrics of a run's steps but the first two, which fill the pipeline."""
    return read_metrics(trained(output, name, *SHAPE, *more))[3:]


def mean(rows: list[dict[str, float]], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="of either stage")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        output = Path(name)
        once = steps(output, "once", "grpo.steps=5", "grpo.epochs=1")
        epochs = max(
            1, round((options.seconds - mean(once, "time/sample")) / mean(once, "time/update"))
        )
        slow = steps(output, "slow", "grpo.steps=5", "simulated.latency_ms=500")
        per_ms = (mean(slow, "time/rollout") - mean(once, "time/rollout")) / 500
        latency = max(0.0, (options.seconds - mean(once, "time/rollout")) / per_ms)
        chosen = [f"grpo.steps={options.steps}", f"grpo.epochs={epochs}"]
        chosen += [f"simulated.latency_ms={latency:.0f}"]
        print(f"64 samples, {epochs} epochs, latency {latency:.0f} ms (simulated)")
        print("| staleness | sample | update | rollout | step | step / longer stage | busy |")
        print("|---|---|---|---|---|---|---|")
        for staleness in (0, 1):
            run = f"staleness-{staleness}"
            rows = steps(output, run, *chosen, f"pipeline.max_staleness={staleness}")
            sample, update, rollout, step = (
                mean(rows, f"time/{stage}") for stage in ("sample", "update", "rollout", "step")
            )
            print(
                f"| {staleness} | {sample:.2f} s | {update:.2f} s | {rollout:.2f} s | "
                f"{step:.2f} s | {step / max(rollout, sample + update):.2f} | "
                f"{mean(rows, 'time/busy_frac'):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
