"""What the benchmark of training judges trains, and on which rows: prompts and answers as token
ids, made up or from a file of pairs, and a model with an adapter that is not at its beginning.
"""

import copy
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from shapes import RANK
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from flowright.config.policy import LoraSection, PolicySection
from flowright.data.task import Pair
from flowright.environments.base import TrainingConversation
from flowright.environments.judging.rows import read_rows
from flowright.grpo.batch import Group, Trained
from flowright.grpo.fixed_data import conversation_groups, pair_group
from flowright.llm.chat import Message
from flowright.policy.model import Policy, load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer

METHODS = ("sft", "bradley_terry")
MODEL = LlamaConfig(
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    pad_token_id=0,
)
PROMPTS = (128, 512, 1024, 2048)
BANDS = ("short", "middle", "long")
ANSWER, SPREAD, LONGEST = 170, 1.0, 1024
"""Of answers: the median length, the deviation of its logarithm, and where it ends."""
LONGEST_TEXT = 4096
"""Tokens of a row of a file; those with longer ones are left out and counted."""
SHAKE = 0.02
"""By how much each trained weight is moved, so that an untrained adapter's zeros hide nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and its answer, or the two of a pair, the better one first: token ids."""

    prompt: list[int]
    answers: list[list[int]]

    @property
    def tokens(self) -> int:
        """Of its texts, the prompt counted with each."""
        return sum(len(self.prompt) + len(answer) for answer in self.answers)

    @property
    def longest(self) -> int:
        """Of the longer of its texts."""
        return len(self.prompt) + max(map(len, self.answers))


def random_rows(method: str, prompt: int, count: int) -> list[Row]:
    """Ragged ones behind prompts of half to one and a half of ``prompt`` tokens."""
    draw = random.Random(f"{method}/{prompt}")

    def ids(length: int) -> list[int]:
        return [draw.randrange(len(SPECIAL), MODEL.vocab_size) for _ in range(length)]

    def answer() -> list[int]:
        length = round(draw.lognormvariate(math.log(ANSWER), SPREAD))
        return ids(min(max(length, 8), LONGEST))

    answers = 2 if method == "bradley_terry" else 1
    return [
        Row(ids(draw.randint(prompt // 2, prompt * 3 // 2)), [answer() for _ in range(answers)])
        for _ in range(count)
    ]


def rows_of_file(path: Path, tokenizer: Path, count: int) -> dict[str, dict[str, list[Row]]]:
    """By band of prompt lengths and by method ``count`` rows each, drawn among a third of the file
    each. Prints how many rows were left out."""
    encoder = AutoTokenizer.from_pretrained(tokenizer)
    found = read_rows([path], ("bradley_terry",))
    pairs = [row for row in found.rows if isinstance(row, Pair)]
    made: list[dict[str, Row]] = []
    for pair in pairs:
        better, worse = (
            TrainingConversation(
                [Message(t.role, t.content) for t in (*pair.conversation, Message("assistant", a))]
            )
            for a in (pair.first, pair.second)
        )
        (lesson,) = conversation_groups(better, encoder)
        two = pair_group([better, worse], encoder)
        rows = {
            "sft": Row([*lesson.prompt_ids], [[*lesson.samples[0].token_ids]]),
            "bradley_terry": Row([*two.prompt_ids], [[*s.token_ids[:-1]] for s in two.samples]),
        }
        if max(row.longest for row in rows.values()) <= LONGEST_TEXT:
            made.append(rows)
    long = len(pairs) - len(made)
    print(f"{path}: {found.report.lines()[0]}; {long} of over {LONGEST_TEXT} tokens left out")
    made.sort(key=lambda rows: len(rows["bradley_terry"].prompt))
    third = len(made) // len(BANDS)
    bands = {}
    for number, band in enumerate(BANDS):
        drawn = random.Random(band).sample(made[number * third : (number + 1) * third], count)
        bands[band] = {method: [rows[method] for rows in drawn] for method in METHODS}
    return bands


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """As a run has them: an answer's tokens are learned; of a pair each text is scored at its last
    token, which one more token stands behind."""
    return [
        Group(row.prompt, [Trained(row.answers[0], (), 1.0)])
        if len(row.answers) == 1
        else Group(
            row.prompt,
            [Trained([*a, a[-1]], (), w) for a, w in zip(row.answers, (1.0, 0.0), strict=True)],
        )
        for row in rows
    ]


def policy(folder: Path, method: str) -> Policy:
    """The model of ``folder`` on the CPU in float32, with that method's adapter if it is there."""
    head = "score" if method == "bradley_terry" else "language_model"
    section = PolicySection(device="cpu", head=head, lora=LoraSection(rank=RANK, alpha=RANK))
    model = load_policy(str(folder), section, seed=0)
    if (folder / method).exists():
        model.tuning.read(folder / method, str(folder))
    return model


def checkpoint(folder: Path, real: Path | None, tokenizer: Path | None) -> None:
    """Write the model, or links to a real one, and an adapter for each method, not at zero. A
    random model has the vocabulary of the ``tokenizer`` that is given."""
    if real is None:
        own = AutoTokenizer.from_pretrained(tokenizer) if tokenizer else train_tokenizer([], 512)
        own.save_pretrained(folder)
        torch.manual_seed(0)
        config = copy.deepcopy(MODEL)
        config.vocab_size = len(own) if tokenizer else MODEL.vocab_size
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    else:
        for file in real.iterdir():
            if file.is_file():
                (folder / file.name).symlink_to(file.resolve())
    for method in METHODS:
        model = policy(folder, method)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.trainable():
                parameter += SHAKE * torch.randn(parameter.shape, generator=generator)
        model.save(folder / method)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows]))
