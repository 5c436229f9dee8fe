"""The keys of `run`: where a run is kept."""

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


class PlanServerSection(Section):
    """One role's servers. Default of all: what an earlier run or a probe has measured."""

    call_seconds: PositiveFloat | None = None
    """Mean seconds of one call, at the load of the run."""
    tokens_per_second: PositiveFloat | None = None
    """Completion tokens that all its servers write together with `llm.max_concurrency` requests in
    flight; read where `call_seconds` is not given."""
    tokens_in: NonNegativeFloat | None = None
    """Mean prompt tokens of a call."""
    tokens_out: NonNegativeFloat | None = None
    """Mean completion tokens of a call."""
    usd_per_million_in: NonNegativeFloat | None = None
    """Price of prompt tokens; default: none is paid for tokens."""
    usd_per_million_out: NonNegativeFloat | None = None
    """Price of completion tokens."""


class PlanSection(Section):
    """The plan of time and money that the dry run prints and the run is compared with at its end;
    what is neither given nor measured stays unknown. See docs/running_on_gpus.md."""

    earlier_run: Path | None = None
    """A run directory whose records are the measure. Default: the newest of `run.output_dir` with
    the same models."""
    probe: NonNegative = 0
    """So many problems are rolled out with each of the environment's baselines before the plan is
    made, to measure the servers where no earlier run has; they are asked for real."""
    calls_per_attempt: PositiveFloat | None = None
    """Mean calls of the executor in one attempt."""
    sampler_tokens_per_second: PositiveFloat | None = None
    """Completion tokens of the policy that are drawn; on a CPU with half of its
    prompts' tokens, each prompt once."""
    learner_tokens_per_second: PositiveFloat | None = None
    """Tokens of an update: prompts once, completions, each pass."""
    trainer_gpus: Positive | None = None
    """GPUs that train and sample. Default: as many as `physical_gpus`, 1 without that."""
    executor_gpus: Positive | None = None
    """GPUs behind executor and judge, as they were when measured."""
    usd_per_gpu_hour: NonNegativeFloat | None = None
    """Price of a GPU, the trainer's and the executor's alike."""
    executor: PlanServerSection = PlanServerSection()
    judge: PlanServerSection = PlanServerSection()
