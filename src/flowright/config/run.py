"""The keys of `run`: where a run is kept."""

from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from flowright.config.section import Name, Positive, Section

Logger = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class RunSection(Section):
    """Where a run is kept, and what is kept of it."""

    name: str = Field(default="run", pattern=r"^\w[^/\x00-\x1f\x7f]*$")
    """Name of the run directory under `output_dir`."""
    output_dir: Path = Path("outputs")
    """Where run directories live."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    loggers: tuple[Logger, ...] = ()
    """Where each step's metrics go, too, under the same names: `wandb`, `mlflow`, `trackio`, each
    with `pip install -r requirements-loggers.txt`; see docs/viewing.md. `tensorboard` is there
    without being named, unless `run.tensorboard` is false."""
    project: Name = "flowright"
    """Of `loggers`: W&B's and trackio's project, MLflow's experiment."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=2)
    """How many of the newest to keep."""
    keep_best: bool = True
    """Keep the checkpoint of the best evaluation, too: by `val/gold`; where rewards are a matter
    of degree by `val/reward`, where else nothing has a known answer by `val/judge`. Ties go to the
    earlier. One with a larger share of unscored than `grpo.max_unscored` does not count."""
    keep_logprobs: bool = False
    """Keep each sampled token in the rollouts, with its log-probability by the sampler and by the
    learner before the update; see docs/viewing.md."""

    @field_validator("loggers")
    @classmethod
    def _each_once(cls, loggers: tuple[Logger, ...]) -> tuple[Logger, ...]:
        return tuple(dict.fromkeys(loggers))

    @model_validator(mode="after")
    def _one_word_on_tensorboard(self) -> "RunSection":
        if "tensorboard" in self.loggers and not self.tensorboard:
            raise ValueError("tensorboard: false, and loggers name it; leave one out")
        return self

    @property
    def packages(self) -> tuple[Logger, ...]:
        """Those of ``loggers`` that are packages of their own."""
        return tuple(name for name in self.loggers if name != "tensorboard")
