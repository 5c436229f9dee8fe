"""The embedded policy: an ordinary Hugging Face folder, made once and the same every time."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import tiny_policy  # noqa: F401 - for one thread and no progress bars
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from flowright.config.policy import LoraSection, PolicySection, TinySection
from flowright.llm.chat import Message
from flowright.policy.model import load_policy
from flowright.policy.sampling import render
from flowright.policy.tiny import (
    Encoded,
    Example,
    language_loss,
    tiny_checkpoint,
    train_tokenizer,
)

PROGRAMS = (
    "async def workflow(problem):\n    return await answer(problem)",
    "async def workflow(problem):\n    code = await write_code(problem)\n    return code",
)
EXAMPLES = [
    Example([Message("user", f"Write it.\n\nWhat is {n} + {n}?\nA. {n}\nB. {n * 7}")], PROGRAMS)
    for n in range(12)
]


def section(cache_dir: Path, **given: Any) -> TinySection:
    small = {
        "hidden_size": 32,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "vocab_size": 300,
        "examples": len(EXAMPLES),
        "steps": 3,
        "batch_size": 4,
    }
    return TinySection(cache_dir=cache_dir, **small | given)


def encode(messages: Any, tokenizer: Any, max_tokens: int) -> tuple[int, ...]:
    return render(messages, tokenizer, max_tokens).token_ids


def made_in(cache: Path) -> list[str]:
    """What is in the cache but for the locks by which processes wait for each other."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cold-started checkpoint, alone in its cache."""
    return tiny_checkpoint(section(tmp_path_factory.mktemp("cache")), EXAMPLES, 100, encode)


def test_the_folder_is_what_transformers_loads(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, Qwen2ForCausalLM)
    assert model.config.hidden_size == 32
    policy = load_policy(str(folder), PolicySection(device="cpu", lora=LoraSection(rank=2)), 0)
    assert list(policy.end_ids) == [policy.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert made_in(folder.parent) == [folder.name]


def test_the_loaded_tokenizer_gives_the_tokens_of_the_cold_start(folder: Path):
    trained = train_tokenizer(EXAMPLES, 300)
    loaded = AutoTokenizer.from_pretrained(folder)
    odd = "x=[1,\n\n   22]\r\n\tcafé's  œuvre…\n```python\n    def f():\n        pass\n```"
    for text in [odd, *PROGRAMS, *(example.messages[0].content for example in EXAMPLES)]:
        ids = loaded.encode(text, add_special_tokens=False)
        assert ids == trained.encode(text, add_special_tokens=False)
        assert loaded.decode(ids) == text
    assert len(loaded.encode(PROGRAMS[0])) < len(PROGRAMS[0]) / 2  # its words were learnt


def test_the_chat_template_ends_with_the_assistants_turn(folder: Path):
    loaded = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    done = loaded.apply_chat_template(chat, tokenize=False)
    assert done.endswith("<|im_end|>\n")
    start, end = loaded.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    ids = loaded.encode(text, add_special_tokens=False)
    assert (ids.count(start), ids.count(end), loaded.eos_token_id) == (3, 2, end)


def test_the_cold_start_learns_and_is_made_once(tmp_path: Path):
    losses: list[float] = []
    settings = section(tmp_path, steps=60)

    def progress(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        assert (step, steps) == (len(losses), 60)

    folder = tiny_checkpoint(settings, EXAMPLES, 100, encode, progress)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert losses[-1] < losses[0] / 2
    assert tiny_checkpoint(settings, EXAMPLES, 100, encode, progress) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert len(losses) == 60


def test_programs_behind_one_prompt_have_the_loss_that_they_have_alone(folder: Path):
    model = Qwen2ForCausalLM.from_pretrained(folder)
    prompt, programs = [5, 9, 7, 11], [[20, 21, 2], [30, 31, 32, 33, 2]]
    with torch.no_grad():
        together = language_loss(model, [Encoded(prompt, programs), Encoded(prompt[:2], [])], 0.2)
        logits = [model(torch.tensor([[*prompt, *p]])).logits[0].log_softmax(-1) for p in programs]
    costs = [-logits[0][i, token] for i, token in enumerate(prompt[1:])]
    weights = [0.2] * len(costs)
    for own, program in zip(logits, programs, strict=True):
        costs += [-own[len(prompt) - 1 + i, token] for i, token in enumerate(program)]
        weights += [1.0] * len(program)
    costs.append(-logits[0][0, prompt[1]])  # the short prompt begins like the long one
    weights.append(0.2)
    alone = sum(w * float(c) for w, c in zip(weights, costs, strict=True)) / sum(weights)
    assert float(together) == pytest.approx(alone, rel=1e-5)


def test_the_same_examples_and_seed_give_the_same_weights(folder: Path, tmp_path: Path):
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = tiny_checkpoint(section(tmp_path), EXAMPLES, 100, encode)
    assert (again.name, digest(again)) == (folder.name, digest(folder))
    assert torch.equal(torch.get_rng_state(), state)  # the caller's draws stay the same


def test_another_recipe_is_another_folder(folder: Path, tmp_path: Path):
    changes: list[dict[str, int]] = [{"seed": 1}, {"steps": 4}, {"layers": 2}]
    others = [tiny_checkpoint(section(tmp_path, **c), EXAMPLES, 100, encode) for c in changes]
    fewer = tiny_checkpoint(section(tmp_path), EXAMPLES[1:], 100, encode)
    shorter = tiny_checkpoint(section(tmp_path), EXAMPLES, 99, encode)
    assert len({path.name for path in (folder, fewer, shorter, *others)}) == 6
    assert all(digest(folder) != digest(other) for other in others)


def test_an_interrupted_cold_start_leaves_nothing_half_made(tmp_path: Path):
    def stop(step: int, steps: int, loss: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_checkpoint(section(tmp_path), EXAMPLES, 100, encode, stop)
    assert made_in(tmp_path) == []
    assert tiny_checkpoint(section(tmp_path), EXAMPLES, 100, encode).is_dir()
