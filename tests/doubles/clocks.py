"""What two runs of the same numbers may differ in."""

from collections.abc import Mapping


def without_clocks(row: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics but those of the clock."""
    return {
        name: value
        for name, value in row.items()
        if not name.startswith("time/") and not name.endswith(("/wait_seconds", "/wire_seconds"))
    }
