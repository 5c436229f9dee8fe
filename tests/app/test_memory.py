"""The memory plan: its sums against what small models really take, and what it advises."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from tiny_policy import VOCAB_SIZE, checkpoint
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from flowright.app.device import (
    GIB,
    MemoryDemand,
    memory_settings,
    memory_summary,
    memory_table,
    with_settings,
)
from flowright.app.open_policies import fit_memory
from flowright.app.preflight import dry_run
from flowright.config.grpo import GrpoSection
from flowright.config.policy import SMOLLM2, TINY, LoraSection, PolicySection
from flowright.core.errors import ConfigError
from flowright.environments.base import make_environment
from flowright.environments.registry import load_config, make_config
from flowright.grpo.batch import Group, Trained
from flowright.grpo.learner import Learner
from flowright.grpo.objectives import resolved
from flowright.policy.local import LocalSampler
from flowright.policy.lora import LoraLinear
from flowright.policy.memory import (
    BYTES,
    ModelShape,
    kept_tokens,
    layer_bytes,
    memory_plan,
    shape_of,
    wave_tokens,
)
from flowright.policy.model import Policy, policy_of
from flowright.policy.prefix.kept import Kept
from flowright.policy.prefix.tree import shared_chunks
from flowright.policy.sampling import Sample, Sampling
from flowright.policy.tiny import train_tokenizer
from flowright.policy.tuning import LoraTuning
from flowright.study.config import load_study
from flowright.study.runs import cells_of, runs_of

KINDS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


def sections(dtype: str, **given: Any) -> tuple[PolicySection, GrpoSection]:
    policy = {
        "max_prompt_tokens": 192,
        "max_new_tokens": 64,
        "device": "cpu",
        "dtype": dtype,
        "decode_batch": 256,
    }
    grpo = {"prompts_per_step": 2, "group_size": 4, "micro_batch_tokens": 256}
    for section in (policy, grpo):
        section.update({key: value for key, value in given.items() if key in section})
    checkpointing = given.get("gradient_checkpointing", False)
    return (
        PolicySection(
            **policy, lora=LoraSection(rank=8, alpha=8), gradient_checkpointing=checkpointing
        ),
        GrpoSection(**grpo, kl_coefficient=0.0, prefix_sharing=given.get("prefix_sharing", True)),
    )


def medium_policy(kind: str, section: PolicySection, layers: int = 2) -> Policy:
    """Large enough that tensors outweigh what the plan leaves out."""
    config = KINDS[kind](vocab_size=512, num_hidden_layers=layers, **SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        base: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    base = base.to(getattr(torch, section.dtype))
    return policy_of(base, train_tokenizer([], VOCAB_SIZE), section, 0, kind)


def groups_of(template: int, problem: int, completion: int) -> list[Group]:
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(512) for _ in range(count)]

    shared = ids(template)
    return [
        Group(
            [*shared, *ids(problem)],
            [
                Trained(ids(completion), [-6.0] * completion, draw.choice([-1.0, 1.0]))
                for _ in range(4)
            ],
        )
        for _ in range(2)
    ]


def peak(work: Callable[[], object]) -> int:
    """Bytes that the CPU's allocator gave out at most, above what it had."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        work()
    assert found.profiler is not None
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("kind", "dtype", "gradient_checkpointing", "prefix_sharing"),
    [
        ("qwen2", "float32", False, True),
        ("qwen2", "float32", True, True),
        ("qwen2", "float32", False, False),
        ("llama", "float32", True, False),
        ("qwen3", "bfloat16", False, True),
        ("qwen3", "bfloat16", True, True),
    ],
)
def test_an_update_takes_what_is_planned(
    kind: str, dtype: str, gradient_checkpointing: bool, prefix_sharing: bool
) -> None:
    """With prompts at their limit."""
    section, grpo = sections(
        dtype, gradient_checkpointing=gradient_checkpointing, prefix_sharing=prefix_sharing
    )
    policy = medium_policy(kind, section)
    learner = Learner(policy, grpo, 1.0, 0)
    groups = groups_of(64, 128, 64)
    learner.update(groups, 1, 64)  # AdamW's state is there now
    measured = peak(lambda: learner.update(groups, 2, 64))
    planned = memory_plan(shape_of(policy.causal_lm, section), section, grpo, "cpu").updating
    assert measured <= sum(planned.values()) <= 1.6 * measured


@pytest.mark.parametrize(
    ("kind", "dtype", "gradient_checkpointing", "prefix_sharing"),
    [
        ("qwen2", "float32", True, True),
        ("qwen3", "bfloat16", False, True),
    ],
)
def test_an_update_of_whole_layers_takes_what_is_planned(
    kind: str, dtype: str, gradient_checkpointing: bool, prefix_sharing: bool
) -> None:
    section, grpo = sections(
        dtype, gradient_checkpointing=gradient_checkpointing, prefix_sharing=prefix_sharing
    )
    section = section.model_copy(update={"train": "full"})
    policy = medium_policy(kind, section)
    learner = Learner(policy, grpo, 1.0, 0)
    groups = groups_of(64, 128, 64)
    learner.update(groups, 1, 64)
    measured = peak(lambda: learner.update(groups, 2, 64))
    shape = shape_of(policy.causal_lm, section)
    plan = memory_plan(shape, section, grpo, "cpu")
    assert measured <= sum(plan.updating.values()) <= 1.6 * measured
    assert shape.own == sum(p.numel() for p in policy.trainable())
    assert plan.held["optimizer"] == 2 * plan.held["trained weights"] == 8 * shape.own
    number = BYTES[dtype]
    assert plan.held["base weights"] == number * (shape.weights - shape.own)
    assert plan.sampling["weights to decode with"] == number * shape.own


def test_a_base_in_4_bits_takes_an_eighth_of_float32() -> None:
    """4.127 bits a weight (arXiv 2305.14314, section 3), and the largest one unpacked."""
    config = Qwen2Config(vocab_size=512, num_hidden_layers=2, **SIZES)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    section, grpo = sections("bfloat16")
    shape = shape_of(model, section)
    section = section.model_copy(update={"quantised": "nf4"})
    held = memory_plan(shape, section, grpo).held
    linear = 2 * (128 * (2 * 128 + 2 * 32) + 3 * 128 * 384)
    assert shape.linear == linear and shape.widest == 128 * 384
    packed = held["base weights"] - 2 * (shape.weights - linear)
    assert packed == pytest.approx(linear * 4.127 / 8, rel=1e-4)
    assert held["a weight, unpacked"] == 2 * 128 * 384


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampling_takes_what_is_planned(dtype: str) -> None:
    section, grpo = sections(dtype, max_new_tokens=16, decode_batch=8)
    policy = medium_policy("qwen2", section)
    sampler = LocalSampler(policy, section.decode_batch)
    prompts = [group.prompt_ids for group in groups_of(32, 160, 1)]
    measured = peak(lambda: sampler.draw(prompts, grpo.group_size, Sampling(1.0, 1.0, 16, 0)))
    planned = memory_plan(shape_of(policy.causal_lm, section), section, grpo).sampling
    assert measured <= sum(planned.values()) <= 1.6 * measured


def test_several_turns_take_what_is_planned() -> None:
    """An update of whole attempts, and the sampling of their last turns."""
    section, grpo = sections("float32", decode_batch=8)
    one = section
    section = section.model_copy(update={"max_episode_tokens": 320})
    policy = medium_policy("qwen2", section)
    learner = Learner(policy, grpo, 1.0, 0)
    groups = groups_of(64, 128, 320)
    learner.update(groups, 1, 192)
    shape = shape_of(policy.causal_lm, section)
    plan = memory_plan(shape, section, grpo, "cpu")
    measured = peak(lambda: learner.update(groups, 2, 192))
    assert measured <= sum(plan.updating.values()) <= 1.6 * measured
    contexts = [[*g.prompt_ids, *s.token_ids[:256]] for g in groups for s in g.samples]
    kept, prompts = kept_tokens(section, grpo), [group.prompt_ids for group in groups]
    assert kept_tokens(one, grpo) == 0 < kept
    tokens = wave_tokens(section, grpo) - kept
    sampler = LocalSampler(policy, section.decode_batch, tokens=tokens)

    def sample(*turns: tuple[list[list[int]], int]) -> Kept:
        held = Kept(kept)
        for contexts, n in turns:
            sampler.draw(contexts, n, Sampling(1.0, 1.0, 64, 0), kept=held)
        return held

    first, longest = (prompts, 4), (contexts, 1)
    measured = peak(lambda: sample(first, longest))
    assert 0.8 * kept < sample(first, longest).tokens <= kept
    assert measured <= sum(plan.sampling.values()) <= 2 * measured
    assert plan.needed > memory_plan(shape, one, grpo, "cpu").needed


def test_contexts_rendered_anew_take_what_is_planned() -> None:
    """Two attempts of five turns, each turn a sample with a prompt of its own."""
    section, grpo = sections("float32", prompts_per_step=1, group_size=2, micro_batch_tokens=1024)
    section = section.model_copy(update={"max_episode_tokens": 320})
    policy = medium_policy("qwen2", section)
    learner = Learner(policy, grpo, 1.0, 0)
    groups = [
        Group(group.prompt_ids, group.samples[:1])
        for length in range(192, 449, 64)
        for group in groups_of(64, length - 64, 64)
    ]
    learner.update(groups, 1, 192)
    shape = shape_of(policy.causal_lm, section)
    measured = peak(lambda: learner.update(groups, 2, 192))
    kept = memory_plan(shape, section, grpo, "cpu").updating
    planned = memory_plan(shape, section, grpo, "cpu", rewrites=True).updating
    assert sum(kept.values()) < measured <= sum(planned.values()) <= 2.5 * measured


def test_an_evaluation_takes_what_is_planned_for_a_step() -> None:
    """With a sample for each problem where a step has four, more prompts would fit into the rows
    than there is memory for."""
    section, grpo = sections("float32", max_new_tokens=8, decode_batch=8)
    policy = medium_policy("qwen2", section)
    draw = random.Random(0)
    template = [draw.randrange(512) for _ in range(32)]
    prompts = [[*template, *(draw.randrange(512) for _ in range(160))] for _ in range(8)]
    sampling = Sampling(1.0, 1.0, 8, 0)
    planned = memory_plan(shape_of(policy.causal_lm, section), section, grpo, "cpu").sampling
    bounded = LocalSampler(policy, section.decode_batch, tokens=wave_tokens(section, grpo))
    free = LocalSampler(policy, section.decode_batch)
    found: dict[LocalSampler, list[list[Sample]]] = {}
    taken = {
        sampler: peak(lambda s=sampler: found.update({s: s.draw(prompts, 1, sampling)}))
        for sampler in (bounded, free)
    }
    assert taken[bounded] <= sum(planned.values()) < taken[free]
    assert [g[0].token_ids for g in found[bounded]] == [g[0].token_ids for g in found[free]]


@pytest.mark.parametrize(
    ("dtype", "name"), [("float32", "merged adapter"), ("bfloat16", "adapter's copy")]
)
def test_weights_to_decode_with_take_what_is_planned(dtype: str, name: str) -> None:
    section, grpo = sections(dtype)
    policy = medium_policy("qwen2", section)
    before = {parameter.data_ptr() for parameter in policy.model.parameters()}
    with policy.decoding():
        copies = [p for p in policy.model.parameters() if p.data_ptr() not in before]
        halves = [m.halves for m in policy.model.modules() if isinstance(m, LoraLinear)]
        copies += [half for pair in halves if pair for half in pair]
        taken = sum(p.nbytes for p in copies)
    planned = memory_plan(shape_of(policy.causal_lm, section), section, grpo).sampling
    assert taken == planned[name]


def saved(policy: Policy, tokens: int) -> int:
    """Bytes that autograd keeps of a forward pass, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept = tensor.detach()  # an output that its own node held would never be freed
        if kept.untyped_storage().data_ptr() not in weights:
            found[kept.untyped_storage().data_ptr()] = kept
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        group = Group(list(range(tokens)), [Trained([1], [-1.0], 0.0)])
        assert len([numbers for _, numbers in shared_chunks(policy, [group], tokens)]) == 1
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_layer_keeps_of_a_token(kind: str, dtype: str) -> None:
    """Of three layers above those of two."""
    section, _ = sections(dtype)
    less, more = (medium_policy(kind, section, layers) for layers in (2, 3))
    shape, number = shape_of(more.causal_lm, section), BYTES[dtype]
    casts = 0 if dtype == "float32" else number * shape.adapter // shape.layers
    measured = saved(more, 200) - saved(less, 200) - casts
    assert measured == pytest.approx(200 * layer_bytes(shape, number), rel=0.02)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # peft asks by an old name
def test_peft_by_itself_keeps_half_as_much_again_in_bfloat16() -> None:
    section, _ = sections("bfloat16")
    ours = medium_policy("qwen2", section)
    # The same model, adapted by peft's own layers.
    base: Any = medium_policy("qwen2", section).model.unload()
    lora = LoraConfig(r=8, lora_alpha=8, target_modules=list(section.lora.target_modules))
    theirs: Any = get_peft_model(base, lora)
    policy = Policy(LoraTuning(theirs), ours.tokenizer, ours.device, "peft", ours.head)
    assert saved(policy, 200) / saved(ours, 200) == pytest.approx(1.5, abs=0.1)


def qwen(dtype: str = "bfloat16", **given: Any) -> MemoryDemand:
    """Qwen2.5-7B on a GPU, as most tests here want it."""
    given = {"gradient_checkpointing": False, **given}
    policy = PolicySection(dtype=dtype, max_prompt_tokens=4096, max_new_tokens=768, **given)
    return MemoryDemand(qwen_shape(), policy, GrpoSection(prompts_per_step=16))


def qwen_shape() -> ModelShape:
    """Qwen2.5-7B's shape by hand: Qwen2Config of the published config.json."""
    return ModelShape(
        layers=28,
        hidden_size=3584,
        intermediate_size=18944,
        heads=28,
        kv_heads=4,
        head_size=128,
        vocab_size=152064,
        norms_heads=False,
        weights=7_615_616_512,
        layered=28 * 233_057_792,
        adapted=28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944),
        adapter=64 * 28 * (4 * 3584 + 2 * 3584 + 2 * 512 + 3 * (3584 + 18944)),
        rank=64,
        targets=frozenset(LoraSection().target_modules),
    )


def test_all_weights_of_a_known_model_fit_if_eight_gpus_split_them() -> None:
    """By hand: 16 bytes for each of 6,525,621,760 / 8 weights, 4 of them while updating alone."""
    own = 7_615_616_512 - 2 * 152_064 * 3584
    shape = replace(qwen_shape(), own=own, adapter=0, rank=0)
    config = load_config(Path("config/training.yaml"), ["policy.train=full", "policy.sharded=true"])
    plans = {
        offload: memory_plan(
            shape, config.policy.model_copy(update={"offload": offload}), config.grpo, gpus=8
        )
        for offload in ("none", "optimizer", "all")
    }
    assert (
        plans["none"].held["optimizer"] == 8 * own // 8 == 2 * plans["none"].updating["gradients"]
    )
    assert plans["all"].needed < plans["optimizer"].needed < plans["none"].needed < 60 * GIB
    assert memory_plan(shape, config.policy, config.grpo, gpus=8, samples=False).sampling == {}


def test_the_sums_of_a_known_model() -> None:
    demand = qwen(decode_batch=64, gradient_checkpointing=True)
    assert demand.shape.kv_numbers == 28_672  # 57,344 bytes a token
    plan = demand.plan
    assert plan.held["base weights"] == 15_231_233_024
    assert plan.held["optimizer"] == 2 * plan.held["adapter"] == 8 * 161_480_704
    assert plan.sampling["keys and values"] == 57_344 * (8 * 4096 + 64 * 768)
    assert plan.updating["prompts' keys and values"] == 2 * 57_344 * (4096 + 4096)
    assert plan.updating["completions' activations"] == 28 * 2 * 3584 * 4096
    assert plan.needed == round(1.1 * max(plan.phases.values()))


FIVE_KEYS = """\
strategy_model: "Qwen/Qwen2.5-7B-Instruct"
aflow_executor_model: "gpt-oss-120b"
train_dataset: "data/mixed/train_mixed.jsonl"
val_dataset: "data/mixed/val_mixed.jsonl"
physical_gpus: [2]
"""


def test_a_short_configuration_of_a_large_model_fits_on_one_card(tmp_path: Path) -> None:
    """With nothing said of memory, on 80 GB, of which a driver leaves 79 GiB."""
    file = tmp_path / "training.yaml"
    file.write_text(FIVE_KEYS)
    config = load_config(file).on("cuda")
    assert (config.policy.dtype, config.pipeline.max_staleness) == ("bfloat16", 1)
    demand = MemoryDemand(qwen_shape(), config.policy, config.grpo)
    assert demand.plan.needed < 40 * GIB and demand.shortage(79 * GIB) is None
    chosen = demand.fitted(79 * GIB)
    assert 60 * GIB < chosen.plan.needed < 79 * GIB and chosen.fitted(30 * GIB) == chosen
    rows, layers, tokens = chosen.settings.values()
    assert rows == 256 and layers == 0 and tokens == 8192
    # As the file has it, not yet decided: the plan is a GPU's.
    assert MemoryDemand(qwen_shape(), load_config(file).policy, config.grpo).plan == demand.plan
    said = load_config(file, ["policy.dtype=float32", "pipeline.max_staleness=0"]).on("cuda")
    assert (said.policy.dtype, said.pipeline.max_staleness) == ("float32", 0)
    for other in (load_config(file).on("cpu"), load_config(file, ["strategy_model=tiny"])):
        config = other.on("cuda" if other.strategy_model == "tiny" else "cpu")
        assert (config.policy.dtype, config.policy.gradient_checkpointing) == ("float32", False)
        assert config.pipeline.max_staleness == 0


LARGE: dict[str, Any] = {  # published config.json's
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    ),
    "Qwen/Qwen3-8B": Qwen3Config(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
    "Qwen/Qwen3-14B": Qwen3Config(
        vocab_size=151936,
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=40,
        num_attention_heads=40,
        num_key_value_heads=8,
    ),
    SMOLLM2: LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    ),
}
CONFIGS = [path for path in Path("config").glob("*.yaml") if "strategy_model:" in path.read_text()]


def test_every_shipped_configuration_fits_the_card_that_it_names() -> None:
    """With all of a GPU's defaults, and each arm of the study on GPUs."""
    runs = {path.stem: load_config(path, ["policy.device=cuda"]) for path in CONFIGS}
    study = load_study(Path("config/study/gpu.yaml"))
    arms = runs_of(study, cells_of(study), Path())
    runs |= {run.cell.name: load_config(study.base, run.overrides) for run in arms}
    planned = {}
    for name, config in runs.items():
        if config.strategy_model == TINY:
            continue
        config = resolved(config, "cuda", make_environment(config))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(LARGE[config.strategy_model])
        demand = MemoryDemand(shape_of(model, config.policy), config.policy, config.grpo)
        available = round((config.plan.gpu_gb - 1) * GIB)
        assert demand.fitted(available).shortage(available) is None, name
        planned[name] = demand.fitted(available).plan.needed / GIB
    assert len(planned) >= 14 and max(planned.values()) > 70, "of the card as much as there is"


def test_weights_that_are_split_among_cards() -> None:
    whole = qwen(gradient_checkpointing=True)
    split = replace(whole, gpus=4).plan
    layer, rest = 2 * 233_057_792, 2 * (2 * 152_064 * 3584 + 3584)
    assert split.held["base weights"] == rest + 28 * layer // 4
    assert split.held["layers, gathered"] == 3 * layer
    for name in ("adapter", "optimizer"):
        assert split.held[name] == whole.plan.held[name]
    assert split.updating == whole.plan.updating


def test_shape_of_a_model_without_contents() -> None:
    config = Qwen2Config(vocab_size=512, num_hidden_layers=2, **SIZES)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    section, _ = sections("float32")
    empty = shape_of(model, section)
    loaded = shape_of(medium_policy("qwen2", section, 2).causal_lm, section)
    assert empty == loaded
    assert empty.adapter == 8 * 2 * (4 * 128 + 2 * (128 + 32) + 3 * (128 + 384))
    assert empty.weights == sum(p.numel() for p in model.parameters())


def test_the_knobs_that_make_it_fit() -> None:
    demand = qwen(decode_batch=256)
    assert demand.shortage(200 * GIB) is None
    assert demand.announce(200 * GIB) == [f"memory    {memory_summary(demand.plan)}"]
    short = demand.shortage(80 * GIB)
    assert short is not None
    assert short.endswith(
        "it fits with policy.gradient_checkpointing: 0, grpo.micro_batch_tokens: 8192"
    )
    _, warning = demand.announce(80 * GIB)
    assert warning == f"WARNING: the GPU may run out of memory: {short}"
    low = demand.shortage(24 * GIB)
    assert low is not None
    rows, layers, tokens = map(int, re.findall(r": (\d+)", low.partition("fits with")[2]))
    assert rows < 64 and 20 < layers <= 28 and tokens < 4096


async def test_a_resumed_run_keeps_what_the_memory_decided() -> None:
    """And what is configured stays in any case."""
    policy = PolicySection(device="cpu", max_prompt_tokens=64, max_new_tokens=16)
    config = make_config(strategy_model=str(checkpoint()), policy=policy)
    first = await fit_memory(config)
    assert "auto" not in memory_settings(first.policy, first.grpo).values()
    kept = {"policy.decode_batch": 96, "policy.gradient_checkpointing": 0}
    kept["grpo.micro_batch_tokens"] = 2048
    before = json.loads(config.model_copy(update=with_settings(config, kept)).model_dump_json())
    again = await fit_memory(config, before=before)
    assert memory_settings(again.policy, again.grpo) == kept
    assert again.policy.gradient_checkpointing is not False, "prompts are recomputed"
    given = config.model_copy(update={"policy": policy.model_copy(update={"decode_batch": 32})})
    assert (await fit_memory(given, before=before)).policy.decode_batch == 32
    assert make_config(**before).policy.gradient_checkpointing is not False


def test_what_no_knob_makes_fit() -> None:
    demand = qwen()
    assert "lower policy.max_prompt_tokens" in str(demand.shortage(21 * GIB))
    with pytest.raises(ConfigError, match=r"strategy_model: .* choose a smaller strategy_model"):
        demand.announce(15 * GIB)


def test_a_judge_that_scores_samples_nothing() -> None:
    plan = qwen(head="score").plan
    assert not plan.sampling and plan.phases["sampling"] == sum(plan.held.values())
    assert plan.updating == qwen().plan.updating


def test_the_table_adds_up() -> None:
    head, *rows, total = memory_table(qwen(gradient_checkpointing=True).plan)
    assert head.split()[-2:] == ["sampling", "updating"]
    left = [float(row[34:42]) for row in rows if row[34:42].strip()]
    right = [float(row[43:]) for row in rows if row[43:].strip()]
    assert (sum(left), sum(right)) == pytest.approx([float(x) for x in total.split()[-2:]], abs=0.4)


def test_the_dry_run_shows_the_plan(tmp_path: Path) -> None:
    """Of a model on a GPU that this machine need not have."""
    model, output = f"strategy_model={checkpoint()}", f"run.output_dir={tmp_path}"
    given = [model, output, "policy.device=cuda"]
    console = Console(width=120, file=StringIO())
    dry_run(load_config(Path("config/quickstart.yaml"), given), console)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "memory    GiB, at the configured limits     sampling updating" in shown
    assert "          base weights " in shown
    sharded = ["policy.sharded=true", "policy.sampler=vllm", "physical_gpus=[0,1]"]
    dry_run(load_config(Path("config/quickstart.yaml"), [*given, *sharded]), console)
    shown = console.file.getvalue()
    assert "          layers, gathered " in shown
    assert "among 2 processes: torchrun --nproc_per_node 2 train.py" in shown
