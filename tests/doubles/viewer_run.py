"""Runs for the viewer's tests: small, of invented records in the trainer's form."""

import random
from pathlib import Path
from typing import Any

from monitoring_run import make_rollout, record_of

from flowright.core.errors import Failure, Reason
from flowright.core.files import write_json
from flowright.runs.run_files import write_rollouts

HOSTILE = (
    "</pre></script></style><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\" onmouseover=alert(3) x='<!--<svg onload=alert(4)> \x1b[31m\u202e\u2066\ud800\x00"
    "<a href=javascript:alert(5)>]]>&lt;\u2028"
)
GROUPS, ATTEMPTS = 3, 4


def records_of(step: int, seed: int = 0) -> list[dict[str, Any]]:
    """Attempts of every outcome at problems that come again in each step."""
    rng = random.Random(f"{seed}/{step}")
    found: list[dict[str, Any]] = []
    for group in range(GROUPS):
        for index in range(ATTEMPTS):
            failure, judged = None, rng.choice([True, False, True, None])
            if rng.random() < 0.25:
                failure = Failure(rng.choice([Reason.SYNTAX, Reason.CRASHED]), "line of old", 2)
            solved = rng.random() < 0.6
            cost = rng.choice([0.0, 0.1])
            rollout = make_rollout(step, group, solved, judged, failure, cost, f"note{index}")
            record = record_of(rollout, step, group, index)
            record["task"]["id"] = f"task-{group}"
            found.append(record)
    return found


def write_run(path: Path, steps: int = 3, seed: int = 0) -> Path:
    """A finished run with metrics, settings and rollouts."""
    (path / "rollouts").mkdir(parents=True)
    write_json(path / "config.json", {"strategy_model": "tiny", "seed": seed})
    state = {"status": "finished", "step": steps, "steps": steps, "simulated": True}
    write_json(path / "state.json", {**state, "updated": 1.8e9, "policy": "tiny"})
    rows = []
    for step in range(1, steps + 1):
        write_rollouts(path, step, records_of(step, seed))
        share = step / (steps + 1)
        metrics = {"reward/mean": share, "gold/accuracy": share, "rollout/valid_frac": 0.9}
        rows.append({"step": step, "rollout/failed/syntax": 0.1, **metrics, "time/step": 2.0})
    lines = [str(row).replace("'", '"') for row in rows]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


def hostile(value: Any, text: str) -> Any:
    """A record with ``text`` in every string of it, names of fields aside."""
    if isinstance(value, str):
        return f"{value}{text}"
    if isinstance(value, dict):
        return {key: hostile(inner, text) for key, inner in value.items()}
    return [hostile(inner, text) for inner in value] if isinstance(value, list) else value
