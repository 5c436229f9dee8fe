"""The embedded policy: a small Qwen2 checkpoint made on this machine, for runs without a hub.

It is cold-started by supervised training on the caller's prompts and programs, on the tokens of
both: a policy that never had to read the question cannot learn to treat problems differently. The
result is an ordinary Hugging Face folder, loaded by the same code as Qwen2.5-7B, which stands in
for a language model and can write nothing else.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from flowright.config.policy import TinySection
from flowright.core.files import atomic_directory, in_turn
from flowright.llm.chat import Message
from flowright.policy.layout import lay_out

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
SPECIAL = [PAD, START, END]
"""Ids 0, 1, 2: the trainer of the vocabulary numbers them first."""

POSITIONS = 2048
"""Most tokens of a sequence."""

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

EncodePrompt = Callable[[Sequence[Message], PreTrainedTokenizerFast, int], Sequence[int]]
"""Returns the token ids of messages, cut to a number of tokens, as in training."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt of the cold start and programs that answer it."""

    messages: Sequence[Message]
    programs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a prompt and of its programs."""

    prompt: Sequence[int]
    programs: Sequence[Sequence[int]]


def tiny_checkpoint(
    section: TinySection,
    examples: Sequence[Example],
    max_prompt_tokens: int,
    encode_prompt: EncodePrompt,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> Path:
    """Return the folder of the cold-started checkpoint, made on the first call with these examples.
    ``progress(step, steps, loss)`` is called after each supervised step."""
    folder = section.cache_dir / f"tiny-{_fingerprint(section, examples, max_prompt_tokens)}"
    if (folder / "config.json").exists():
        return folder
    with in_turn(folder):
        if not (folder / "config.json").exists():  # another process may have made it meanwhile
            _make(folder, section, examples, max_prompt_tokens, encode_prompt, progress)
    return folder


def _make(
    folder: Path,
    section: TinySection,
    examples: Sequence[Example],
    max_prompt_tokens: int,
    encode_prompt: EncodePrompt,
    progress: Callable[[int, int, float], None],
) -> None:
    tokenizer = train_tokenizer(examples, section.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(section.seed)
        model = Qwen2ForCausalLM(_architecture(section, tokenizer))
        prompts = [encode_prompt(e.messages, tokenizer, max_prompt_tokens) for e in examples]
        encoded = [_encode(tokenizer, *each) for each in zip(examples, prompts, strict=True)]
        _cold_start(model, encoded, section, progress)
    with atomic_directory(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)


def train_tokenizer(examples: Sequence[Example], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the examples, with a ChatML template. Text is pre-tokenized as in
    Qwen2, which AutoTokenizer does for a Qwen2 folder whatever is in ``tokenizer.json``."""
    qwen2 = Qwen2Tokenizer().backend_tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = qwen2.normalizer
    tokenizer.pre_tokenizer = qwen2.pre_tokenizer
    tokenizer.decoder = qwen2.decoder
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for e in examples for text in (*(m.content for m in e.messages), *e.programs))
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def _architecture(section: TinySection, tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=section.hidden_size,
        intermediate_size=section.hidden_size * 8 // 3 // 16 * 16,
        num_hidden_layers=section.layers,
        num_attention_heads=section.heads,
        num_key_value_heads=section.kv_heads,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL.index(START),
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )


def _cold_start(
    model: Qwen2ForCausalLM,
    encoded: Sequence[Encoded],
    section: TinySection,
    progress: Callable[[int, int, float], None],
) -> None:
    order = random.Random(section.seed)
    optimizers = _optimizers(model, section)
    schedules = [LambdaLR(each, partial(_rate, steps=section.steps)) for each in optimizers]
    batches: list[list[Encoded]] = []
    model.train()
    for step in range(section.steps):
        if not batches:
            batches = _batches(encoded, section.batch_size, order)
        loss = language_loss(model, batches.pop(), section.prompt_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        model.zero_grad(set_to_none=True)
        progress(step + 1, section.steps, float(loss.detach()))
    model.eval()


def _optimizers(model: Qwen2ForCausalLM, section: TinySection) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for the rest. With AdamW alone a minute of
    training learns to write programs but not to read the question first (docs/lab_notebook.md)."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    return [
        torch.optim.Muon(matrices, lr=section.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=section.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int, steps: int) -> float:
    """Return the factor of the learning rate: a short linear warm-up, then linear to 2 %."""
    warmup = max(1, steps // 20)
    return min((step + 1) / warmup, max(0.02, 1 - step / steps))


def _encode(
    tokenizer: PreTrainedTokenizerFast, example: Example, prompt_ids: Sequence[int]
) -> Encoded:
    programs = [
        tokenizer.encode(f"{program}{END}", add_special_tokens=False)
        for program in example.programs
    ]
    return Encoded(prompt_ids, programs)


def _batches(encoded: Sequence[Encoded], size: int, order: random.Random) -> list[list[Encoded]]:
    """Return one pass over the examples in random batches. Sorted by length, each would have one
    kind of problem, and the model would never learn to distinguish kinds."""
    shuffled = order.sample(encoded, len(encoded))
    return [shuffled[i : i + size] for i in range(0, len(shuffled), size)]


def language_loss(
    model: Qwen2ForCausalLM, batch: Sequence[Encoded], prompt_weight: float
) -> Tensor:
    """Return the weighted mean cross-entropy of all tokens but the first of each prompt, in nats; a
    prompt's tokens weigh ``prompt_weight``, a program's 1."""
    layout = lay_out([(example.prompt, example.programs) for example in batch])
    width = layout.input_ids.shape[1]
    prompts = [torch.arange(len(e.prompt) - 1) + row * width for row, e in enumerate(batch)]
    targets = [token for example in batch for token in example.prompt[1:]]
    weights = [prompt_weight] * len(targets)
    for program in (program for example in batch for program in example.programs):
        targets += program
        weights += [1.0] * len(program)
    hidden = model.model(
        input_ids=layout.input_ids, position_ids=layout.positions, attention_mask=layout.mask
    ).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[torch.cat([*prompts, *layout.sources])])
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="none")
    return (losses * torch.tensor(weights)).sum() / sum(weights)


_RECIPE = b"1"
"""Raise it with every change of the model or its supervised training; a change of words alone must
not make the checkpoints of older runs unusable."""


def _fingerprint(section: TinySection, examples: Sequence[Example], max_prompt_tokens: int) -> str:
    """Hash all that the checkpoint depends on."""
    digest = hashlib.sha256(_RECIPE)
    digest.update(f"{max_prompt_tokens}\n".encode())
    digest.update(section.model_dump_json(exclude={"cache_dir"}).encode())
    for example in examples:
        for text in (*(m.content for m in example.messages), *example.programs):
            digest.update(text.encode())
            digest.update(b"\0")
    return digest.hexdigest()[:16]
