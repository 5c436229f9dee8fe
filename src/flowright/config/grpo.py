"""The keys of `grpo`, `pipeline` and `ray`: the update, and the processes that share it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from flowright.config.section import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
)
from flowright.plugins import Table

_OBJECTIVES = "flowright.grpo.objectives"

OBJECTIVES = Table(
    "objective",
    {n: f"{_OBJECTIVES}:{n.upper()}" for n in ("grpo", "dr_grpo", "dapo", "gspo", "cispo")},
)
"""Each an Objective: the weights of tokens, and their terms."""

ADVANTAGES = Table(
    "advantage",
    {
        "group": "flowright.grpo.advantages:by_group",
        "batch": "flowright.grpo.advantages:by_batch",
        "none": "flowright.grpo.advantages:centred",
    },
)
"""Functions of the scored rewards of all groups to their advantages."""

KL_ESTIMATORS = Table("KL estimator", {n: f"{_OBJECTIVES}:{n}" for n in ("k1", "k2", "k3")})
"""Functions of the tokens' log-probabilities under the policy and under the reference."""

CORRECTIONS = Table(
    "off-policy correction",
    {n: f"{_OBJECTIVES}:{n.upper()}" for n in ("ratio", "truncated", "ignored")},
)
"""Each a Correction: what the ratio is to, and a weight besides."""

SCHEDULES = Table(
    "schedule", {n: f"flowright.grpo.schedules:{n}" for n in ("constant", "cosine", "linear")}
)
"""Functions of the share of the run that is done to a factor of the learning rate."""


class GrpoSection(Section):
    """What a step consists of, and how it changes the policy."""

    steps: Positive = 200
    """Training steps of the run."""
    prompts_per_step: Positive = 8
    """Problems per step, P."""
    group_size: int = Field(default=8, ge=2)
    """Attempts at each problem, G."""
    epochs: Positive = 1
    """Passes over a step's samples."""
    minibatches: Positive = 1
    """Optimizer updates per pass."""
    loss: Annotated[str, AfterValidator(OBJECTIVES.check)] = "dapo"
    """The objective: how token terms are made and averaged; see `flowright.grpo.objectives`."""
    advantage_scale: Annotated[str, AfterValidator(ADVANTAGES.check)] = "group"
    """What a group's centred rewards are divided by; a function of your own makes all advantages of
    a step."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped at 1 + clip_high."""
    kl_coefficient: NonNegativeFloat = 0.01
    """Weight of the KL to the base model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL counts: at each token of the loss, or summed over a sample in its reward."""
    kl_estimator: Annotated[str, AfterValidator(KL_ESTIMATORS.check)] = "k3"
    """Schulman's estimators of the KL; k3 is never negative."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of an entropy bonus."""
    off_policy: Annotated[str, AfterValidator(CORRECTIONS.check)] = "ratio"
    """How the learner's distance from what sampled (an older policy, another engine) is corrected
    for: by the clipped ratio itself; by truncated importance weights, the ratio then being to the
    learner's own start; not at all."""
    off_policy_cap: float = Field(default=2.0, ge=1)
    """Largest weight of `off_policy: truncated`."""
    overlong: Literal["keep", "filter"] = "keep"
    """`filter` leaves completions that were cut at their longest out of the loss; their rewards
    count in their group."""
    resample_rounds: NonNegative = 0
    """Further rounds of a step that draw new problems in the place of groups without a signal; 0:
    such groups are only left out."""
    learning_rate: PositiveFloat = 1e-5
    """Of AdamW, after the warm-up."""
    warmup_steps: NonNegative = 0
    """Steps of linear warm-up."""
    schedule: Annotated[str, AfterValidator(SCHEDULES.check)] = "constant"
    """Course of the learning rate after the warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's, decoupled."""
    adam_beta2: float = Field(default=0.99, gt=0, lt=1)
    """AdamW's decay of the squared gradient's mean."""
    max_grad_norm: PositiveFloat = 1.0
    """Larger gradients are scaled down to this norm."""
    prefix_sharing: bool = True
    """Compute a group's prompt, and what all prompts begin with, once, in updates and in sampling;
    off is the plain reference path."""
    micro_batch_tokens: Positive = 4096
    """Tokens of prompts, and of completions, in one forward pass (padded ones on the plain path);
    memory grows with it."""
    max_unscored: Fraction = 0.2
    """A step with a larger share of unscored samples pauses the run (law 1)."""


class PipelineSection(Section):
    """How far sampling and rollouts run ahead of the learner."""

    max_staleness: Annotated[int, Field(ge=0, le=16)] | None = None
    """Updates between the policy that samples a batch and the one it is trained on. 0: strictly in
    turn; 1: the next batch is rolled out while this one is trained on. Default: 1 on a GPU; 0 on a
    CPU, and for the embedded policy."""

    def on(self, device: str) -> "PipelineSection":
        """With every default that depends on the device."""
        if self.max_staleness is not None:
            return self
        return self.model_copy(update={"max_staleness": int(device == "cuda")})


class RaySection(Section):
    """`train.py --ray`: the processes of a run on a Ray cluster; see docs/scaling.md."""

    address: str | None = None
    """Of a running cluster (`auto`: this machine's); default: a new one."""
    workers: Positive = 2
    """Processes that share each batch."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 1
    """0 trains on CPUs, as the embedded policy does."""
    cpus_per_worker: Positive = 1
    """Cores that Ray keeps for each."""
    max_failures: NonNegative = 0
    """So often a run that lost a worker starts again by itself from its last checkpoint."""
