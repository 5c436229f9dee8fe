"""Every knob of Flowright: its name, type, bounds, default and meaning. Nothing is done here.

One YAML file becomes one frozen :class:`Config`. All mistakes are reported at once, one line each,
as ``file: key: what is wrong``, with a suggestion for a misspelt key. docs/configuration.md is
generated from these fields (``python scripts/write_config_docs.py``).
"""

import difflib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from flowright.errors import ConfigError

SIMULATED = "simulated"
"""The name of the model that the embedded server stands in for."""

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's --max-lora-rank may be; it serves adapters of that rank and below."""

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
Root = TypeVar("Root", bound="Section")


class Section(BaseModel):
    """Base of every section: frozen, and unknown keys are mistakes."""

    # A name that looks like a number (run.name=2024) is still a name.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if (
            isinstance(value, bool)
            and cls.model_fields[str(info.field_name)].annotation is not bool
        ):
            raise ValueError("this is not a key for true or false")
        return value


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


class LoraSection(Section):
    """The adapter: the only weights that are trained."""

    rank: Positive = Field(default=64, description="Rank r of the adapter.")
    alpha: Positive = Field(default=64, description="Scale: the adapter's output is times alpha/r.")
    target_modules: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        description="Names of the linear layers that get an adapter.",
    )

    @field_validator("target_modules")
    @classmethod
    def _the_head_stays_as_it_is(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in ("lm_head", "embed_tokens"):
            if name in names:
                raise ValueError(f"{name} stays frozen: its gradient is not computed")
        return names


class TinySection(Section):
    """The embedded policy's cold start; read only when `strategy_model` is `tiny`."""

    cache_dir: Path = Field(default=Path("data/cache"), description="Where the checkpoint is kept.")
    hidden_size: Positive = Field(default=192, description="Width of the residual stream.")
    layers: Positive = Field(default=2, description="Decoder layers.")
    heads: Positive = Field(default=6, description="Attention heads.")
    kv_heads: Positive = Field(default=2, description="Heads of keys and values.")
    vocab_size: int = Field(default=1024, ge=300, description="Size of the trained tokenizer.")
    examples: Positive = Field(default=2880, description="Problems drawn for the cold start.")
    programs: Positive = Field(default=2, description="Programs drawn for each of them.")
    steps: Positive = Field(default=360, description="Supervised steps of the cold start.")
    batch_size: Positive = Field(default=8, description="Problems per supervised step.")
    learning_rate: float = Field(default=3e-3, gt=0, description="AdamW: embeddings and norms.")
    matrix_learning_rate: float = Field(default=0.04, gt=0, description="Muon: matrices.")
    seed: int = Field(default=0, description="Of what is drawn and of the first weights.")


class VllmSection(Section):
    """vLLM servers that sample from the policy; read only where `policy.sampler` is `vllm`. See
    docs/running_on_gpus.md."""

    base_urls: tuple[str, ...] = Field(
        default=("http://localhost:8003/v1",),
        description="Addresses up to and with `/v1`, one a server process.",
    )
    api_key: str = Field(
        default="sk-none",
        exclude=True,  # from config.json in the run directory
        description="Of all of them; better `${NAME}`.",
    )
    no_proxy: str | None = Field(default=None, description="Hosts reached without the proxy.")
    model_name: str | None = Field(
        default=None,
        description="The name under which they serve the base model; default: `strategy_model`.",
    )
    adapter_dir: Path | None = Field(
        default=None,
        description="Where adapters are written for the servers, in a folder named as the run; "
        "they must see the same path. Default: `adapters` in the run directory.",
    )
    max_loras: int = Field(
        default=2,
        ge=2,
        description="Adapters kept on a server, so that requests under way with an earlier one can "
        "end.",
    )
    max_concurrency: Positive = Field(
        default=256, description="Requests in flight, over all servers."
    )
    request_seconds: Seconds = Field(
        default=600.0, description="Timeout of one try at a completion."
    )
    load_seconds: Seconds = Field(default=120.0, description="Timeout of loading an adapter.")
    attempts: Positive = Field(
        default=5, description="Tries of a request that a server answers with an error."
    )
    backoff_seconds: Seconds = Field(default=0.5, description="First pause between tries; doubles.")
    wait_seconds: float = Field(
        default=600.0,
        ge=0,
        description="So long a request waits while no server can be used; then the run pauses.",
    )
    tolerance: float = Field(
        default=0.1,
        gt=0,
        description="Mean difference (nats a token) that a server's log-probabilities of the probe "
        "text may have to the learner's; fits bfloat16.",
    )

    @field_validator("base_urls")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [url for url in urls if not re.fullmatch(r"https?://\S+", url)]
        if wrong or not urls or len({*urls}) < len(urls):
            raise ValueError(f"different URLs such as http://localhost:8003/v1, not {list(urls)}")
        return tuple(url.rstrip("/") for url in urls)


class PolicySection(Section):
    """The model that writes workflows, and how it is sampled."""

    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Of the base weights."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="`auto` is the GPU where there is one."
    )
    prompt: Literal["full", "compact"] = Field(
        default="full", description="Form of the operators' documentation in the prompt."
    )
    max_prompt_tokens: Positive = Field(
        default=2048,
        description="Longer questions are cut in the middle and counted (`prompt/truncated`).",
    )
    max_new_tokens: Positive = Field(default=512, description="Longest completion.")
    temperature: float = Field(default=1.0, gt=0, description="Of the samples that are trained on.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Below 1 the learner's ratio is biased."
    )
    sampler: Literal["local", "vllm"] = Field(
        default="local",
        description="Who draws completions: the trainer's process, or servers that get each "
        "step's adapter.",
    )
    decode_batch: Positive = Field(
        default=256, description="Rows decoded at once by the local sampler."
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Less memory for about a third more computing."
    )
    sharded: bool = Field(
        default=False,
        description="Split the frozen weights of the layers among the processes of a node, for a "
        "model that does not fit on one card; needs several processes and `sampler: vllm`.",
    )
    lora: LoraSection = LoraSection()
    vllm: VllmSection = VllmSection()
    tiny: TinySection = TinySection()

    @model_validator(mode="after")
    def _shards_are_sampled_elsewhere(self) -> "PolicySection":
        if self.sharded and self.sampler == "local":
            raise ValueError(
                "sharded with sampler local, which decodes with weights that one process has: set "
                "policy.sampler: vllm (docs/running_on_gpus.md)"
            )
        return self

    @model_validator(mode="after")
    def _a_server_takes_the_rank(self) -> "PolicySection":
        if self.sampler == "vllm" and self.lora.rank > MAX_LORA_RANKS[-1]:
            raise ValueError(
                f"lora.rank {self.lora.rank} with sampler vllm, which takes {MAX_LORA_RANKS[-1]} "
                "at most"
            )
        return self


class GrpoSection(Section):
    """What a step consists of, and how it changes the policy."""

    steps: Positive = Field(default=200, description="Training steps of the run.")
    prompts_per_step: Positive = Field(default=8, description="Problems per step, P.")
    group_size: int = Field(default=8, ge=2, description="Attempts at each problem, G.")
    epochs: Positive = Field(default=1, description="Passes over a step's samples.")
    minibatches: Positive = Field(default=1, description="Optimizer updates per pass.")
    loss: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = Field(
        default="dapo", description="How token terms are averaged; see `flowright.grpo.loss`."
    )
    advantage_scale: Literal["group", "batch", "none"] = Field(
        default="group", description="What a group's centred rewards are divided by."
    )
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="The ratio is clipped at 1 - clip_low."
    )
    clip_high: float = Field(
        default=0.2, gt=0, description="The ratio is clipped at 1 + clip_high."
    )
    kl_coefficient: float = Field(
        default=0.01, ge=0, description="Weight of the KL to the base model."
    )
    kl_in: Literal["loss", "reward"] = Field(
        default="loss",
        description="Where the KL counts: at each token of the loss, or summed over a sample in "
        "its reward.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="Schulman's estimators of the KL; k3 is never negative."
    )
    entropy_coefficient: float = Field(default=0.0, ge=0, description="Weight of an entropy bonus.")
    off_policy: Literal["ratio", "truncated", "ignored"] = Field(
        default="ratio",
        description="How the learner's distance from what sampled (an older policy, another "
        "engine) is corrected for: by the clipped ratio itself; by truncated importance weights, "
        "the ratio then being to the learner's own start; not at all.",
    )
    off_policy_cap: float = Field(
        default=2.0, ge=1, description="Largest weight of `off_policy: truncated`."
    )
    overlong: Literal["keep", "filter"] = Field(
        default="keep",
        description="`filter` leaves completions that were cut at their longest out of the loss; "
        "their rewards count in their group.",
    )
    resample_rounds: int = Field(
        default=0,
        ge=0,
        description="Further rounds of a step that draw new problems in the place of groups "
        "without a signal; 0: such groups are only left out.",
    )
    learning_rate: float = Field(default=1e-5, gt=0, description="Of AdamW, after the warm-up.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        default="constant", description="Course of the learning rate after the warm-up."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's, decoupled.")
    adam_beta2: float = Field(
        default=0.99, gt=0, lt=1, description="AdamW's decay of the squared gradient's mean."
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Larger gradients are scaled down to this norm."
    )
    prefix_sharing: bool = Field(
        default=True,
        description="Compute a group's prompt, and what all prompts begin with, once, in updates "
        "and in sampling; off is the plain reference path.",
    )
    micro_batch_tokens: Positive = Field(
        default=4096,
        description="Tokens of prompts, and of completions, in one forward pass (padded ones on "
        "the plain path); memory grows with it.",
    )
    max_unscored: Fraction = Field(
        default=0.2,
        description="A step with a larger share of unscored samples pauses the run (law 1).",
    )


class PipelineSection(Section):
    """How far sampling and playing run ahead of the learner."""

    max_staleness: int = Field(
        default=0,
        ge=0,
        le=16,
        description="Updates between the policy that samples a batch and the one it is trained "
        "on. 0: strictly in turn; 1: the next batch is played while this one is trained on.",
    )


class RaySection(Section):
    """`train.py --ray`: the processes of a run on a Ray cluster; see docs/running_on_gpus.md."""

    address: str | None = Field(
        default=None,
        description="Of a running cluster (`auto`: this machine's); default: a new one.",
    )
    workers: Positive = Field(default=2, description="Processes that share each batch.")
    gpus_per_worker: Annotated[float, Field(ge=0)] = Field(
        default=1, description="0 trains on CPUs, as the embedded policy does."
    )
    cpus_per_worker: Positive = Field(default=1, description="Cores that Ray keeps for each.")
    max_failures: int = Field(
        default=0,
        ge=0,
        description="So often a run that lost a worker starts again by itself from its last "
        "checkpoint.",
    )


class RewardSection(Section):
    """What each outcome of an attempt is worth."""

    invalid: float = Field(
        default=-0.2, description="A program that cannot be parsed or validated."
    )
    crashed: float = Field(default=-0.1, description="A program that fails while running.")
    wrong: float = Field(default=0.0, description="An answer that the judge calls wrong.")
    right: float = Field(default=1.0, description="An answer that the judge calls right.")
    cost_weight: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="Ranks right answers of a group by tokens; 0 turns it off.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "RewardSection":
        if not self.invalid <= self.crashed <= self.wrong < self.right:
            raise ValueError("must be ordered invalid <= crashed <= wrong < right")
        return self


class WorkflowSection(Section):
    """Budgets of one workflow. Exceeding one is the policy's fault."""

    max_llm_calls: Positive = Field(default=16, description="Calls of the large model.")
    max_tokens: Positive = Field(
        default=64_000, description="Prompt and completion tokens together."
    )
    max_concurrency: Positive = Field(
        default=8, description="Operator calls of one workflow in flight."
    )
    own_seconds: Seconds = Field(default=2.0, description="The program's own computing.")
    total_seconds: Seconds = Field(default=600.0, description="Waiting for the model included.")
    memory_mb: Positive = Field(default=64, description="Of the program, in MiB.")
    max_prompt_chars: Positive = Field(
        default=60_000, description="Of one operator call's arguments."
    )
    max_answer_chars: Positive = Field(default=20_000, description="Of the final answer.")
    workers: int = Field(
        default=0, ge=0, description="Interpreter processes; 0 means one per core."
    )
    in_flight: Positive = Field(default=256, description="Workflows running at once.")


class LlmSection(Section):
    """How every role talks to its server. Models are named in `file`."""

    file: Path = Field(
        default=Path("config/aflow_llm.yaml"), description="Names of models and servers."
    )
    max_concurrency: Positive = Field(default=64, description="Requests in flight per model.")
    attempts: Positive = Field(default=5, description="Tries of one request, first included.")
    request_seconds: Seconds = Field(default=120.0, description="Timeout of one try.")
    deadline_seconds: Seconds = Field(
        default=300.0, description="Of one request with all its tries."
    )
    backoff_seconds: Seconds = Field(default=0.5, description="First pause between tries; doubles.")
    reconnect_seconds: float = Field(
        default=60.0,
        ge=0,
        description="So long a server that refuses connections is waited for, within the deadline, "
        "before that counts as tries.",
    )


class ExecutorSection(Section):
    """How operators ask the large model."""

    temperature: float = Field(default=0.7, ge=0, description="Of the operators' requests.")
    max_tokens: Positive = Field(default=4096, description="Completion budget of one call.")
    reasoning_effort: Literal["low", "medium", "high"] | None = Field(
        default=None, description="Sent with requests to reasoning models; default: not sent."
    )
    programmer_tries: Positive = Field(default=3, description="Programs written before giving up.")


class JudgeServiceSection(Section):
    """A judge service, and how it is asked."""

    judge_url: str = Field(
        pattern=r"^https?://\S+$", description="Of the service, such as http://localhost:8003."
    )
    api_key: str | None = Field(
        default=None,
        exclude=True,  # from config.json in the run directory
        description="The service's, if it asks for one; better `${NAME}`.",
    )
    max_batch_size: Positive = Field(default=16, description="Questions in one request.")
    batch_timeout: float = Field(
        default=0.05, ge=0, description="Seconds that a question waits for others to go with it."
    )
    max_concurrent_requests: Positive = Field(default=32, description="Requests in flight.")
    timeout: Seconds = Field(default=30.0, description="Of one request.")
    max_retries: int = Field(default=3, ge=0, description="Further tries of a request.")


class JudgeSection(Section):
    """Who decides whether an answer is right; see docs/judges.md."""

    model: str | None = Field(
        default=None, description="Name of the judge; default: the executor's."
    )
    service: JudgeServiceSection | None = Field(
        default=None,
        description="A judge service that judges in the model's place; what it asks for is its own "
        "configuration.",
    )
    mode: Literal["judge", "judge_with_rule_fallback", "rules_then_judge", "rules"] = Field(
        default="judge",
        description="Who decides: the model; the model, and rules (tagged) where it fails; rules, "
        "and the model where they can't; rules alone.",
    )
    ask: Literal["true_false", "score", "pointwise", "pairwise", "rubric", "multi_aspect"] = Field(
        default="true_false",
        description="What the model is asked for: right or wrong; a score from 0 to 1; a grade "
        "from 0 to 4; the better of two answers; which criteria are met; a grade for each of "
        "`aspects` and one overall.",
    )
    aspects: Mapping[str, str] = Field(
        default_factory=lambda: {
            "correctness": "Is what it states right?",
            "completeness": "Does it do everything that is asked?",
            "clarity": "Can its reader follow it?",
        },
        description="For `multi_aspect`: names, and the question that each stands for.",
    )
    right_from: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="A score from which an answer counts as right."
    )
    criteria_per_call: Positive = Field(
        default=8, description="For `rubric`: how many the model is asked about at once."
    )
    both_orders: bool = Field(
        default=True,
        description="For `pairwise`: ask twice, with each answer first once; else once, in an "
        "order that is drawn.",
    )
    on_disagreement: Literal["tie", "abstain"] = Field(
        default="tie",
        description="For `pairwise`: where the better answer depends on the order of the two.",
    )
    samples: Positive = Field(
        default=1, description="Verdicts asked for each query, which vote; see `min_confidence`."
    )
    sample_temperature: float = Field(
        default=0.7, ge=0, description="Of the first try, where there are several samples."
    )
    min_confidence: Fraction = Field(
        default=0.0,
        description="Share of the votes (samples, panel) that agree, below which there is no "
        "verdict.",
    )
    gate: bool = Field(
        default=True,
        description="Call empty answers, bare punctuation and master keys wrong without asking.",
    )
    max_attempts: Positive = Field(default=4, description="Tries; each changes something.")
    deadline_seconds: Seconds = Field(
        default=120.0, description="Of one verdict with all its tries."
    )
    max_tokens: Positive = Field(
        default=512, description="First try's budget; doubles after a cut."
    )
    temperature: float = Field(default=0.0, ge=0, description="Of the first try.")
    reasoning_effort: Literal["low", "medium", "high"] | None = Field(
        default=None, description="As `executor.reasoning_effort`."
    )
    panel: tuple[str, ...] = Field(
        default=(), description="Names of further judges; all are asked and vote."
    )
    combine: Literal["majority", "mean", "median"] = Field(
        default="majority", description="How the panel's verdicts become one."
    )
    quorum: Positive = Field(
        default=1, description="Members that must have a verdict; the others leave the vote."
    )
    weights: tuple[float, ...] = Field(
        default=(), description="Of the judge and the panel's members, in order; default: equal."
    )
    cache_size: int = Field(
        default=0, ge=0, description="Verdicts kept for equal queries; 0 asks every time."
    )
    breaker_threshold: int = Field(
        default=0,
        ge=0,
        description="Failures in a row after which a judge that is down is left alone; 0: never.",
    )
    breaker_seconds: Seconds = Field(default=30.0, description="... for so long.")
    min_agreement: Fraction = Field(
        default=0.0, description="Of verdicts with gold, over a step; below it `low_agreement`."
    )
    low_agreement: Literal["warn", "stop", "rules"] = Field(
        default="warn",
        description="Say so; pause the run, untrained; let rules decide that step's samples.",
    )

    @model_validator(mode="after")
    def _panel_fits(self) -> "JudgeSection":
        seats = 1 + len(self.panel)
        if self.quorum > seats:
            raise ValueError(f"a quorum of {self.quorum} with {seats} judges")
        if self.weights and (len(self.weights) != seats or min(self.weights) <= 0):
            raise ValueError(f"weights must be {seats} positive numbers, one a judge")
        if self.mode == "rules" and (self.panel or self.service is not None):
            raise ValueError("a panel or a service with mode rules: the rules ask nobody")
        return self

    @model_validator(mode="after")
    def _aspects_have_names(self) -> "JudgeSection":
        names = [name.casefold() for name in self.aspects]
        plain = all(re.fullmatch(r"[a-z][a-z_ -]{0,39}", name) for name in names)
        if not names or not plain or len(set(names) - {"overall", "reason"}) < len(self.aspects):
            raise ValueError(
                "aspects: different names of letters, `_`, `-` and spaces; not overall or reason"
            )
        return self


class JudgeServerSection(Section):
    """The judge as an HTTP service, and its limits; see docs/judge_service.md."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8003, ge=0, le=65535, description="Port; 0 takes any free one.")
    api_key: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]*$",
        description="Asked of every caller; better `${NAME}`. Null or empty: nobody is asked.",
    )
    max_body_bytes: Positive = Field(default=2 << 20, description="Of one request; beyond: 413.")
    max_batch: Positive = Field(default=64, description="Members of one batch; beyond: 413.")
    max_in_flight: Positive = Field(default=64, description="Verdicts in the making at once.")
    max_queue: int = Field(
        default=256, ge=0, description="Verdicts that wait for a place; beyond: 429."
    )
    drain_seconds: Seconds = Field(
        default=30.0, description="After SIGTERM, for the requests that are running."
    )

    @model_validator(mode="after")
    def _a_batch_fits(self) -> "JudgeServerSection":
        if self.max_batch > self.max_in_flight + self.max_queue:
            raise ValueError("max_batch must fit into max_in_flight + max_queue")
        return self


class JudgeRewardSection(JudgeServiceSection):
    """A judge service as a reward function: `reward.config` where `reward.type` is
    `judge_model`. `JUDGE_MAX_BATCH_SIZE` and `JUDGE_MAX_CONCURRENT` in the environment override
    `max_batch_size` and `max_concurrent_requests`."""

    use_cache: bool = Field(default=True, description="Ask equal questions once.")
    cache_size: Positive = Field(default=5000, description="Verdicts kept.")
    fallback_to_rule: bool = Field(
        default=True, description="Where the judge fails, rules decide what they can, tagged."
    )
    circuit_breaker_threshold: int = Field(
        default=5, ge=0, description="Failures in a row that open the circuit; 0: never."
    )
    circuit_breaker_timeout: Seconds = Field(
        default=30.0, description="Seconds until a service that was down is tried again."
    )


class FaultSection(Section):
    """Faults that the embedded server injects: shares of requests."""

    empty: Fraction = Field(default=0.0, description="200 with empty content.")
    error_500: Fraction = Field(default=0.0, description="HTTP 500.")
    error_429: Fraction = Field(default=0.0, description="HTTP 429: too many requests.")
    hang: Fraction = Field(default=0.0, description="No answer until the client gives up.")
    truncate: Fraction = Field(
        default=0.0, description='Half the text and `finish_reason` "length".'
    )
    malformed: Fraction = Field(
        default=0.0, description="A body that is not the JSON it claims to be."
    )
    roles: Literal["all", "executor", "judge"] = Field(
        default="all", description="Who meets the faults."
    )


class SimulatedSection(Section):
    """The embedded server; read only where a model is named `simulated`."""

    seed: int = Field(default=0, description="Of the tasks' difficulties and every draw.")
    latency_ms: float = Field(default=0.0, ge=0, description="Mean waiting time added to a reply.")
    judge_true_positive: Fraction = Field(default=0.97, description="Right answers called right.")
    judge_false_positive: Fraction = Field(default=0.03, description="Wrong answers called right.")
    judge_biases: Mapping[str, float] = Field(
        default_factory=dict,
        description="Planted biases, by name: verbosity, authority, tone, formatting, distraction, "
        "injection, self_preference, master_key, position.",
    )
    faults: FaultSection = FaultSection()


class SandboxSection(Section):
    """Limits of the code that the policy or the large model wrote."""

    cpu_seconds: Seconds = Field(
        default=5.0, description="CPU time of one execution; ten times as long on the wall clock."
    )
    memory_mb: Positive = Field(default=512, description="Of one execution, in MiB.")
    workers: int = Field(default=0, ge=0, description="Executions at once; 0 means one per core.")
    allow_weaker: bool = Field(
        default=False, description="Start with less isolation than required; shown on every screen."
    )


class EvaluationSection(Section):
    """Held-out problems: while training, and for the before/after table."""

    every: int = Field(
        default=20, ge=0, description="Steps between evaluations while training; 0: never."
    )
    problems: Positive = Field(default=90, description="Validation problems of these evaluations.")
    final_problems: Positive = Field(default=180, description="Of the before/after table.")
    samples: Positive = Field(default=1, description="Workflows sampled per problem.")
    temperature: float = Field(default=1.0, ge=0, description="Of the policy when evaluated.")
    baselines: bool = Field(default=True, description="Fixed workflows in the before/after table.")


class Config(Section):
    """A whole run. The first keys are the ones most people change."""

    seed: int = Field(default=0, description="Of every draw of the run.")
    strategy_model: str = Field(
        default="tiny", description="The policy: a Hugging Face id or folder, or `tiny` (embedded)."
    )
    aflow_executor_model: str = Field(
        default="simulated", description="A name in `llm.file`, or `simulated` (embedded server)."
    )
    train_dataset: str = Field(
        default="offline",
        description="A task file, or `offline` for the mixture that needs no download.",
    )
    val_dataset: str = Field(default="offline", description="As `train_dataset`.")
    physical_gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, description="Becomes CUDA_VISIBLE_DEVICES before torch starts."
    )
    run: RunConfig = RunConfig()
    policy: PolicySection = PolicySection()
    grpo: GrpoSection = GrpoSection()
    pipeline: PipelineSection = PipelineSection()
    ray: RaySection = RaySection()
    reward: RewardSection = RewardSection()
    workflow: WorkflowSection = WorkflowSection()
    llm: LlmSection = LlmSection()
    executor: ExecutorSection = ExecutorSection()
    judge: JudgeSection = JudgeSection()
    simulated: SimulatedSection = SimulatedSection()
    sandbox: SandboxSection = SandboxSection()
    evaluation: EvaluationSection = EvaluationSection()

    @model_validator(mode="after")
    def _the_judge_can_judge_workflows(self) -> "Config":
        if self.judge.ask in ("pairwise", "rubric"):
            raise ValueError(
                f"judge.ask: {self.judge.ask} does not fit: answers of workflows are judged one by "
                "one against a reference; use true_false, score, pointwise or multi_aspect"
            )
        return self

    @model_validator(mode="after")
    def _a_server_has_the_policy(self) -> "Config":
        served = self.policy.sampler == "vllm" and not self.policy.vllm.model_name
        if served and self.strategy_model == "tiny":
            raise ValueError(
                "policy.vllm.model_name: name the model that the servers have; the embedded policy "
                "is a folder of policy.tiny.cache_dir"
            )
        return self

    @property
    def served_policy(self) -> str:
        """The name of the policy's base model on vLLM servers."""
        return self.policy.vllm.model_name or self.strategy_model

    @property
    def judge_model(self) -> str | None:
        """The name of the model that judges; None where rules or a service do."""
        if self.judge.mode == "rules" or self.judge.service is not None:
            return None
        return self.judge.model or self.aflow_executor_model

    @property
    def judge_names(self) -> tuple[str, ...]:
        """Who judges, for people: models, the address of a service, or the rules."""
        if self.judge.mode == "rules":
            return ("rules",)
        service = self.judge.service
        first = self.judge_model if service is None else service.judge_url
        return (first or "", *self.judge.panel)

    @property
    def models(self) -> frozenset[str]:
        """The names of all large models: the executor, the judge, the panel."""
        judge = {self.judge_model} if self.judge_model is not None else set[str]()
        return frozenset({self.aflow_executor_model, *judge, *self.judge.panel})


class JudgeServerConfig(Section):
    """A judge service: `python scripts/serve_judge.py --config config/judge_server.yaml`."""

    server: JudgeServerSection = JudgeServerSection()
    judge: JudgeSection = JudgeSection()
    llm: LlmSection = LlmSection()
    simulated: SimulatedSection = SimulatedSection()

    @model_validator(mode="after")
    def _named(self) -> "JudgeServerConfig":
        asks = self.judge.mode != "rules" and self.judge.service is None
        if asks and not self.judge.model:
            raise ValueError("judge.model: name a model of `llm.file`, or `simulated`")
        return self

    @property
    def models(self) -> frozenset[str]:
        """The names of all large models that judge; none where rules alone decide."""
        if self.judge.mode == "rules":
            return frozenset()
        model = None if self.judge.service is not None else self.judge.model
        return frozenset(filter(None, (model, *self.judge.panel)))


class ModelEntry(Section):
    """One model of `llm.file`. Lists of URLs or keys are used in turn (least outstanding)."""

    api_type: Literal["openai"] = Field(default="openai", description="The protocol spoken.")
    base_url: str | tuple[str, ...] = Field(description="Address up to and with `/v1`.")
    api_key: str | tuple[str, ...] = Field(default="sk-none", description="Better `${NAME}`.")
    model_name: str = Field(description="The name under which the server serves it.")
    temperature: float | None = Field(
        default=None, ge=0, description="Used where a request names none."
    )
    top_p: float | None = Field(default=None, gt=0, le=1, description="As `temperature`.")
    max_tokens: int | None = Field(default=None, ge=1, description="As `temperature`.")
    no_proxy: str | None = Field(default=None, description="Hosts reached without the proxy.")
    stream: bool = Field(
        default=False, description="For servers that only stream; replies are assembled."
    )
    reasoning_effort: Literal["low", "medium", "high"] | None = Field(
        default=None, description="As `temperature`."
    )

    @property
    def base_urls(self) -> tuple[str, ...]:
        return (self.base_url,) if isinstance(self.base_url, str) else self.base_url

    @property
    def api_keys(self) -> tuple[str, ...]:
        return (self.api_key,) if isinstance(self.api_key, str) else self.api_key


class LlmFile(Section):
    models: Mapping[str, ModelEntry] = Field(description="By name.")


class _Loader(yaml.SafeLoader):
    """PyYAML lets the last of two equal keys win without a word; here that is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_TYPES = {
    "model_type": "a section is expected, with keys of its own",
    "dict_type": "a mapping is expected, with keys of its own",
    "tuple_type": "a list is expected, such as [0, 1]",
}

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def read_yaml(path: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A YAML mapping with ``${NAME}`` and ``${NAME:-default}`` read from the environment."""
    environment = os.environ if environment is None else environment
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        data = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: {getattr(error, 'problem', None) or error}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the top level is a {type(data).__name__}, not a mapping")
    problems: list[str] = []
    data = _expand(data, environment, str(path), "", problems)
    if problems:
        raise ConfigError(*problems)
    return data


def _expand(
    value: Any, environment: Mapping[str, str], file: str, key: str, problems: list[str]
) -> Any:
    """Variables are replaced in parsed strings, not in the text, so a value can't add YAML. A
    string that is one variable takes the type YAML gives its value."""
    if isinstance(value, dict):
        return {
            k: _expand(v, environment, file, f"{key}.{k}" if key else str(k), problems)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_expand(v, environment, file, f"{key}.{i}", problems) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = environment.get(match["name"], match["default"])
        if found is None:
            problems.append(
                f"{file}: {key}: the environment has no {match['name']}; "
                f"set it or write ${{{match['name']}:-default}}"
            )
        return found or ""

    whole = _VARIABLE.fullmatch(value)
    expanded = _VARIABLE.sub(replace, value)
    return yaml.safe_load(expanded) if whole and expanded else expanded


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, apply ``key.sub=value`` overrides, check everything.

    Raises ConfigError with one line per mistake.
    """
    return _load(Config, path, overrides)


def load_judge_server(path: Path, overrides: Sequence[str] = ()) -> JudgeServerConfig:
    """As :func:`load_config`, for a judge service."""
    return _load(JudgeServerConfig, path, overrides)


def load_judge_reward(path: Path) -> JudgeRewardSection:
    """``reward.config`` of a YAML file whose ``reward.type`` is ``judge_model``; its other keys are
    not read. Raises ConfigError."""
    reward = read_yaml(path).get("reward")
    if not isinstance(reward, dict) or reward.get("type") != "judge_model":
        raise ConfigError(f"{path}: reward.type: must be judge_model")
    return judge_reward(reward.get("config") or {}, f"{path}: reward.config")


def judge_reward(
    data: Mapping[str, Any], source: str = "config", environment: Mapping[str, str] | None = None
) -> JudgeRewardSection:
    """The section, with JUDGE_MAX_BATCH_SIZE and JUDGE_MAX_CONCURRENT of the environment put over
    it. Raises ConfigError with one line per mistake."""
    environment = os.environ if environment is None else environment
    values = dict(data)
    for name, key in (
        ("JUDGE_MAX_BATCH_SIZE", "max_batch_size"),
        ("JUDGE_MAX_CONCURRENT", "max_concurrent_requests"),
    ):
        if environment.get(name):
            values[key] = environment[name]
    try:
        return JudgeRewardSection.model_validate(values)
    except ValidationError as error:
        lines = [f"{source}: {_explain(JudgeRewardSection, detail)}" for detail in error.errors()]
        raise ConfigError(*lines) from None


def _load(root: type[Root], path: Path, overrides: Sequence[str]) -> Root:
    data = read_yaml(path)
    problems: list[str] = []
    from_command_line: set[str] = set()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append(f"command line: {override!r}: write key=value, such as grpo.steps=10")
            continue
        try:
            value = yaml.load(text, _Loader) if text else ""
        except yaml.YAMLError as error:
            why = getattr(error, "problem", None) or error
            problems.append(f"command line: {key}: {text!r} is not YAML: {why}")
            continue
        from_command_line.add(key)
        _assign(data, key.split("."), value)
    try:
        config = root.model_validate(data)
    except ValidationError as error:
        for detail in error.errors():
            key = ".".join(str(part) for part in detail["loc"])
            ours = any(k == key or k.startswith(f"{key}.") for k in from_command_line)
            file = "command line" if ours else str(path)
            problems.append(f"{file}: {_explain(root, detail)}")
        raise ConfigError(*problems) from None
    if problems:
        raise ConfigError(*problems)
    return config


def load_models(path: Path) -> Mapping[str, ModelEntry]:
    """The models of an LLM file, by name. Raises ConfigError with one line per mistake."""
    try:
        return LlmFile.model_validate(read_yaml(path)).models
    except ValidationError as error:
        lines = [f"{path}: {_explain(LlmFile, detail)}" for detail in error.errors()]
        raise ConfigError(*lines) from None


def load_entries(path: Path, names: Collection[str]) -> dict[str, ModelEntry]:
    """The entries of these models in an LLM file, the embedded server's left out. Raises
    ConfigError for names that the file lacks."""
    wanted = sorted(set(names) - {SIMULATED})
    if not wanted:
        return {}
    models = load_models(path)
    missing = [name for name in wanted if name not in models]
    if missing:
        known = [*models, SIMULATED]
        raise ConfigError(
            *(f"{path}: models: no {name!r}{suggest(name, known)}" for name in missing)
        )
    return {name: models[name] for name in wanted}


def suggest(word: str, known: Sequence[str]) -> str:
    """``; did you mean X?`` for a word close to a known one, else an empty string."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _assign(data: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = data.get(key)
        if not isinstance(inner, dict):
            inner = data[key] = {}
        data = inner
    data[keys[-1]] = value


def _explain(root: type[BaseModel], detail: Mapping[str, Any]) -> str:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        parent = _section_at(root, location[:-1])
        prefix = ".".join(location[:-1])
        hint = suggest(location[-1], list(parent.model_fields)) if parent else ""
        if hint and prefix:
            hint = hint.replace("mean ", f"mean {prefix}.")
        return f"{key}: unknown key{hint}"
    message = _TYPES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = detail.get("input")
    showable = isinstance(given, str | int | float | bool) and "api_key" not in location
    shown = f" (got {given!r})" if showable else ""
    return f"{key}: {message}{shown}" if key else f"{message}{shown}"


def _section_at(root: type[BaseModel], location: Sequence[str]) -> type[BaseModel] | None:
    """The section that a path of keys leads to; mappings of sections (models by name) skip one."""
    section: Any = root
    for part in location:
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
        if part not in section.model_fields:
            return section if part else None
        annotation = section.model_fields[part].annotation
        if annotation is not None and "Mapping" in str(annotation):
            return ModelEntry if section is LlmFile else None
        section = annotation
    return section if isinstance(section, type) and issubclass(section, BaseModel) else None
