"""Exported folders: what transformers and peft make of them is what was trained."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp_shards import as_rank, write_placed, write_plain
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_policy import SHAPE, checkpoint, shake, tiny_policy
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Qwen2Config,
)

from flowright.app.exporting import Request, export_model
from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection
from flowright.core.errors import RunError, UserError
from flowright.grpo.checkpoint import save_checkpoint
from flowright.grpo.learner import Learner

IDS = torch.arange(10, 30)[None]


def export(source: Path, out: Path, **given: Any) -> str:
    """What was said."""
    console = Console(record=True, quiet=False, file=(out.parent / "said.txt").open("w"))
    try:
        assert export_model(Request(source, out, **given), console) == 0
    finally:
        console.file.close()
    return console.export_text()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def loaded(folder: Path, auto: Any = AutoModelForCausalLM) -> Any:
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return model


def state_of(folder: Path) -> dict[str, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def verl_folder(path: Path, model: Path) -> Path:
    """``global_step_7/actor`` with config and tokenizer, and no weights yet."""
    actor = path / "global_step_7/actor"
    shutil.copytree(model, actor / "huggingface", ignore=lambda *_: ["model.safetensors"])
    fsdp = {"FSDP_version": 2, "world_size": 2}
    (actor / "fsdp_config.json").write_text(json.dumps(fsdp))
    (path / "latest_checkpointed_iteration.txt").write_text("7")
    return actor


@pytest.mark.parametrize("given", [{}, {"lora": LoraSection(rank=4, rank_stabilised=True)}])
def test_an_adapter_becomes_part_of_its_base(tmp_path: Path, given: dict[str, Any]) -> None:
    policy = tiny_policy(**given)
    trained = logits(policy.causal_lm)
    policy.save(tmp_path / "adapter")
    said = export(tmp_path / "adapter", tmp_path / "out")
    assert "written" in said and "(merged, float32)" in said
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), trained, rtol=0, atol=1e-4)
    policy.save_merged(tmp_path / "ours")
    ours = load_file(tmp_path / "ours/model.safetensors")
    theirs = load_file(tmp_path / "out/model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_the_sum_is_rounded_once(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.save(tmp_path / "adapter")
    export(tmp_path / "adapter", tmp_path / "whole")
    export(tmp_path / "adapter", tmp_path / "half", dtype="bfloat16", most_bytes=4000)
    whole = load_file(tmp_path / "whole/model.safetensors")
    index = json.loads((tmp_path / "half/model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "half").glob("*.safetensors"))
    assert [file.name for file in files] == sorted(set(index["weight_map"].values()))
    assert len(files) == 4
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "half" / file)[name], whole[name].bfloat16())
    assert index["metadata"]["total_size"] == sum(2 * t.numel() for t in whole.values())
    assert loaded(tmp_path / "half").dtype == torch.bfloat16


@pytest.mark.skipif(
    find_spec("bitsandbytes") is None,
    reason="bitsandbytes is not installed (requirements-quantised.txt)",
)
def test_a_base_in_4_bits_is_unpacked(tmp_path: Path) -> None:
    policy = tiny_policy(quantised="nf4")
    run = tmp_path / "run"
    save_checkpoint(run / "checkpoints", 1, policy, Learner(policy, GrpoSection(), 1.0, 0), 2)
    section = {"quantised": "nf4", "lora": {"rank": 4, "alpha": 8}}
    (run / "config.json").write_text(json.dumps({"policy": section}))
    trained = logits(policy.causal_lm)
    assert "note      the base as it was trained beside: nf4, unpacked" in export(
        run, tmp_path / "out"
    )
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), trained, rtol=0, atol=1e-4)


def test_an_adapter_alone_is_peft_s(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.save(tmp_path / "adapter")
    export(tmp_path / "adapter", tmp_path / "out", form="adapter")
    base = AutoModelForCausalLM.from_pretrained(checkpoint())
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        model = PeftModel.from_pretrained(base, str(tmp_path / "out"))
    torch.testing.assert_close(logits(model), logits(policy.causal_lm), rtol=0, atol=1e-5)
    assert not (tmp_path / "out/config.json").exists()
    assert (tmp_path / "out/tokenizer.json").is_file()


@pytest.mark.parametrize("train", ["lora", "full"])
def test_a_run_is_exported_by_its_newest_checkpoint(tmp_path: Path, train: Any) -> None:
    policy = tiny_policy(train=train)
    run = tmp_path / "judge"
    learner = Learner(policy, GrpoSection(), 1.0, 0)
    for step in (1, 2):
        shake(policy, seed=step)
        save_checkpoint(run / "checkpoints", step, policy, learner, 2)
    section = {"train": train, "lora": {"rank": 4}, "vllm": {"api_key": "secret"}}
    config = {"strategy_model": "/home/me/base", "seed": 3, "policy": section}
    (run / "config.json").write_text(json.dumps(config))
    said = export(run, tmp_path / "out")
    assert "judge, step_000002" in said
    torch.testing.assert_close(
        logits(loaded(tmp_path / "out")), logits(policy.causal_lm), rtol=0, atol=1e-4
    )
    card = (tmp_path / "out/README.md").read_text()
    assert '"seed": 3' in card and '"strategy_model": "base"' in card
    assert "licence of the base | unknown" in card
    assert "secret" not in card and "/home" not in card and str(tmp_path) not in card
    weights = run / "checkpoints/step_000002" / ("adapter" if train == "lora" else "model")
    next(weights.glob("*.safetensors")).write_bytes(b"")
    with pytest.raises(RunError, match="safetensors is corrupt; export another checkpoint"):
        export(run / "checkpoints/step_000002", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_scalar_judge_keeps_its_class(tmp_path: Path) -> None:
    """By an adapter with ``modules_to_save``, and as a whole model."""
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        base = AutoModelForSequenceClassification.from_pretrained(checkpoint(), num_labels=1)
        lora = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"])
        model: Any = get_peft_model(base, lora)
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "score" in name:
                parameter.normal_(std=0.2, generator=drawn)
    model.save_pretrained(tmp_path / "adapter")
    said = export(tmp_path / "adapter", tmp_path / "out")
    assert "largest difference of scores" in said and "score.weight: 1 row" in said
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["Qwen2ForSequenceClassification"]
    judge = loaded(tmp_path / "out", AutoModelForSequenceClassification)
    assert judge.config.num_labels == 1 and logits(judge).shape == (1, 1)
    torch.testing.assert_close(logits(judge), logits(model), rtol=0, atol=1e-5)
    export(tmp_path / "out", tmp_path / "again", dtype="bfloat16")
    again = loaded(tmp_path / "again", AutoModelForSequenceClassification)
    torch.testing.assert_close(logits(again).float(), logits(judge), rtol=0.1, atol=0.1)


def test_two_ranks_of_fsdp2(tmp_path: Path) -> None:
    """DTensors as FSDP2 splits them, as verl saves them; the embedding is tied."""
    actor = verl_folder(tmp_path, checkpoint())
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
            model: Any = AutoModelForCausalLM.from_pretrained(checkpoint())
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            torch.save(model.state_dict(), actor / f"model_world_size_2_rank_{rank}.pt")
    said = export(tmp_path, tmp_path / "out")
    assert "all weights, by verl on 2 ranks" in said
    assert "lm_head.weight left out: tied, and equal, to model.embed_tokens.weight" in said
    assert "source 0, of" in said
    expected = load_file(checkpoint() / "model.safetensors")
    written = load_file(tmp_path / "out/model.safetensors")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert "global_step_7" in (tmp_path / "out/README.md").read_text()


def with_lora(rank: int = 2, alpha: float = 6.0) -> tuple[dict[str, Tensor], Tensor]:
    """The state of a model with an adapter in it, named as peft does, and its logits."""
    base = AutoModelForCausalLM.from_pretrained(checkpoint("qwen3"))
    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["q_proj", "down_proj"])
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        model: Any = get_peft_model(base, lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return {n: t.detach().clone() for n, t in model.state_dict().items()}, logits(model)


@pytest.mark.parametrize("form", [None, "merge", "adapter"])
def test_lora_among_verl_s_files(tmp_path: Path, form: str | None) -> None:
    state, trained = with_lora()
    actor = verl_folder(tmp_path, checkpoint("qwen3"))
    placements = {
        name: [Replicate(), Shard(0)] if tensor.ndim else [Replicate()] * 2
        for name, tensor in state.items()
    }
    write_placed(actor, state, [2, 2], placements)
    with pytest.raises(RunError, match=r"nothing records its alpha.*--lora-alpha"):
        export(tmp_path / "global_step_7", tmp_path / "out")
    (actor / "lora_adapter").mkdir()
    kept = {"r": 2, "lora_alpha": 6, "base_model_name_or_path": str(checkpoint("qwen3"))}
    (actor / "lora_adapter/adapter_config.json").write_text(json.dumps(kept))
    out = tmp_path / "out"
    export(tmp_path / "global_step_7", out, form=form)
    if form == "merge":
        model = loaded(out)
    else:
        adapter = out if form else out / "lora_adapter"
        base = AutoModelForCausalLM.from_pretrained(checkpoint("qwen3") if form else out)
        with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
            model = PeftModel.from_pretrained(base, str(adapter))
    assert (out / "config.json").exists() == (form != "adapter")
    torch.testing.assert_close(logits(model), trained, rtol=0, atol=1e-4)


def test_plain_shards_with_padding_and_heads(tmp_path: Path) -> None:
    """A vocabulary that was padded, a value head of TRL beside the model, and verl's critic."""
    state = state_of(checkpoint("qwen3"))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = torch.cat([state[name], torch.zeros(5, SHAPE["hidden_size"])])
    actor = verl_folder(tmp_path, checkpoint("qwen3"))
    whole = [name for name in state if "norm" in name]
    write_plain(actor, {**state, "v_head.summary.weight": torch.ones(2, 16)}, 2, whole)
    said = export(actor, tmp_path / "out")
    assert "v_head.summary.weight left out: a value head" in said
    assert "vocab_size 264, was 259" in said and "5 rows of the embedding are padding" in said
    assert torch.equal(state_of(tmp_path / "out")["lm_head.weight"], state["lm_head.weight"])
    del state["lm_head.weight"]
    score = {"score.weight": torch.randn(1, 16), "score.bias": torch.zeros(1)}
    write_plain(actor, {**state, **score}, 2, [*whole, *score])
    said = export(actor, tmp_path / "critic")
    assert "a value for each token: Qwen3ForTokenClassification" in said
    critic = loaded(tmp_path / "critic", AutoModelForTokenClassification)
    assert logits(critic).shape == (1, 20, 1)
    assert torch.equal(critic.score.weight, score["score.weight"])


def test_a_head_that_is_not_tied_any_more(tmp_path: Path) -> None:
    state = state_of(checkpoint())
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    actor = verl_folder(tmp_path, checkpoint())
    write_plain(actor, state, 1, [])
    assert "tie_word_embeddings false: lm_head.weight differs" in export(actor, tmp_path / "out")
    written = state_of(tmp_path / "out")
    assert torch.equal(written["lm_head.weight"], state["lm_head.weight"])
    assert torch.equal(written["model.norm.weight"], state["model.norm.weight"])


def test_a_broken_model_is_not_written(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(checkpoint("qwen3"), folder)
    state = load_file(folder / "model.safetensors")
    meta = {"format": "pt"}
    lost = state["model.norm.weight"].clone()
    lost[3] = torch.nan
    for changed, said in (
        ({"model.norm.weight": lost}, r"model.norm.weight: 1 of its 16 numbers are not finite"),
        ({"model.norm.weight": lost.nan_to_num(7e4)}, r"too large for float16; give --dtype"),
        ({"more.weight": lost.nan_to_num(1)}, r"has no place for more.weight \(1 in all\)"),
    ):
        save_file({**state, **changed}, folder / "model.safetensors", meta)
        with pytest.raises(RunError, match=said):
            export(folder, out, dtype="float16" if "float16" in said else None)
    state.pop("model.norm.weight")
    save_file(state, folder / "model.safetensors", meta)
    with pytest.raises(RunError, match=r"lacks model.norm.weight"):
        export(folder, out)
    assert not out.exists() and not out.with_name("out.part").exists()


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    tiny_policy().save(tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_config.json"
    config = json.loads(file.read_text())
    other = tmp_path / "other"
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE | {"intermediate_size": 24}))
    model.save_pretrained(other)
    with pytest.raises(RunError, match=r"does not fit the base \(.*down_proj.*--base"):
        export(tmp_path / "adapter", tmp_path / "out", base=str(other))
    for changed, said in (
        ({"base_model_name_or_path": "/not/here"}, r"/not/here: the base is not there.*--base"),
        ({"base_model_name_or_path": None}, r"names no base; give it with --base"),
        ({"peft_type": "IA3"}, r"a peft adapter of type IA3"),
    ):
        file.write_text(json.dumps({**config, **changed}))
        with pytest.raises(RunError, match=said):
            export(tmp_path / "adapter", tmp_path / "out")
    file.write_text(json.dumps(config))
    packed = json.loads((other / "config.json").read_text())
    packed["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (other / "config.json").write_text(json.dumps(packed))
    with pytest.raises(RunError, match=r"its weights are packed \(gptq\)"):
        export(tmp_path / "adapter", tmp_path / "out", base=str(other))
    assert not (tmp_path / "out").exists()


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    tiny_policy().save(tmp_path / "adapter")
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds something else"):
        export(tmp_path / "adapter", out, overwrite=True)
    with pytest.raises(UserError, match="holds what is to be exported"):
        export(tmp_path / "adapter", tmp_path, overwrite=True)
    (out / "thesis.tex").unlink()
    export(tmp_path / "adapter", out)
    with pytest.raises(UserError, match="holds a model; --overwrite replaces it"):
        export(tmp_path / "adapter", out)
    (out / "old").touch()
    export(tmp_path / "adapter", out, overwrite=True)
    assert not (out / "old").exists()
    with pytest.raises(UserError, match="--adapter: out has no adapter"):
        export(out, tmp_path / "more", form="adapter")
    with pytest.raises(RunError, match="no model: no checkpoints"):
        export(checkpoint().parent, tmp_path / "more")
    with pytest.raises(RunError, match="no such folder"):
        export(tmp_path / "none", tmp_path / "more")


def test_layers_of_their_own_ranks_and_dora_are_merged(tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(checkpoint("qwen3"))
    kept = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {r".*\.0\..*": 3}, "use_dora": True}
    lora = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"], **kept)
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        model: Any = get_peft_model(base, lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "adapter")
    export(tmp_path / "adapter", tmp_path / "out", base=str(checkpoint("qwen3")))
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), logits(model), rtol=0, atol=1e-4)


def test_an_adapter_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    """peft would leave out what has no place."""
    tiny_policy().save(tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    state = load_file(file)
    more = {name.replace("layers.0", "layers.9"): t.clone() for name, t in state.items()}
    save_file({**state, **more}, file)
    with pytest.raises(RunError, match=r"the base has no model.layers.9.*--base"):
        export(tmp_path / "adapter", tmp_path / "out")
