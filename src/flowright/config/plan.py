"""The keys of `plan`: what the dry run's plan of time and money may take as given."""

from pathlib import Path

from flowright.config.section import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section


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
