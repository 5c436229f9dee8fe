"""The keys of `run`: where a run is kept."""

from pathlib import Path

from pydantic import (
    Field,
)

from flowright.config.section import Positive, Section


class RunSection(Section):
    """Where a run is kept, and what is kept of it."""

    name: str = Field(default="run", pattern=r"^\w[^/\x00-\x1f\x7f]*$")
    """Name of the run directory under `output_dir`."""
    output_dir: Path = Path("outputs")
    """Where run directories live."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=2)
    """How many of the newest to keep."""
    keep_best: bool = True
    """Keep the checkpoint of the best evaluation, too: by `val/gold`; where rewards are a matter
    of degree by `val/reward`, where else nothing has a known answer by `val/judge`. Ties go to the
    earlier. One with a larger share of unscored than `grpo.max_unscored` does not count."""
