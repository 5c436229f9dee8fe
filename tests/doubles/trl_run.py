"""Two steps of TRL's own GRPOTrainer with a judge service, in an environment that has trl.

``python trl_run.py URL plain|conversational FOLDER`` prints one line of JSON: what the reward
function gave, what TRL logged, and whether the trained weights are finite.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from flowright.judging.reward.trl import TrlReward, trl_reward

WORDS = ("<pad>", "<eos>", "fails", "42", "7", "What", "is", "user", "assistant")
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """Words alone, so that a random model says the right, the wrong and the unjudgeable often."""
    vocabulary = {word: number for number, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=words[4]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = TEMPLATE
    return made


def made(folder: str, words: Sequence[str], rewards: Any, data: Dataset) -> GRPOTrainer:
    """A trainer of a random model of these words: two steps of 32 completions, 16 a prompt."""
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=len(words), **shape, **heads, pad_token_id=0, eos_token_id=1)
    settings = GRPOConfig(
        output_dir=str(Path(folder) / "out"),
        per_device_train_batch_size=32,
        num_generations=16,
        max_completion_length=2,
        max_steps=2,
        logging_steps=1,
        learning_rate=0.01,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=1,
    )
    return GRPOTrainer(
        model=Qwen2ForCausalLM(config),
        reward_funcs=rewards,
        args=settings,
        train_dataset=data,
        processing_class=tokenizer(words),
    )


def main(url: str, form: str, folder: str) -> None:
    asked: Any = "What is 42"
    if form == "conversational":
        asked = [{"role": "user", "content": asked}]
    data = Dataset.from_list([{"prompt": asked, "solution": "42"}] * 4)

    # The judge abstains on `fails`: some samples of every batch have no verdict.
    quiet = {"judge_url": url, "fallback_to_rule": False}
    given: list[list[float | None]] = []

    class Kept(TrlReward):
        def __call__(self, *arguments: Any, **named: Any) -> list[float | None]:
            given.append(super().__call__(*arguments, **named))
            return given[-1]

    judged = Kept(quiet, "solution", (), "sync_judge", most_unscored=1.0)
    awaited = trl_reward(quiet, asynchronous=True, name="async_judge", most_unscored=1.0)
    trainer = made(folder, WORDS, [judged, awaited], data)
    trainer.train()
    judged.close()
    awaited.close()
    logs = [row for row in trainer.state.log_history if "rewards/sync_judge/mean" in row]
    finite = all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    told = {"rewards": given, "logs": logs, "steps": trainer.state.global_step, "finite": finite}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
