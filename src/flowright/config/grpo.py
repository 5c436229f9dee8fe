"""The keys of `grpo`, `pipeline` and `ray`: the update, and the processes that share it."""

from math import isclose
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from flowright.config.section import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    ServersSection,
)
from flowright.core.plugins import Names

OBJECTIVES = Names(
    "objective",
    (
        *("grpo", "dr_grpo", "dapo", "gspo", "gsspo", "gmpo", "cispo", "sapo"),
        *("clip_cov", "kl_cov", "sft", "bradley_terry"),
    ),
)
ADVANTAGES = Names(
    "advantage",
    (
        *("group", "batch", "none", "rloo", "maxrl"),
        *("reinforce_plus_plus", "reinforce_plus_plus_baseline"),
    ),
)
KL_ESTIMATORS = Names("KL estimator", ("k1", "k2", "k3", "k3_weighted"))
CORRECTIONS = Names(
    "off-policy correction",
    ("ratio", "truncated", "masked", "sequence_truncated", "sequence_masked", "ignored"),
)
SCHEDULES = Names("schedule", ("constant", "cosine", "linear"))


class PairsSection(Section):
    """Options of `grpo.loss: bradley_terry`, which learns scores from preferences."""

    margin: NonNegativeFloat = 0.0
    """Required lead of the better answer, times the strength of the preference."""
    centring: NonNegativeFloat = 0.01
    """Weight of the squared sum of a pair's scores, which centres them at 0."""
    tie_weight: NonNegativeFloat = 0.0
    """Davidson's weight of a tie; 0 counts a tie as half a win for either."""


class TeacherSection(ServersSection):
    """On-policy distillation: a larger model scores the policy's tokens; see docs/learner.md."""

    model: str | None = None
    """Teacher, with the policy's tokenizer: the name that `base_urls` serve it under, or without
    servers a folder or Hugging Face id that is loaded beside the policy. Default: none."""
    weight: PositiveFloat = 1.0
    """Weight of log p_teacher - log p in a token's advantage."""
    reward_weight: NonNegativeFloat = 1.0
    """Weight of the rewards' advantages; 0 distils alone, for which no sample needs a reward."""


class TurnsSection(Section):
    """Credit of the turns of an attempt, where it has several."""

    credit: Literal["outcome", "discounted", "gigpo"] = "outcome"
    """`outcome`: every turn has its attempt's advantage. `discounted`: a turn has the sum of the
    rewards from it on, compared with the same turn of the group's other attempts. `gigpo`: to the
    outcome's is added that of the discounted sum among turns of the group in the same state."""
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Factor of a reward for each turn that it is away."""
    step_weight: NonNegativeFloat = 1.0
    """Weight of `gigpo`'s comparison of states."""
    mask_failed: bool = False
    """Do not train on turns that could not be parsed."""
    groups_at_once: NonNegative = 1
    """Groups that the local sampler decodes together: more take less time, and wait for the slowest
    answer among them; 0: all."""


CHUNK_TOKENS = 4096
"""Tokens per forward pass where nothing is known of the memory: products of so many rows are as
fast as a GPU is."""


class GrpoSection(Section):
    """A training step and its update."""

    steps: Positive = 200
    """Training steps."""
    prompts_per_step: Positive = 8
    """Problems per step."""
    group_size: int = Field(default=8, ge=2)
    """Attempts per problem."""
    epochs: Positive = 1
    """Passes over the samples of a step."""
    minibatches: Positive = 1
    """Optimizer updates per pass; fewer if too few groups have a signal."""
    loss: Annotated[str, AfterValidator(OBJECTIVES.check)] = "dapo"
    """Objective, as defined in `flowright.grpo.objectives`; `gsspo` is `gspo` turn by turn. `sft`
    and `bradley_terry` train on fixed data; nothing is sampled."""
    advantage_scale: Annotated[str, AfterValidator(ADVANTAGES.check)] = "group"
    """Divisor of a group's centred rewards: its standard deviation, the batch's, or none. `rloo`
    subtracts the mean of the group's other rewards; `maxrl` divides by the group's mean;
    `reinforce_plus_plus_baseline` divides by the deviation of all centred rewards;
    `reinforce_plus_plus` has the batch's mean and deviation, and no baseline of a group."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Lower clip of the ratio, 1 - clip_low. Default: 0.2; 3e-4 for `gspo` and `gsspo`, 0.33 for
    `gmpo`; none for `cispo`, `sapo` and `kl_cov`."""
    clip_high: PositiveFloat | None = None
    """Upper clip of the ratio, 1 + clip_high. Default: 0.2; 0.28 for `dapo`, 4e-4 for `gspo` and
    `gsspo`, 0.49 for `gmpo`, 4 for `cispo`; none for `sapo` and `kl_cov`."""
    ratio_cap: PositiveFloat | None = None
    """Largest ratio of `cispo`, as TRL's `epsilon_high`, instead of 1 + `clip_high`."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Largest ratio where the advantage is negative; null for none. `cispo`, `gmpo`, `sapo` and
    `kl_cov` ignore it."""
    top_entropy: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of tokens that the policy learns from, those of the highest entropy; below 1 it costs a
    forward pass."""
    kl_coefficient: NonNegativeFloat = 0.01
    """Weight of the KL to the base model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Apply the KL in the loss, per token, or in the reward, per sample and unscaled."""
    kl_estimator: Annotated[str, AfterValidator(KL_ESTIMATORS.check)] | None = None
    """Estimator of KL(policy || base). Default: `k3_weighted` in the loss, unbiased in value and
    gradient; `k1` in the reward, the only unbiased one there. `k2` has the gradient on policy only;
    `k3` has that of KL(base || policy), as GRPO and verl's `low_var_kl`."""
    kl_on: Literal["all", "signal"] = "all"
    """Groups whose KL and entropy count where they have a weight: all, as the coefficients mean, or
    those with a signal, which saves the passes of the others."""
    reference_every: Positive | None = None
    """Steps after which the KL's reference becomes the policy of that moment. Default: it stays the
    base model."""
    kl_every: NonNegative = 0
    """Steps after which `policy/kl` is measured where the loss has no KL, by one more forward pass;
    0: never."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    off_policy: Annotated[str, AfterValidator(CORRECTIONS.check)] | None = None
    """Correction for samples of an older policy or another engine: `ratio` clips the ratio to the
    sampler; `truncated` weights tokens by it, capped; `masked` drops tokens outside [1/cap, cap];
    `sequence_*` use one weight per sample, as `gspo` always does; `ignored` corrects nothing.
    Default: `truncated` if samples are stale or vLLM's, else `ratio`."""
    off_policy_cap: float = Field(default=2.0, ge=1)
    """Largest weight of `off_policy`."""
    turns: TurnsSection = TurnsSection()
    pairs: PairsSection = PairsSection()
    teacher: TeacherSection = TeacherSection()
    overlong: Literal["keep", "soft", "filter"] = "keep"
    """Completions cut at their token limit: `filter` drops them from the loss; `soft` lowers the
    reward over the last `overlong_buffer` tokens."""
    overlong_buffer: Positive | None = None
    """Tokens of `overlong: soft`. Default: a fifth of `policy.max_new_tokens`."""
    resample_rounds: NonNegative = 0
    """Extra sampling rounds that replace groups without a signal."""
    learning_rate: PositiveFloat = 1e-5
    """AdamW's learning rate after the warm-up."""
    warmup_steps: NonNegative = 0
    """Steps of linear warm-up."""
    warmup_share: Fraction | None = None
    """Share of the steps that is warm-up, instead of `warmup_steps`."""
    schedule: Annotated[str, AfterValidator(SCHEDULES.check)] = "constant"
    """Learning-rate schedule after the warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""
    adam_beta2: float = Field(default=0.99, gt=0, lt=1)
    """AdamW's second-moment decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradient clipping norm."""
    prefix_sharing: bool = True
    """Compute shared prompts once, in updates and in sampling; `false` is the plain reference path.
    """
    micro_batch_tokens: Positive | Literal["auto"] = "auto"
    """Prompt tokens, and completion tokens, per forward pass. `auto`: as many as fit on a GPU, else
    4096."""
    max_unscored: Fraction = 0.2
    """Share of unscored samples above which the run pauses."""

    @property
    def chunk_tokens(self) -> int:
        """``micro_batch_tokens``, where no memory plan has decided."""
        return CHUNK_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def divergence(self) -> str:
        """The KL estimator, given or by default."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3_weighted")

    @property
    def has_teacher(self) -> bool:
        """True for on-policy distillation."""
        return self.teacher.model is not None

    @property
    def needs_rewards(self) -> bool:
        """False where a teacher alone trains."""
        return not self.has_teacher or self.teacher.reward_weight > 0

    @property
    def trains_all(self) -> bool:
        """True where groups without a signal train, by their KL or their entropy."""
        weight = max(self.kl_coefficient, self.entropy_coefficient)
        return self.kl_on == "all" and weight > 0

    @model_validator(mode="after")
    def _check_estimator_fits_place(self) -> "GrpoSection":
        name, in_reward = self.divergence, self.kl_in == "reward"
        if self.kl_coefficient > 0 and name in KL_ESTIMATORS and (name == "k1") != in_reward:
            why = (
                "in the reward its gradient is not the KL's; give k1"
                if in_reward
                else "in the loss it has no gradient on average; give k3_weighted, or kl_in: reward"
            )
            raise ValueError(f"kl_estimator: {name}: {why}")
        return self

    @model_validator(mode="after")
    def _check_ratio_cap(self) -> "GrpoSection":
        cap, high = self.ratio_cap, self.clip_high
        if cap is not None and self.loss in OBJECTIVES and self.loss != "cispo":
            raise ValueError(f"ratio_cap: only cispo caps its ratio; {self.loss} has clip_high")
        if cap is not None and high is not None and not isclose(cap, 1 + high):
            raise ValueError(f"ratio_cap: {cap:g} and clip_high: {high:g}; give one of the two")
        return self

    @model_validator(mode="after")
    def _check_turns_compare_in_groups(self) -> "GrpoSection":
        credit, scale = self.turns.credit, self.advantage_scale
        is_across = scale in ADVANTAGES and scale not in ("group", "none", "rloo")
        if credit != "outcome" and is_across:
            raise ValueError(
                f"turns.credit: {credit} compares turns within a group; set advantage_scale: "
                "group, none or rloo"
            )
        return self

    @model_validator(mode="after")
    def _check_rounds_have_rewards(self) -> "GrpoSection":
        if self.resample_rounds and not self.needs_rewards:
            raise ValueError(
                "resample_rounds: with teacher.reward_weight 0 every group has a signal; leave it "
                "out"
            )
        return self

    def on(self, behind: bool, longest: int) -> "GrpoSection":
        """With every default that depends on the rest of the configuration, but for the
        objective's own: ``behind``, whether samples come from an older policy or another engine,
        and ``longest``, the token limit of an attempt. What is given stays."""
        off_policy = self.off_policy or ("truncated" if behind else "ratio")
        return self.model_copy(
            update={
                "off_policy": off_policy,
                "kl_estimator": self.divergence,
                "overlong_buffer": self.buffer(longest),
            }
        )

    def buffer(self, longest: int) -> int:
        """Tokens of `overlong: soft`, given the token limit of an attempt."""
        return self.overlong_buffer or max(1, longest // 5)


class PipelineSection(Section):
    """Overlap of rollouts and training."""

    max_staleness: Annotated[int, Field(ge=0, le=16)] | None = None
    """Updates between sampling a batch and training on it; 0 is strictly on-policy. Default: 1 on a
    GPU, 0 on a CPU and for the embedded policy; 2 with `order: ready`."""
    order: Literal["batch", "ready"] = "batch"
    """`batch`: a step trains on the batch of its number. `ready`: on the groups that end first,
    each sampled a step ahead and at most `max_staleness` (2 or more) old; `order.jsonl` in the run
    directory keeps them, and a resumed run takes the same."""
    in_flight_tokens: NonNegative = 0
    """Sample during updates: after this many tokens (such as 256) a completion goes on with the
    newest weights. Timing decides which. 0: sample between updates."""

    @model_validator(mode="after")
    def _check_groups_can_wait(self) -> "PipelineSection":
        if self.order == "ready" and self.max_staleness in (0, 1):
            raise ValueError("max_staleness: order: ready needs 2 or more; else no group can wait")
        return self

    @model_validator(mode="after")
    def _check_in_flight_fits_order(self) -> "PipelineSection":
        if self.in_flight_tokens and (self.order == "ready" or self.max_staleness == 0):
            raise ValueError(
                "in_flight_tokens: needs order: batch and a max_staleness of 1 or more; else set 0"
            )
        return self

    def on(self, device: str) -> "PipelineSection":
        """With every default that depends on the device."""
        if self.max_staleness is not None:
            return self
        behind = device == "cuda" or self.in_flight_tokens > 0
        staleness = 2 if self.order == "ready" else int(behind)
        return self.model_copy(update={"max_staleness": staleness})


class RolloutSection(Section):
    """Rollout workers; see docs/running_on_gpus.md."""

    workers: NonNegative = 0
    """Processes that roll out for each rank; 0: its own."""
    worker_cpus: Positive = 1
    """Cores that Ray reserves per worker."""
    episodes_per_worker: Positive = 256
    """Attempts at a worker at once."""
    timeout_seconds: PositiveFloat = 3600
    """Limit of a group's rollout, after which its worker is replaced."""


class RaySection(Section):
    """`flowright train --ray`: workers on a Ray cluster; see docs/running_on_gpus.md."""

    address: str | None = None
    """Address of a running cluster (`auto`: this machine's) or of its dashboard. Default:
    RAY_ADDRESS, else a new cluster."""
    workers: Positive = 2
    """Processes that share each batch."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 1
    """GPUs per worker; 0 trains on CPUs."""
    cpus_per_worker: Positive = 1
    """Cores reserved per worker."""
    max_failures: NonNegative = 0
    """Restarts from the last checkpoint after a worker is lost."""
