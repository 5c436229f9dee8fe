"""How far off the plan of time is: runs against the embedded server, planned and measured.

A first run is the earlier run that others are planned by; they differ from it in their batch, in
the requests in flight and in how far rollouts run ahead of the learner. The last one is planned by
a probe of the server, with the sampler's and the learner's rates of the first. Latency is the
largest part of a step everywhere, so that other work on the machine matters little. Printed are
planned, measured and the ratio of seconds and of calls, each from the run's ``plan.json``.

    python benchmarks/time_plan.py [--latency 1500] [--steps 4]
"""

import argparse
import json
import tempfile
from pathlib import Path

from quickstart import trained

from flowright.runs.run_files import read_metrics

EARLIER = {
    "grpo.prompts_per_step": 6,
    "grpo.group_size": 6,
    "grpo.epochs": 1,
    "grpo.minibatches": 1,
    "grpo.learning_rate": 1e-6,  # the mix of workflows stays what it is
    "llm.max_concurrency": 12,
    "pipeline.max_staleness": 0,
    "evaluation.every": 0,
    "evaluation.final_problems": 24,
    "evaluation.samples": 1,
    "evaluation.baselines": False,
    "run.tensorboard": False,
    "run.checkpoint_every": 1000,
}
OTHERS = {
    "twice the batch": {"grpo.prompts_per_step": 12},
    "half the requests in flight": {"llm.max_concurrency": 6},
    "one step ahead": {"pipeline.max_staleness": 1},
    "one step ahead, 64 in flight": {"pipeline.max_staleness": 1, "llm.max_concurrency": 64},
}
PROBED = "planned by a probe"
FIGURES = ("training seconds", "comparison seconds", "executor_calls", "judge_calls")


def run(output: Path, name: str, settings: dict[str, object]) -> Path:
    return trained(output, name, *(f"{key}={value}" for key, value in settings.items()))


def rates(path: Path) -> dict[str, object]:
    """The first run's sampler and learner, as keys of the plan."""
    rows = read_metrics(path)[2:]
    size = EARLIER["grpo.prompts_per_step"] * EARLIER["grpo.group_size"]
    drawn = size * sum(row["tokens/completion_mean"] for row in rows)
    read = EARLIER["grpo.prompts_per_step"] * sum(row["tokens/prompt_mean"] for row in rows)
    return {
        "plan.sampler_tokens_per_second": drawn / sum(row["time/sample"] for row in rows),
        "plan.learner_tokens_per_second": (drawn + read) / sum(row["time/update"] for row in rows),
    }


def rows_of(name: str, path: Path) -> list[str]:
    compared = json.loads((path / "plan.json").read_text())["compared"]
    return [
        f"| {name} | {figure} | {each['planned']:.1f} | {each['measured']:.1f} | "
        f"{each['measured'] / each['planned']:.2f} |"
        for figure in FIGURES
        if (each := compared.get(figure))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--latency", type=float, default=1500.0, help="mean ms of a reply")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", choices=[*OTHERS, PROBED], help="beside the first run")
    options = parser.parse_args()
    shared = {
        **EARLIER,
        "simulated.latency_ms": options.latency,
        "grpo.steps": options.steps,
    }
    print(f"latency {options.latency:.0f} ms (simulated), {options.steps} steps")
    print("| run | figure | planned | measured | measured / planned |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as apart:
        first = run(Path(name), "first", shared)
        for other, settings in OTHERS.items():
            if options.only in (None, other):
                given = {"plan.earlier_run": first}
                path = run(Path(name), other.replace(" ", "-"), {**shared, **settings, **given})
                print("\n".join(rows_of(other, path)), flush=True)
        if options.only in (None, PROBED):
            given = {"plan.probe": 4, **rates(first)}
            path = run(Path(apart), "probed", {**shared, **given})  # no earlier run is there
            print("\n".join(rows_of(PROBED, path)), flush=True)


if __name__ == "__main__":
    main()
