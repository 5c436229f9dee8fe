"""Tokenizers made in a moment: byte-level as Qwen's, Unigram as SentencePiece's, and of a chat
template's own control tokens."""

import re
from collections import Counter
from collections.abc import Sequence

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from flowright.llm.chat import Message
from flowright.policy.tiny import Example, train_tokenizer

TEXTS = [
    "What is 2 + 2?", "", " ", "\n\n  two lines\n", "a<b and c>d", "List<int> x; <div>é</div>",
    "Größe, 数学, 🙂 x", "user\nassistant", "Use <think> tags.", "|im_end|>", "<|im_en",
    "\tif x:\n\t\treturn [INST", "1,000.5  \\frac{1}{2}", "<s", "</think>", "ends with <",
]  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "<s>{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }}"
    "\n{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_CONTROL = re.compile(r"<\|[a-z_]{1,30}\|>|</?(?:think|tool_call|tool_response)>|<\w+_of_turn>")
THINKING = ("<think>", "</think>")


def byte_level() -> PreTrainedTokenizerFast:
    """As Qwen's: byte-level BPE, NFC, special tokens and others that are none."""
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        TEXTS * 3,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False),
    )
    core.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    core.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<think>")])
    return wrapped(core, CHATML, "<|im_end|>")


def unigram(template: str, legacy: bool, specials: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """As SentencePiece's: Unigram with a space before the first word, or before every part."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if legacy else "first")
    core.decoder = decoders.Metaspace()
    core.train_from_iterator(
        [*TEXTS, *map(chr, range(32, 127))] * 3,
        trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"],
                                show_progress=False),
    )  # fmt: skip
    core.add_special_tokens(list(specials))
    if template == GEMMA:
        core.add_tokens([AddedToken("<start_of_turn>", normalized=False), "<end_of_turn>"])
    return wrapped(core, template, specials[-1])


def wrapped(core: Tokenizer, template: str, end: str) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end)
    made.chat_template = template
    return made


def of_template(template: str, end: str) -> PreTrainedTokenizerFast:
    """Byte-level with merges, and the control tokens of a template; thinking tags are no special
    ones, as Qwen3's."""
    example = Example([Message("user", text) for text in TEXTS], [])
    made = train_tokenizer([example], 300)
    found = sorted({*_CONTROL.findall(template), end, "<bos>"} - {*THINKING})
    made.add_special_tokens({"additional_special_tokens": found, "bos_token": "<bos>"})
    made.add_tokens([tag for tag in THINKING if tag in template])
    made.add_special_tokens({"eos_token": end})
    made.chat_template = template
    return made


def held(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> Counter[str]:
    """Count the added tokens among ids."""
    names = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
    return Counter(names[number] for number in ids if number in names)
