"""The keys of `policy`: the model that is trained, its adapter, and who samples from it."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from flowright.config.grpo import SCHEDULES
from flowright.config.section import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Seconds,
    Section,
)


class SftSection(Section):
    """Supervised training on completions; the prompts are no part of the loss."""

    steps: Positive = 48
    """Optimizer steps."""
    prompts_per_step: Positive = 8
    """Prompts of a step."""
    learning_rate: PositiveFloat = 1e-3
    """Of AdamW on the adapter, after the warm-up."""
    warmup_steps: NonNegative = 4
    """Steps of linear warm-up."""
    schedule: Annotated[str, AfterValidator(SCHEDULES.check)] = "linear"
    """Course of the learning rate after the warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's, decoupled."""
    max_grad_norm: PositiveFloat = 1.0
    """Larger gradients are scaled down to this norm."""


class WarmStartSection(SftSection):
    """`python scripts/warm_start.py`: supervised training on completions that the environment draws
    and that passed on train problems."""

    folder: Path | None = None
    """Where the warm-started model is put, and what the policy of a run then starts from. Default:
    none, the policy starts as `strategy_model`."""
    problems: Positive = 120
    """Train problems that completions are drawn for."""
    completions: Positive = 24
    """Drawn for each of them; equal ones count once."""
    attempts: Positive = 1
    """So often each is run."""
    enough_valid: Fraction = 0.8
    """No warm start is needed where so many of the policy's own completions are valid."""
    probes: Positive = 24
    """Other train problems, on which that is measured before and after."""
    probe_samples: Positive = 2
    """Completions sampled for each of those."""
    seed: int = 0
    """Of every draw, and of the adapter's first weights."""


TINY = "tiny"
"""The name of the embedded policy."""

SMOLLM2 = "smollm2-135m"
"""The name of the smallest pretrained policy, which needs no hub; see docs/running_on_gpus.md."""

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's --max-lora-rank may be; it serves adapters of that rank and below."""


class LoraSection(Section):
    """The adapter: the only weights that are trained, but for `policy.train: full`."""

    rank: Positive = 64
    """Rank r of the adapter."""
    alpha: Positive = 64
    """Scale: the adapter's output is times alpha/r."""
    rank_stabilised: bool = False
    """rsLoRA: the scale is alpha/sqrt(r), so that a large rank learns more (arXiv 2312.03732)."""
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter."""

    @field_validator("target_modules")
    @classmethod
    def _the_head_stays_as_it_is(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in ("lm_head", "embed_tokens"):
            if name in names:
                raise ValueError(f"{name} stays frozen: its gradient is not computed")
        return names


class TinySection(Section):
    """The embedded policy's cold start; read only when `strategy_model` is `tiny`."""

    cache_dir: Path = Path("data/cache")
    """Where the checkpoint is kept, and `smollm2-135m` once it is converted."""
    hidden_size: Positive = 192
    """Width of the residual stream."""
    layers: Positive = 2
    """Decoder layers."""
    heads: Positive = 6
    """Attention heads."""
    kv_heads: Positive = 2
    """Heads of keys and values."""
    vocab_size: int = Field(default=1024, ge=300)
    """Size of the trained tokenizer."""
    examples: Positive = 2880
    """Problems drawn for the cold start."""
    programs: Positive = 2
    """Programs drawn for each of them."""
    steps: Positive = 360
    """Supervised steps of the cold start."""
    batch_size: Positive = 8
    """Problems per supervised step."""
    learning_rate: PositiveFloat = 3e-3
    """AdamW: embeddings and norms."""
    matrix_learning_rate: PositiveFloat = 0.04
    """Muon: matrices."""
    prompt_weight: Fraction = 0.2
    """Of a prompt's token in the loss, a program's being 1: enough to have to read the question,
    little enough that most of the time goes into writing programs."""
    seed: int = 0
    """Of what is drawn and of the first weights."""


class VllmSection(Section):
    """vLLM servers that sample from the policy; read only where `policy.sampler` is `vllm`. See
    docs/running_on_gpus.md."""

    base_urls: tuple[str, ...] = ("http://localhost:8003/v1",)
    """Addresses up to and with `/v1`, one a server process."""
    api_key: str = Field(default="sk-none", exclude=True)  # kept out of config.json
    """Of all of them; better `${NAME}`."""
    no_proxy: str | None = None
    """Hosts reached without the proxy."""
    model_name: str | None = None
    """The name under which they serve the base model; default: `strategy_model`."""
    adapter_dir: Path | None = None
    """Where adapters are written for the servers, in a folder named as the run; they must see the
    same path. Default: `adapters` in the run directory."""
    max_loras: int = Field(default=2, ge=2)
    """Adapters kept on a server, so that requests under way with an earlier one can end."""
    max_concurrency: Positive = 256
    """Requests in flight, over all servers."""
    request_seconds: Seconds = 600.0
    """Timeout of one attempt at a completion."""
    attempts: Positive = 5
    """Attempts at a request that a server answers with an error."""
    backoff_seconds: Seconds = 0.5
    """First pause between attempts; doubles."""
    wait_seconds: NonNegativeFloat = 600.0
    """So long a request waits while no server can be used; then the run pauses."""
    tolerance: PositiveFloat = 0.1
    """Mean difference (nats a token) that a server's log-probabilities of the probe text may have
    to the learner's; fits bfloat16."""

    @field_validator("base_urls")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [url for url in urls if not re.fullmatch(r"https?://\S+", url)]
        if wrong or not urls or len({*urls}) < len(urls):
            raise ValueError(f"different URLs such as http://localhost:8003/v1, not {list(urls)}")
        return tuple(url.rstrip("/") for url in urls)


class PolicySection(Section):
    """The model that writes workflows, and how it is sampled."""

    train: Literal["lora", "full"] = "lora"
    """An adapter, or all weights of the decoder but its embeddings. `full` keeps them in float32
    whatever `dtype` says and takes 16 bytes for each; the head stays as it is, too."""
    quantised: Literal["nf4"] | None = None
    """QLoRA (arXiv 2305.14314): the frozen base in 4 bits, beside an adapter in float32. Needs
    bitsandbytes (requirements-quantised.txt)."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the base weights. Default: bfloat16 on a GPU; float32 on a CPU, and for the embedded
    policy."""
    head: Literal["language_model", "score"] = "language_model"
    """What is read off the last layer: tokens, or one score for a text (`grpo.loss:
    bradley_terry`), by a row that is trained beside the adapter."""
    head_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the logits, where the base weights are bfloat16; in sampler and learner alike. A logit of
    20 that is rounded to bfloat16 makes its token's log-probability wrong by up to 0.06."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU where there is one."""
    prompt: Literal["full", "compact"] = "full"
    """Form of the operators' documentation in the prompt."""
    max_prompt_tokens: Positive = 4096
    """Longer questions are cut in the middle and counted (`prompt/truncated`)."""
    max_new_tokens: Positive = 512
    """Longest completion."""
    temperature: PositiveFloat = 1.0
    """Of the samples that are trained on."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1 the learner's ratio is biased."""
    sampler: Literal["local", "vllm"] = "local"
    """Who draws completions: the trainer's process, or servers that get each step's adapter."""
    decode_batch: Positive = 256
    """Rows decoded at once by the local sampler; fewer where prompts of an evaluation would take
    more keys and values than a step's."""
    gradient_checkpointing: bool | None = None
    """Less memory for about a third more computing. Default: true on a GPU; false on a CPU, and for
    the embedded policy."""
    sharded: bool = False
    """Split the frozen weights of the layers among the processes of a node, for a model that does
    not fit on one GPU; needs several processes and, where completions are sampled, `sampler:
    vllm`."""
    lora: LoraSection = LoraSection()
    vllm: VllmSection = VllmSection()
    tiny: TinySection = TinySection()
    warm_start: WarmStartSection = WarmStartSection()

    def on(self, device: str) -> "PolicySection":
        """With every default that depends on the device; what is given stays."""
        gpu = device == "cuda"
        dtype = self.dtype or ("bfloat16" if gpu else "float32")
        recompute = gpu if self.gradient_checkpointing is None else self.gradient_checkpointing
        return self.model_copy(update={"dtype": dtype, "gradient_checkpointing": recompute})

    @model_validator(mode="after")
    def _what_is_trained_is_built(self) -> "PolicySection":
        if self.train == "full" and self.quantised:
            raise ValueError(
                "train full with quantised: weights in 4 bits cannot be trained; set policy.train: "
                "lora, or leave policy.quantised out"
            )
        for said, what in ((self.train == "full", "train full"), (self.quantised, "quantised")):
            if said and self.sharded:
                raise ValueError(
                    f"{what} with sharded is not built: set policy.sharded: false, or train an "
                    "adapter of the base as it is (policy.train: lora, no policy.quantised)"
                )
            if said and self.sampler == "vllm":
                raise ValueError(
                    f"{what} with sampler vllm is not built, which serves adapters of the base as "
                    "it is: set policy.sampler: local"
                )
        return self

    @model_validator(mode="after")
    def _the_sampler_can_serve_it(self) -> "PolicySection":
        if self.sampler == "vllm" and self.lora.rank > MAX_LORA_RANKS[-1]:
            raise ValueError(
                f"lora.rank {self.lora.rank} with sampler vllm, which takes {MAX_LORA_RANKS[-1]} "
                "at most"
            )
        return self
