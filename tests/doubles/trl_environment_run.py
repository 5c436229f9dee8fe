"""Two steps of TRL's own GRPOTrainer on an environment, in a Python that has trl.

``python trl_environment_run.py FOLDER`` prints one line of JSON, as ``trl_run.py``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl_run import tokenizer

from flowright.app.other_trainers import EnvironmentReward
from flowright.environments.registry import make_config

VOCABULARY = ("<pad>", "<eos>", "y", "n", "m", "x", "user", "assistant")


def main(folder: str) -> None:
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    ends = {"pad_token_id": 0, "eos_token_id": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(VOCABULARY), **shape, **heads, **ends))
    kept: list[list[float | None]] = []

    class Kept(EnvironmentReward):
        async def __call__(self, *arguments: Any, **named: Any) -> list[float | None]:
            kept.append(await super().__call__(*arguments, **named))
            return kept[-1]

    reward = Kept(make_config(environment="words_environment:Words"))
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
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=reward.dataset(),
        processing_class=tokenizer(VOCABULARY),
    )
    trainer.train()
    reward.close()
    logs = [row for row in trainer.state.log_history if "rewards/environment_reward/mean" in row]
    finite = all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    steps = trainer.state.global_step
    print(json.dumps({"rewards": kept, "logs": logs, "steps": steps, "finite": finite}))


if __name__ == "__main__":
    main(*sys.argv[1:])
