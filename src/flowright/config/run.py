"""The keys of `run`: where a run is kept."""

from pathlib import Path

from pydantic import (
    Field,
)

from flowright.config.section import Positive, Section


class RunConfig(Section):
    """Where a run is kept, and what is kept of it."""

    name: str = Field(
        default="run",
        pattern=r"^\w[^/]*$",
        description="Name of the run directory under `output_dir`.",
    )
    output_dir: Path = Field(default=Path("outputs"), description="Where run directories live.")
    tensorboard: bool = Field(default=True, description="Write TensorBoard event files.")
    checkpoint_every: Positive = Field(default=10, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(default=3, ge=2, description="How many of the newest to keep.")
