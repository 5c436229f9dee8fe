"""The keys of `run`: where a run is kept."""

import re
from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from flowright.config.section import (
    Name,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
)

Logger = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class RunSection(Section):
    """The run directory and its contents."""

    name: str = "run"
    """Run directory under `output_dir`."""
    output_dir: Path = Path("outputs")
    """Folder of run directories."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    loggers: tuple[Logger, ...] = ()
    """Further loggers of each step's metrics; need requirements-loggers.txt."""
    project: Name = "flowright"
    """W&B and trackio project, MLflow experiment."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=2)
    """Newest checkpoints kept."""
    keep_best: bool = True
    """Keep the checkpoint of the best evaluation, by `val/gold`, `val/reward` for graded rewards,
    or `val/judge`."""
    keep_logprobs: bool = False
    """Keep sampled tokens with their log-probabilities by sampler and learner."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"\w[^/\x00-\x1f\x7f]*", name) or len(name.encode()) > 200:
            raise ValueError(
                "the name of a folder under output_dir: it begins with a letter, a digit or _, has "
                "no / and at most 200 bytes"
            )
        return name

    @field_validator("loggers")
    @classmethod
    def _drop_repeated(cls, loggers: tuple[Logger, ...]) -> tuple[Logger, ...]:
        return tuple(dict.fromkeys(loggers))

    @model_validator(mode="after")
    def _check_tensorboard(self) -> "RunSection":
        if "tensorboard" in self.loggers and not self.tensorboard:
            raise ValueError("tensorboard: false, and loggers name it; leave one out")
        return self

    @property
    def packages(self) -> tuple[Logger, ...]:
        """The ``loggers`` that are packages of their own."""
        return tuple(name for name in self.loggers if name != "tensorboard")


class PlanServerSection(Section):
    """Servers of one role. Default of all: as measured by an earlier run or a probe."""

    call_seconds: PositiveFloat | None = None
    """Mean seconds per call."""
    tokens_in: NonNegativeFloat | None = None
    """Mean prompt tokens per call."""
    tokens_out: NonNegativeFloat | None = None
    """Mean completion tokens per call."""
    usd_per_million_in: NonNegativeFloat | None = None
    """Price of prompt tokens."""
    usd_per_million_out: NonNegativeFloat | None = None
    """Price of completion tokens."""


class PlanSection(Section):
    """Forecast of time and cost, printed by the dry run; see docs/running_on_gpus.md."""

    earlier_run: Path | None = None
    """Run directory to measure by. Default: the newest with the same models."""
    probe: NonNegative = 0
    """Problems per baseline that are rolled out to measure the servers if no earlier run has."""
    calls_per_attempt: PositiveFloat | None = None
    """Mean executor calls per attempt."""
    sampler_tokens_per_second: PositiveFloat | None = None
    """Sampled tokens per second; on a CPU with half of the prompts' tokens."""
    learner_tokens_per_second: PositiveFloat | None = None
    """Tokens per second of an update."""
    executor_gpus: Positive | None = None
    """GPUs of executor and judge."""
    gpu_gb: PositiveFloat = 80
    """Memory of a GPU, for plans made on a machine without one."""
    usd_per_gpu_hour: NonNegativeFloat | None = None
    """Price of a GPU hour."""
    executor: PlanServerSection = PlanServerSection()
    judge: PlanServerSection = PlanServerSection()
