"""TRL's SFTTrainer and RewardTrainer on a step of ``judge_training.py``, in an environment that has
TRL; started by that. Each case in a process of its own.

float32 on the CPU, rows that are tokenized already and come in the order given, a step of all of
them. SFT learns the answers alone, as ours does; TRL 1.16's loss makes no logits of a whole batch.

    PYTHON benchmarks/judge_training_trl.py CASES.json
"""

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from meter import Meter, forget_peak, forked, memory
from peft import PeftModel
from step_trl import tokenizer_of
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
)
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

Row = dict[str, Any]


class SecondStep(TrainerCallback):
    """What the second step costs, from its begin to its end."""

    def __init__(self) -> None:
        self.began = 0.0
        self.meter: Meter | None = None
        self.found: dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.meter = Meter()
            forget_peak()
            self.began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.meter is not None:
            self.found["step s"] = time.process_time() - self.began
            self.found["step GB"] = memory("VmHWM") - self.meter.loaded


def lessons(rows: list[Row]) -> Dataset:
    """Prompts are seen and not learned."""
    texts = [(row["prompt"], row["answers"][0]) for row in rows]
    return Dataset.from_dict(
        {
            "input_ids": [prompt + answer for prompt, answer in texts],
            "labels": [[-100] * len(prompt) + answer for prompt, answer in texts],
        }
    )


def pairs(rows: list[Row]) -> Dataset:
    names = ("chosen_ids", "rejected_ids")
    return Dataset.from_dict(
        {name: [row["prompt"] + row["answers"][i] for row in rows] for i, name in enumerate(names)}
    )


def cut(rows: list[Row], length: int) -> list[Row]:
    return [
        {"prompt": row["prompt"][:length], "answers": [a[:length] for a in row["answers"]]}
        for row in rows
    ]


def measure(case: dict[str, Any]) -> dict[str, float]:
    torch.set_num_threads(1)
    rows: list[Row] = json.loads(Path(case["rows"]).read_text())
    sft = case["method"] == "sft"
    kind: Any = AutoModelForCausalLM if sft else AutoModelForSequenceClassification
    more = {} if sft else {"num_labels": 1}
    base = kind.from_pretrained(case["model"], dtype=torch.float32, **more)
    model = PeftModel.from_pretrained(base, case["adapter"], is_trainable=True)
    at_once = min(case["at_once"], len(rows))
    assert len(rows) % at_once == 0
    step = SecondStep()
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = {
            "output_dir": folder,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": case.get("checkpointing", False),
            "per_device_train_batch_size": at_once,
            "gradient_accumulation_steps": len(rows) // at_once,
            "max_length": None,
            "learning_rate": 1e-6,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1e9,
            "max_steps": 2,
            "train_sampling_strategy": "sequential",
            "save_strategy": "no",
            "logging_strategy": "steps",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
        }
        given: dict[str, Any] = {
            "model": model,
            "processing_class": tokenizer_of(case["vocab_size"]),
            "callbacks": [step],
        }
        data = (lessons if sft else pairs)([*cut(rows, case["warm"]), *rows])
        if sft:
            config = SFTConfig(
                **common,
                padding_free=case.get("padding_free", False),
                dataset_kwargs={"skip_prepare_dataset": True},
            )
            trainer: Any = SFTTrainer(args=config, train_dataset=data, **given)
        else:
            trainer = RewardTrainer(args=RewardConfig(**common), train_dataset=data, **given)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {**step.found, "loss": float(losses[1])}


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([forked(measure, case) for case in cases]))


if __name__ == "__main__":
    main()
