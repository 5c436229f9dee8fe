"""A plan's basis from an earlier run: which one, and what its files show. Nothing is asked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

from zstandard import ZstdError

from flowright.app.plan.attempts import Attempt
from flowright.app.plan.basis import Basis, from_records, sampled, slots
from flowright.app.plan.replay import DRAWS, replayed
from flowright.config.llm import SIMULATED
from flowright.config.root import Config
from flowright.core.errors import RunError
from flowright.core.journal import changes_of
from flowright.runs.run_files import read_config, read_metrics, read_rollouts, rollout_steps

READ_STEPS = 6
"""Of an earlier run, evenly spread: so many steps' rollouts are read at most."""

_SAME = (
    *("environment", "strategy_model", "aflow_executor_model", "judge.model", "judge.mode"),
    *("executor.max_tokens", "policy.prompt", "policy.sampler", "policy.dtype"),
)


def from_run(run: Path, config: Config) -> Basis:
    """What the records of an earlier run show. Raises RunError where there are none to read."""
    try:
        return _read(run, config)
    except (KeyError, TypeError, ValueError, ZstdError) as error:
        raise RunError(
            f"plan.earlier_run: {run}: its records cannot be read ({type(error).__name__}: {error})"
            "; name another run"
        ) from error


def check_earlier_run(run: Path | None) -> None:
    """Whether there is such a run, without reading its records. Raises RunError."""
    if run is not None and not read_config(run):
        raise RunError(f"plan.earlier_run: {run}: no run; name a run directory")


def newest_alike(config: Config) -> Basis | None:
    """Of the run of the same models whose state changed last, of those that can be read."""
    states = config.run.output_dir.glob("*/state.json")
    wanted = _chosen(_plain(config), config)
    for state in sorted(states, key=lambda path: -path.stat().st_mtime):
        try:
            if _chosen(read_config(state.parent), config) == wanted:
                return from_run(state.parent, config)
        except RunError:  # it keeps nobody from starting another
            continue
    return None


def _read(run: Path, config: Config) -> Basis:
    before = read_config(run)
    rows = [row for row in read_metrics(run) if "time/update" in row]
    steps = rollout_steps(run)
    if not before or not rows or not steps:
        raise RunError(f"plan.earlier_run: {run}: no run with a step to measure by")
    rows = rows[1:] or rows  # the first one pays for whatever is first-time
    picked = {row["step"]: row for row in rows if row["step"] in steps}
    every = -(-len(picked) // READ_STEPS) or 1
    batches = {step: [*read_rollouts(run, step)] for step in [*picked][::every]}
    records = [record for batch in batches.values() for record in batch]
    if not records:
        raise RunError(f"plan.earlier_run: {run}: no step kept its rollouts; name another run")
    counted = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    source = f"as measured in {run} ({counted})"
    found = from_records(records, _sums(rows), source)
    grpo = before["grpo"]
    prompts = grpo["prompts_per_step"]
    size = prompts * grpo["group_size"]
    drawn = size * sum(row["tokens/completion_mean"] for row in rows)
    asked = prompts * sum(row["tokens/prompt_mean"] for row in rows)
    sampling, updating = (sum(row[f"time/{name}"] for row in rows) for name in ("sample", "update"))
    every_attempt = iter(found.attempts)
    attempts = [list(islice(every_attempt, len(batch))) for batch in batches.values()]
    took = [picked[step]["time/rollout"] for step in batches]
    differing = changes_of(_chosen(before, config), _chosen(_plain(config), config))
    return replace(
        found,
        figures={
            **found.figures,
            "policy_tokens_in": asked / prompts / len(rows),
            "policy_tokens_out": drawn / size / len(rows),
        },
        sampler=sampled(config, drawn, asked) / sampling if sampling > 0 else None,
        learner=grpo["epochs"] * (drawn + asked) / updating if updating > 0 else None,
        own=_own(attempts, took, before, config),
        assumed=tuple(f"the earlier run had another {line}" for line in differing),
    )


def _own(
    batches: Sequence[Sequence[Attempt]],
    took: Sequence[float],
    before: Mapping[str, Any],
    config: Config,
) -> float:
    """What an earlier run's rollouts took beyond their requests, for each attempt: of these
    batches, which took so many seconds. Where batches overlapped, the one's waiting is in the
    other's time, and nothing can be told."""
    if (before.get("pipeline") or {}).get("max_staleness"):
        return 0.0
    places = dict.fromkeys(slots(config), int(before["llm"]["max_concurrency"]))
    waited = [replayed(batch, places, seed) for batch in batches for seed in range(DRAWS)]
    beyond = sum(took) - sum(waited) / DRAWS
    return max(0.0, beyond) / sum(map(len, batches))


def _plain(config: Config) -> dict[str, Any]:
    return json.loads(config.model_dump_json())


def _chosen(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The settings that make runs' figures alike, by key."""
    keys = [*_SAME, *(["simulated.latency_ms"] if SIMULATED in config.models else [])]
    keys += config.section.plan_keys
    return {
        key: reduce(lambda value, name: (value or {}).get(name), key.split("."), plain)
        for key in keys
    }


def _sums(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(n for row in rows for n in row if n.startswith("servers/"))
    return {name: sum(row.get(name, 0.0) for row in rows) for name in names}
