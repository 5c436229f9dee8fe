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
from flowright.core.plugins import Names

OBJECTIVES = Names(
    "objective", ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sft", "bradley_terry")
)
ADVANTAGES = Names("advantage", ("group", "batch", "none", "rloo", "reinforce_plus_plus_baseline"))
KL_ESTIMATORS = Names("KL estimator", ("k1", "k2", "k3"))
CORRECTIONS = Names(
    "off-policy correction",
    ("ratio", "truncated", "masked", "sequence_truncated", "sequence_masked", "ignored"),
)
SCHEDULES = Names("schedule", ("constant", "cosine", "linear"))


class PairsSection(Section):
    """Of `grpo.loss: bradley_terry`: scores of two answers, of which people prefer one."""

    margin: NonNegativeFloat = 0.0
    """By how much the better one should lead, times the strength that the data gives a preference;
    0: no margin."""
    centring: NonNegativeFloat = 0.01
    """Weight of the squared sum of a pair's scores, which holds them around 0."""
    tie_weight: NonNegativeFloat = 0.0
    """Davidson's weight of a tie as an outcome of its own; 0: a tie counts half as either."""


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
    """Optimizer updates per pass; fewer where fewer groups have a signal, so that none of them has
    much less than prompts_per_step / minibatches groups."""
    loss: Annotated[str, AfterValidator(OBJECTIVES.check)] = "dapo"
    """The objective: how token terms are made and averaged; see `flowright.grpo.objectives`. `sft`
    and `bradley_terry` learn from completions that the data gives, and nothing is sampled."""
    advantage_scale: Annotated[str, AfterValidator(ADVANTAGES.check)] = "group"
    """What a group's centred rewards are divided by: its own deviation, the batch's, nothing.
    `rloo`: rewards less the mean of the group's others; `reinforce_plus_plus_baseline`: centred
    rewards divided by their own deviation in the batch. A function of your own makes all advantages
    of a step."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The ratio is clipped at 1 - clip_low. Default: the objective's: 3e-4 of `gspo`, 0.2 of the
    others; `cispo` has none."""
    clip_high: PositiveFloat | None = None
    """The ratio is clipped at 1 + clip_high. Default: the objective's: 0.28 of `dapo`, 4e-4 of
    `gspo`, 4 of `cispo`, which caps a weight, 0.2 of the others."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Where an advantage is negative, its term counts the ratio as this at most (dual clip; all
    losses but `cispo`, whose cap does that); null: no bound."""
    kl_coefficient: NonNegativeFloat = 0.01
    """Weight of the KL to the base model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL counts: at each token of the loss, or summed over a sample in its reward, where
    advantage_scale does not scale it."""
    kl_estimator: Annotated[str, AfterValidator(KL_ESTIMATORS.check)] = "k3"
    """Schulman's estimators of the KL; k3 is never negative."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of an entropy bonus."""
    off_policy: Annotated[str, AfterValidator(CORRECTIONS.check)] | None = None
    """How the learner's distance from what sampled (an older policy, another engine) is corrected
    for: `ratio` by the clipped ratio itself; `truncated` by importance weights of tokens, the ratio
    then being to the learner's own start; `masked` by those between 1 / cap and cap, others being
    0; `sequence_truncated`, `sequence_masked` by one weight a sample, the product of its tokens';
    `ignored` not at all. Default: `truncated` where pipeline.max_staleness is 1 or more or the
    sampler is vllm, else `ratio`. Weights also correct for a scaffold that an attempt was sampled
    from and is not learned on; under `ratio` and `ignored` nothing does, and the ratio of such an
    attempt is to the learner's own start."""
    off_policy_cap: float = Field(default=2.0, ge=1)
    """Largest weight of `off_policy`."""
    pairs: PairsSection = PairsSection()
    overlong: Literal["keep", "soft", "filter"] = "keep"
    """`filter` leaves completions that were cut at their longest out of the loss; their rewards
    count in their group. `soft` takes from the reward what a completion has of the last
    overlong_buffer tokens before its longest, 1 for all of them."""
    overlong_buffer: Positive | None = None
    """Tokens of `overlong: soft`. Default: a fifth of policy.max_new_tokens."""
    resample_rounds: NonNegative = 0
    """Further rounds of a step that draw new problems in the place of groups without a signal; 0:
    such groups are only left out."""
    learning_rate: PositiveFloat = 1e-5
    """Of AdamW, after the warm-up."""
    warmup_steps: NonNegative = 0
    """Steps of linear warm-up."""
    warmup_share: Fraction | None = None
    """Share of the steps that is warm-up, in the place of `warmup_steps`."""
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

    def on(self, behind: bool, longest: int) -> "GrpoSection":
        """With every default that depends on the rest of the configuration, but for the
        objective's own: ``behind``, whether samples come from an older policy or another engine,
        and ``longest``, the token limit of completions. What is given stays."""
        off_policy = self.off_policy or ("truncated" if behind else "ratio")
        return self.model_copy(
            update={"off_policy": off_policy, "overlong_buffer": self.buffer(longest)}
        )

    def buffer(self, longest: int) -> int:
        """Tokens of `overlong: soft`, given the token limit of completions."""
        return self.overlong_buffer or max(1, longest // 5)


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
    """`train.py --ray`: the processes of a run on a Ray cluster; see docs/running_on_gpus.md."""

    address: str | None = None
    """Of a running cluster (`auto`: this machine's), or its dashboard's http address; default: that
    of the variable RAY_ADDRESS, else a new one."""
    workers: Positive = 2
    """Processes that share each batch."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 1
    """0 trains on CPUs, as the embedded policy does."""
    cpus_per_worker: Positive = 1
    """Cores that Ray keeps for each."""
    max_failures: NonNegative = 0
    """So often a run that lost a worker starts again by itself from its last checkpoint."""
