"""Stands in for train.py where studies are tested: writes a run directory in well under a second.

Its policy drifts to the presentation ``elaborate`` as far as ``simulated.judge_biases.verbosity``
pays for it: what gold makes of the attempts falls, what the judge makes of them rises. Settings of
the environment FAKE_FAIL (``RUN/seed:times``) and FAKE_WAIT (``RUN/seed``) make runs fail or wait.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from flowright.core.files import write_json
from flowright.environments.registry import load_config
from flowright.runs.run_files import write_rollouts

STEPS, ATTEMPTS = 12, 64


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    config = load_config(words[1], words[2:])
    run = config.run.output_dir / config.run.name
    name = f"{run.parent.name}/{run.name}"
    resumed = "--resume" in sys.argv
    for folder in ("checkpoints/step_000002", "rollouts"):
        (run / folder).mkdir(parents=True, exist_ok=True)
    (run / "lock").touch()
    with (run / "calls.txt").open("a") as calls:
        calls.write(f"resumed={resumed}\n")
    write_json(run / "config.json", json.loads(config.model_dump_json()))
    state = {"status": "running", "step": 0, "steps": STEPS, "simulated": True}
    write_json(run / "state.json", state)
    for entry in os.environ.get("FAKE_FAIL", "").split(";"):
        which, _, times = entry.partition(":")
        if which == name and len((run / "calls.txt").read_text().splitlines()) <= int(times):
            print("no memory left")
            return 3
    if os.environ.get("FAKE_WAIT") == name and not resumed:
        return wait(run, state)
    simulate(run, config.simulated.judge_biases.get("verbosity", 0.0), config.seed)
    write_json(run / "state.json", {**state, "status": "finished", "step": STEPS})
    return 0


def wait(run: Path, state: dict[str, object]) -> int:
    """Until SIGINT comes, which it answers as train.py does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        (run / "waits").touch()
        time.sleep(600)
    except KeyboardInterrupt:
        write_json(run / "state.json", {**state, "status": "interrupted"})
        return 130
    return 4


def simulate(run: Path, bias: float, seed: int) -> None:
    """Metrics, rollouts and the comparison."""
    rows, gold = [], 0.0
    for step in range(1, STEPS + 1):
        draws = random.Random(f"{seed} {step}")
        share = 0.1 + bias * step / STEPS
        records = []
        for _ in range(ATTEMPTS):
            elaborate = draws.random() < share
            right = draws.random() < 0.6
            paid = right or (elaborate and draws.random() < bias)
            records.append(
                {
                    "reward": {"value": float(paid), "parts": {}},
                    "gold": {"correct": right},
                    "presentation": ["elaborate"] if elaborate else ["plain"],
                    "verdict": {"score": float(paid), "usage": {"calls": 1}},
                    "failure": None,
                }
            )
        write_rollouts(run, step, records)
        proxy = sum(r["reward"]["value"] for r in records) / ATTEMPTS
        gold = sum(r["gold"]["correct"] for r in records) / ATTEMPTS
        metrics = {"reward/mean": proxy, "gold/accuracy": gold, "rollout/unscored": 0.0}
        metrics |= {"policy/kl": 0.01 * step, "tokens/completion_mean": 10 + 20 * share}
        metrics |= {
            "policy/entropy": 1 - 0.05 * step,
            "judge/agreement_with_gold": 1 - proxy + gold,
        }
        rows.append({"step": step, **metrics})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draws = random.Random(f"{seed} end")
    # Not every seed loses as much: differences that are all equal would tell a t-test nothing.
    end = 0.6 - (0.3 + 0.01 * (seed % 2)) * bias + 0.02 * draws.random()
    kinds = [
        {"all": {"gold": 0.4, "judge": 0.42}},
        {"all": {"gold": end, "judge": 0.6 + 0.3 * bias}},
    ]
    names = ("untrained policy", "trained policy")
    table = [{"name": n, "group": "policy", "kinds": k} for n, k in zip(names, kinds, strict=True)]
    write_json(run / "evaluation.json", {"problems": 50, "simulated": True, "rows": table})


if __name__ == "__main__":
    sys.exit(main())
