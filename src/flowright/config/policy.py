"""The keys of `policy`: the model that is trained, its adapter, and who samples from it."""

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
    Section,
    ServersSection,
)


class SftSection(Section):
    """Supervised training on completions."""

    steps: Positive = 48
    """Optimizer steps."""
    prompts_per_step: Positive = 8
    """Prompts per step."""
    learning_rate: PositiveFloat = 1e-3
    """AdamW's learning rate after the warm-up."""
    warmup_steps: NonNegative = 4
    """Steps of linear warm-up."""
    schedule: Annotated[str, AfterValidator(SCHEDULES.check)] = "linear"
    """Learning-rate schedule after the warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradient clipping norm."""


class WarmStartSection(SftSection):
    """`scripts/warm_start.py`: supervised training on drawn completions that passed."""

    folder: Path | None = None
    """Folder of the warm-started model, from which the policy then starts. Default: none."""
    problems: Positive = 120
    """Train problems."""
    completions: Positive = 24
    """Completions drawn per problem."""
    attempts: Positive = 1
    """Executions of each."""
    enough_valid: Fraction = 0.8
    """Share of valid completions from which no warm start is needed."""
    probes: Positive = 24
    """Other train problems, on which that is measured before and after."""
    probe_samples: Positive = 2
    """Completions sampled per probe."""
    seed: int = 0
    """Seed of the draws and of the adapter's weights."""


TINY = "tiny"
"""The name of the embedded policy."""

SMOLLM2 = "smollm2-135m"
"""The name of the smallest pretrained policy, which needs no hub; see docs/running_on_gpus.md."""

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank; it serves adapters of that rank and below."""


DECODE_ROWS = 256
"""Rows decoded at once where nothing is known of the memory."""


class LoraSection(Section):
    """The adapter."""

    rank: Positive = 64
    """Rank r."""
    alpha: Positive = 64
    """Scale: the adapter's output is times alpha/r."""
    rank_stabilised: bool = False
    """rsLoRA: scale alpha/sqrt(r) (arXiv 2312.03732)."""
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Linear layers that get an adapter."""

    @field_validator("target_modules")
    @classmethod
    def _check_head_is_frozen(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in ("lm_head", "embed_tokens"):
            if name in names:
                raise ValueError(f"{name} stays frozen: its gradient is not computed")
        return names


class TinySection(Section):
    """Cold start of the embedded policy; read only if `strategy_model` is `tiny`."""

    cache_dir: Path = Path("data/cache")
    """Folder of the checkpoint, and of the converted `smollm2-135m`."""
    hidden_size: Positive = 192
    """Width of the residual stream."""
    layers: Positive = 2
    """Decoder layers."""
    heads: Positive = 6
    """Attention heads."""
    kv_heads: Positive = 2
    """Key and value heads."""
    vocab_size: int = Field(default=1024, ge=300)
    """Size of the trained tokenizer."""
    examples: Positive = 2880
    """Problems."""
    programs: Positive = 2
    """Programs per problem."""
    steps: Positive = 360
    """Supervised steps."""
    batch_size: Positive = 8
    """Problems per step."""
    learning_rate: PositiveFloat = 3e-3
    """AdamW's, for embeddings and norms."""
    matrix_learning_rate: PositiveFloat = 0.04
    """Muon's, for matrices."""
    prompt_weight: Fraction = 0.2
    """Weight of a prompt token in the loss, a program's being 1."""
    seed: int = 0
    """Seed of the draws and of the weights."""


class VllmSection(ServersSection):
    """vLLM servers that sample from the policy; see docs/running_on_gpus.md."""

    base_urls: tuple[str, ...] = Field(default=("http://localhost:8003/v1",), min_length=1)
    """Addresses up to and with `/v1`, one per server process."""
    model_name: str | None = None
    """Name of the base model on the servers. Default: `strategy_model`."""
    adapter_dir: Path | None = None
    """Folder for adapters or all weights, at the same path on the servers. Default: `adapters` in
    the run directory."""
    max_loras: int = Field(default=2, ge=2)
    """Adapters kept on a server."""
    tolerance: PositiveFloat = 0.1
    """Largest mean difference (nats per token) of log-probabilities between server and learner."""


class PolicySection(Section):
    """The trained model and its sampling."""

    train: Literal["lora", "full"] = "lora"
    """Train an adapter, or all decoder weights but the embeddings, in float32 at 16 bytes each."""
    quantised: Literal["nf4"] | None = None
    """QLoRA (arXiv 2305.14314): base weights in 4 bits; needs requirements-quantised.txt."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Base weights. Default: bfloat16 on a GPU; float32 on a CPU and for the embedded policy."""
    head: Literal["language_model", "score"] = "language_model"
    """Output: tokens, or one score per text for `grpo.loss: bradley_terry`."""
    head_dtype: Literal["float32", "bfloat16"] = "float32"
    """Logits with bfloat16 base weights; bfloat16 makes log-probabilities wrong by up to 0.06."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` prefers the GPU."""
    prompt: Literal["full", "compact"] = "full"
    """Form of the operator documentation in the prompt."""
    chat_template: Path | None = None
    """File of Jinja in place of the model's own chat template; exports carry it."""
    max_prompt_tokens: Positive = 4096
    """Longer prompts are cut in the middle and counted (`prompt/truncated`)."""
    max_new_tokens: Positive = 512
    """Longest completion; of an attempt of several turns, each of them."""
    max_observation_tokens: Positive = 512
    """Longer answers of an environment between two turns are cut in the middle."""
    max_episode_tokens: Positive | None = None
    """Most tokens behind the prompt of an attempt of several turns, answers included. Default:
    enough for all turns."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of training."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling. Below 1, the ratio is to the learner's own log-probabilities, and tokens
    outside the nucleus are never learned."""
    sampler: Literal["local", "vllm"] = "local"
    """Sample in the trainer's process, or on vLLM servers that get each step's weights."""
    decode_batch: Positive | Literal["auto"] = "auto"
    """Rows that the local sampler decodes at once. `auto`: as many as fit on a GPU, else 256."""
    gradient_checkpointing: bool | NonNegative | Literal["auto"] = "auto"
    """Recompute activations, for less memory: of all layers, of none, or completions' of so many
    and shared prompts' of all. `auto`: of as few as fit on a GPU, else false."""
    sharded: bool = False
    """Split frozen weights among a node's processes, needs `sampler: vllm` if completions are
    sampled; with `train: full` all that is trained, among all processes."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """With `train: full`, hold AdamW's means in main memory, or with `sharded` all that is
    trained."""
    lora: LoraSection = LoraSection()
    vllm: VllmSection = VllmSection()
    tiny: TinySection = TinySection()
    warm_start: WarmStartSection = WarmStartSection()

    def episode_tokens(self, turns: int) -> int:
        """Tokens behind a prompt of so many turns with the longest answers, a template's marks
        included."""
        return turns * self.max_new_tokens + (turns - 1) * (self.max_observation_tokens + 64)

    def written_tokens(self, turns: int) -> int:
        """Return the most tokens that the policy writes in an attempt of so many turns."""
        one, each = self.max_new_tokens, turns * self.max_new_tokens
        return min(each, max(one, self.max_episode_tokens or each))

    @property
    def tokens_behind_prompt(self) -> int:
        """Most tokens behind a prompt. A resolved configuration has ``max_episode_tokens`` only
        where an attempt has several turns, and always there."""
        return self.max_episode_tokens or self.max_new_tokens

    @property
    def length_keys(self) -> tuple[str, str]:
        """Keys that limit a prompt and what stands behind it."""
        behind = "max_episode_tokens" if self.max_episode_tokens else "max_new_tokens"
        return "policy.max_prompt_tokens", f"policy.{behind}"

    @property
    def sequence_tokens(self) -> int:
        """Most tokens of a prompt and what stands behind it, in a resolved configuration."""
        return self.max_prompt_tokens + self.tokens_behind_prompt

    @property
    def context_tokens(self) -> int:
        """Most tokens before a completion: a prompt's, or those of an attempt's last turn."""
        return self.sequence_tokens - self.max_new_tokens

    @property
    def decode_rows(self) -> int:
        """``decode_batch``, where no memory plan has decided."""
        return DECODE_ROWS if self.decode_batch == "auto" else self.decode_batch

    def recomputed(self, layers: int) -> int:
        """Return how many of the layers recompute completions; all where no memory plan has
        decided."""
        known = self.gradient_checkpointing
        return layers if known is True or known == "auto" else min(int(known), layers)

    def on(self, device: str) -> "PolicySection":
        """With every default that depends on the device, but for what depends on a GPU's memory;
        what is given stays."""
        gpu = device == "cuda"
        dtype = self.dtype or ("bfloat16" if gpu else "float32")
        update: dict[str, object] = {"dtype": dtype}
        if not gpu and self.gradient_checkpointing == "auto":
            update["gradient_checkpointing"] = False
        if not gpu and self.decode_batch == "auto":
            update["decode_batch"] = self.decode_rows
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _check_train_fits(self) -> "PolicySection":
        if self.train == "full" and self.quantised:
            raise ValueError(
                "train full with quantised: weights in 4 bits cannot be trained; set policy.train: "
                "lora, or leave policy.quantised out"
            )
        if self.offload != "none" and self.train != "full":
            raise ValueError(
                f"offload {self.offload} with train {self.train}, whose adapter is small: set "
                "policy.offload: none, and policy.sharded or policy.quantised to save memory"
            )
        if self.offload == "all" and not self.sharded:
            raise ValueError(
                "offload all without sharded: set policy.sharded: true, or policy.offload: "
                "optimizer"
            )
        if self.quantised and self.sharded:
            raise ValueError(
                "quantised with sharded is not built: set policy.sharded: false, or leave "
                "policy.quantised out"
            )
        if self.quantised and self.sampler == "vllm":
            raise ValueError(
                "quantised with sampler vllm is not built, which serves adapters of the base as "
                "it is: set policy.sampler: local"
            )
        return self

    @model_validator(mode="after")
    def _check_sampler_fits_rank(self) -> "PolicySection":
        adapts = self.sampler == "vllm" and self.train == "lora"
        if adapts and self.lora.rank > MAX_LORA_RANKS[-1]:
            raise ValueError(
                f"lora.rank {self.lora.rank} with sampler vllm, which takes {MAX_LORA_RANKS[-1]} "
                "at most"
            )
        return self
