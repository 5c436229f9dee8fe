"""What a plan of time and money stands on: what an attempt is like and how fast the parts are. Read
here from records of attempts; where these come from is not decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowright.app.device import planned_device
from flowright.app.plan.attempts import (
    EXECUTOR,
    JUDGE,
    Attempt,
    attempt_of,
    like_the_executor,
    scaled,
)
from flowright.config.root import Config

ROLES = (EXECUTOR, JUDGE)
USAGE = {"calls": "calls", "tokens_in": "prompt_tokens", "tokens_out": "completion_tokens"}
"""What a role is asked, and the name of it in a record's usage and in the metrics ``servers/*``."""
FIGURES = (
    *("policy_tokens_in", "policy_tokens_out"),
    *(f"{role}_{what}" for role in ROLES for what in USAGE),
)
"""Of an attempt: tokens of its prompt and completion, and what large models are asked for it."""

READING = 0.5
"""What a token that is read costs on a CPU, of one that is drawn; a GPU reads a whole prompt in the
time of a few. By SmolLM2-135M: 29 s for a step of 1,800 and 3,650, 45 s for an evaluation of 9,000
and 2,280."""


@dataclass(frozen=True, slots=True)
class Basis:
    """``figures`` are means of an attempt by FIGURES, ``bounds`` those that are no means but the
    most that there can be. ``attempts`` stand for all others; their requests' seconds are known for
    the roles in ``timed``. ``sampler`` and ``learner`` are tokens a second; the sampler's are those
    of :func:`sampled`. ``own``: seconds of
    our own computing that an attempt adds to a batch's rollouts."""

    source: str
    figures: Mapping[str, float] = field(default_factory=dict)
    bounds: frozenset[str] = frozenset()
    attempts: Sequence[Attempt] = ()
    timed: frozenset[str] = frozenset()
    sampler: float | None = None
    learner: float | None = None
    own: float = 0.0
    assumed: tuple[str, ...] = ()


def sampled(config: Config, drawn: float, read: float) -> float:
    """The tokens that count for the sampler's time, of completions and of prompts, each prompt
    once."""
    reads = config.policy.sampler == "local" and planned_device(config) == "cpu"
    return drawn + READING * read if reads else drawn


def slots(config: Config) -> dict[str, int]:
    """Requests in flight by who shares them, for :func:`flowright.app.plan.replay.replayed`."""
    shared = config.judge_model == config.aflow_executor_model
    pools = [f"{EXECUTOR}+{JUDGE}"] if shared else list(ROLES)
    return dict.fromkeys(pools, config.llm.max_concurrency)


def from_records(
    records: Sequence[Mapping[str, Any]],
    counts: Mapping[str, float],
    source: str,
    assumed: tuple[str, ...] = (),
) -> Basis:
    """``counts``: the metrics ``servers/*``, whose seconds on the wire leave queues out."""
    usages = {
        EXECUTOR: [((record.get("execution") or {}).get("usage") or {}) for record in records],
        JUDGE: [((record.get("verdict") or {}).get("usage") or {}) for record in records],
    }
    figures = {
        f"{role}_{name}": sum(usage.get(key, 0) for usage in some) / len(records)
        for role, some in usages.items()
        for name, key in USAGE.items()
    }
    means = {
        role: counts[f"servers/{role}/wire_seconds"] / calls
        for role in ROLES
        if (calls := counts.get(f"servers/{role}/calls", 0.0))
        and f"servers/{role}/wire_seconds" in counts
    }
    attempts = scaled(like_the_executor([attempt_of(record) for record in records]), means)
    return Basis(source, figures, frozenset(), attempts, frozenset(ROLES), assumed=assumed)
