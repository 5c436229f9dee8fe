"""TRL's GRPOTrainer on a step of ``step.py`` or ``gpu_step.py``, in an environment that has TRL;
started by these.

TRL is set as its user would for this shape on a CPU: float32, no gradient checkpointing, no KL
term, one optimizer step a batch, and so no second forward pass for the old log-probabilities; a
batch that is too large for one pass is accumulated. It generates by transformers with the cache,
which is its only way without a GPU server. Its tokenizer knows an end token that the model has not,
so that every completion is as long as allowed. Prompts are tokenized and rewards made as always; a
reward here is a constant.

Without Triton, so on every CPU, TRL 1.16 runs the head on all positions, prompts included; with it,
only on those that predict a completion's token. ``"compact": true`` has it do so here too: what TRL
would cost if its CPU path did what its GPU path does.

On a GPU: bfloat16, gradient checkpointing, which is TRL's default, and a random model and adapter,
made there. With ``"vllm"``, a folder, TRL generates by vLLM in its own process; the model is first
written there.

    PYTHON benchmarks/step_trl.py CASE.json
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import trl.trainer.utils
from datasets import Dataset
from meter import Meter
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

WARM = 16
"""Tokens of a completion in the first step, which is not measured."""


def tokenizer_of(vocab_size: int) -> PreTrainedTokenizerFast:
    """Number n is the word "n"; the end token is one more than the model has."""
    names = [*map(str, range(vocab_size)), "end"]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="end", pad_token="0", padding_side="left"
    )


class Steps(TrainerCallback):
    """The second step is measured: from its begin to its end, less what is generated, is the
    update."""

    def __init__(self, device: str) -> None:
        self.device, self.began = device, 0.0
        self.meter: Meter | None = None
        self.found: dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.meter = Meter(self.device)
            self.began = self.meter.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.meter is not None:
            seconds = self.meter.now() - self.began
            self.found = self.meter.found()
            self.found["update s"] = seconds - self.found["generate s"]
            self.found["update GB"] = self.meter.peak()


class Timed(GRPOTrainer):
    """Generates for the measured step under the callback's meter, and cuts its completions to
    ``lengths``, as a model's own end tokens would."""

    steps: Steps
    lengths: list[int]

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        meter = self.steps.meter
        if meter is None or meter.seconds:  # generated already: this only hands out the next rows
            return super()._prepare_inputs(generation_batch)
        prepare = super()._prepare_inputs
        made = meter.measure("generate", lambda: prepare(generation_batch))
        meter.forget_peak()
        return made

    def turns(self, prompts: list[str], count: int, answer: list[int]) -> dict[str, Any]:
        """A ``rollout_func``: attempts of several turns, as ``_tool_call_loop`` generates them for
        an ``environment_factory``, which wants a model that calls tools."""
        prompt_ids, *_ = self._tokenize_prompts(prompts)
        ids, _ = self._generate_single_turn(prompt_ids, None, {}, self.num_generations)
        masks = [[1] * len(some) for some in ids]
        for _ in range(1, count):
            behind = [[*some, *answer] for some in ids]
            contexts = [[*a, *b] for a, b in zip(prompt_ids, behind, strict=True)]
            more, _ = self._generate_single_turn(contexts, None, {}, num_generations=1)
            ids = [[*a, *b] for a, b in zip(behind, more, strict=True)]
            for mask, some in zip(masks, more, strict=True):
                mask += [0] * len(answer) + [1] * len(some)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": ids,
            "logprobs": None,
            "env_mask": masks,
        }

    def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
        full = self.steps.meter is not None
        self.generation_config.max_new_tokens = self.max_completion_length if full else WARM
        ids, logprobs = super()._generate_single_turn(*given, **named)
        cut = [some[:length] for some, length in zip(ids, self.lengths, strict=True)]
        if logprobs is not None:  # of vLLM
            logprobs = [some[: len(tokens)] for some, tokens in zip(logprobs, cut, strict=True)]
        return cut, logprobs


def rewards(completions: list[str], **_: Any) -> list[float]:
    return [float(number % 3 == 0) for number in range(len(completions))]


def model_of(case: dict[str, Any]) -> Any:
    if "config" not in case:
        base = AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32)
        return PeftModel.from_pretrained(base, case["adapter"], is_trainable=True)
    torch.manual_seed(0)
    folder, rank = case["vllm"], case["rank"]
    with torch.device(case["device"]):
        config = Qwen2Config(**case["config"])
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if folder:
        base.save_pretrained(folder)
        tokenizer_of(case["vocab_size"]).save_pretrained(folder)
        base.name_or_path = base.config._name_or_path = folder
    return get_peft_model(base, LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear"))


def measure(case: dict[str, Any]) -> dict[str, float]:
    on_gpu = (device := case.get("device", "cpu")) != "cpu"
    if not on_gpu:
        torch.set_num_threads(1)
    if case["compact"]:
        trl.trainer.utils._use_triton = lambda device: True
    model = model_of(case)
    prompts = [" ".join(map(str, prompt)) for prompt in case["prompts"]]
    short = [prompt[: len(prompt) // 40] for prompt in prompts]
    steps = Steps(device)

    def rollouts(prompts: list[str], trainer: Timed) -> dict[str, Any]:
        return trainer.turns(prompts, case["turns"], case["answer"])

    with tempfile.TemporaryDirectory() as folder:
        rows = len(prompts) * case["size"]
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=not on_gpu,
            bf16=on_gpu,
            gradient_checkpointing=on_gpu,
            per_device_train_batch_size=min(rows, case["rows_at_once"]),
            gradient_accumulation_steps=max(1, rows // case["rows_at_once"]),
            use_vllm=bool(case.get("vllm")),
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=0.4,
            vllm_max_model_length=2048,
            num_generations=case["size"],
            max_completion_length=case["length"],
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=0.0,
            loss_type="dapo",
            num_iterations=1,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_steps=2,
            shuffle_dataset=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Timed(
            model=model,
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [*short, *prompts]}),
            processing_class=tokenizer_of(case["vocab_size"]),
            callbacks=[steps],
            rollout_func=rollouts if case["turns"] > 1 else None,
        )
        trainer.steps, trainer.lengths = steps, case["lengths"]
        trainer.train()
    return steps.found


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(measure(json.loads(Path(sys.argv[1]).read_text()))))


if __name__ == "__main__":
    main()
