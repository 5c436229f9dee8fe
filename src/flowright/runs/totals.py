"""Totals of a run: its seconds and its requests to servers, by one rule for all screens.

Both are of what counts: recorded steps, evaluations while it trained, and the before/after table.
Not loading, a cold start, checkpoints, a step that was broken off, nor what a resume replaced.
"""

from collections.abc import Iterable

from flowright.core.formatting import Record, is_number, known_number, object_of

SERVERS = "servers/"


def seconds_by_phase(rows: Iterable[Record], evaluation: Record | None = None) -> dict[str, float]:
    """Return the seconds of ``training``, ``evaluations`` and ``comparison``, those that the
    records have. Their sum is a run's time on every screen. ``rows`` are those of
    ``metrics.jsonl``, ``evaluation`` is ``evaluation.json``."""
    found: dict[str, float] = {"training": 0.0, "evaluations": 0.0}
    for row in rows:
        step, measuring = (known_number(row.get(f"time/{name}")) for name in ("step", "evaluate"))
        found["evaluations"] += measuring or 0.0
        found["training"] += 0.0 if step is None else step - (measuring or 0.0)
    found["comparison"] = known_number((evaluation or {}).get("seconds")) or 0.0
    return {phase: seconds for phase, seconds in found.items() if seconds}


def requests(rows: Iterable[Record], evaluation: Record | None = None) -> dict[str, float]:
    """Return the sums of the metrics ``servers/<role>/<count>`` and
    ``servers/<role>/<host:port>/<count>``."""
    found: dict[str, float] = {}
    for row in (*rows, object_of(evaluation or {}, "servers")):
        for name, value in row.items():
            if name.startswith(SERVERS) and is_number(value):
                found[name] = found.get(name, 0.0) + value
    return found
