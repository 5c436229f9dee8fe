"""Suggestions for an unknown key, by name alone.

Needs the standard library only, so that ``scripts/quickstart.sh`` can check its arguments before
anything is installed.
"""

import difflib
from collections.abc import Collection, Sequence

_TENSORBOARD = "TensorBoard files are written where run.tensorboard is true"
_EACH_STEP = "every step is written to metrics.jsonl of the run"
_SERVERS = "addresses and keys of models are in the file that llm.file names"

# Names of other trainers' keys: one key of ours, several, or a sentence. By their last part, in
# lower case with underscores.
ELSEWHERE: dict[str, tuple[str, ...] | str] = {
    **dict.fromkeys(("lr", "learning_rate"), ("grpo.learning_rate",)),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler"), ("grpo.schedule",)),
    **dict.fromkeys(("warmup_ratio", "lr_warmup_steps", "warmup"), ("grpo.warmup_steps",)),
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "per_device_train_batch_size", "global_batch_size"),
        ("grpo.prompts_per_step", "grpo.group_size"),
    ),
    **dict.fromkeys(
        ("num_generations", "rollout_n", "n_samples", "num_rollouts", "n"), ("grpo.group_size",)
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "micro_batch_size", "ppo_micro_batch_size_per_gpu"),
        ("grpo.micro_batch_tokens",),
    ),
    **dict.fromkeys(("ppo_epochs", "num_iterations"), ("grpo.epochs",)),
    **dict.fromkeys(("ppo_mini_batch_size", "mini_batch_size"), ("grpo.minibatches",)),
    **dict.fromkeys(
        ("max_steps", "total_steps", "num_steps", "total_training_steps"), ("grpo.steps",)
    ),
    **dict.fromkeys(("num_train_epochs", "total_epochs", "num_epochs"), ("grpo.steps",)),
    **dict.fromkeys(
        ("kl_coef", "kl_beta", "beta", "kl_loss_coef", "init_kl_coef", "kl_coeff", "kl"),
        ("grpo.kl_coefficient",),
    ),
    **dict.fromkeys(
        ("epsilon", "clip_range", "cliprange", "clip_ratio", "clip"),
        ("grpo.clip_low", "grpo.clip_high"),
    ),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high"), ("grpo.clip_high",)),
    **dict.fromkeys(("epsilon_low", "clip_ratio_low"), ("grpo.clip_low",)),
    **dict.fromkeys(("clip_ratio_c", "delta"), ("grpo.dual_clip",)),
    **dict.fromkeys(("rollout_is", "rollout_rs", "tis"), ("grpo.off_policy",)),
    **dict.fromkeys(("rollout_is_threshold", "tis_imp_ratio_cap"), ("grpo.off_policy_cap",)),
    **dict.fromkeys(("overlong_buffer_len", "soft_punish_cache"), ("grpo.overlong_buffer",)),
    **dict.fromkeys(("entropy_coef", "entropy_coeff"), ("grpo.entropy_coefficient",)),
    **dict.fromkeys(("grad_clip", "max_norm", "gradient_clipping"), ("grpo.max_grad_norm",)),
    **dict.fromkeys(("loss_type", "algorithm", "adv_estimator"), ("grpo.loss",)),
    **dict.fromkeys(("scale_rewards", "norm_adv_by_std_in_grpo"), ("grpo.advantage_scale",)),
    **dict.fromkeys(("optim", "optimizer"), "the optimizer is AdamW, its keys are grpo's"),
    **dict.fromkeys(
        ("model_name", "model", "model_name_or_path", "model_path", "base_model", "policy_model"),
        ("strategy_model",),
    ),
    **dict.fromkeys(("executor_model", "large_model"), ("aflow_executor_model",)),
    **dict.fromkeys(("judge_model", "judge_model_name"), ("judge.model",)),
    **dict.fromkeys(("judge_url", "judge_model_url"), ("judge.service.judge_url",)),
    **dict.fromkeys(
        ("dataset", "data", "dataset_name", "data_path"), ("train_dataset", "val_dataset")
    ),
    **dict.fromkeys(("train_file", "train_files", "train_data"), ("train_dataset",)),
    **dict.fromkeys(
        ("val_file", "val_files", "eval_dataset", "test_dataset", "val_data"), ("val_dataset",)
    ),
    **dict.fromkeys(
        ("num_gpus", "n_gpus", "gpus", "gpu", "gpu_ids", "n_gpus_per_node", "cuda_visible_devices"),
        ("physical_gpus",),
    ),
    **dict.fromkeys(("num_workers", "nnodes", "num_processes"), ("ray.workers",)),
    **dict.fromkeys(
        ("use_wandb", "wandb", "report_to", "logger", "use_mlflow", "use_trackio"), ("run.loggers",)
    ),
    "use_tensorboard": _TENSORBOARD,
    **dict.fromkeys(("wandb_project", "project_name", "mlflow_experiment_name"), ("run.project",)),
    **dict.fromkeys(("logging_steps", "log_every", "log_freq", "log_interval"), _EACH_STEP),
    **dict.fromkeys(
        ("save_steps", "save_freq", "save_every", "checkpoint_freq"), ("run.checkpoint_every",)
    ),
    **dict.fromkeys(("save_total_limit", "max_ckpt_to_keep"), ("run.keep_checkpoints",)),
    **dict.fromkeys(("eval_steps", "test_freq", "eval_every"), ("evaluation.every",)),
    **dict.fromkeys(("run_name", "experiment_name"), ("run.name",)),
    **dict.fromkeys(("default_local_dir", "save_dir", "checkpoint_dir"), ("run.output_dir",)),
    **dict.fromkeys(
        ("resume", "resume_from_checkpoint", "resume_mode"),
        "to go on with a run is the option --resume",
    ),
    **dict.fromkeys(("lora_r", "lora_rank", "r"), ("policy.lora.rank",)),
    **dict.fromkeys(("lora_alpha",), ("policy.lora.alpha",)),
    **dict.fromkeys(("use_rslora", "rslora"), ("policy.lora.rank_stabilised",)),
    **dict.fromkeys(("load_in_4bit", "quantization", "use_qlora"), ("policy.quantised",)),
    **dict.fromkeys(("finetuning_type", "use_peft", "use_lora"), ("policy.train",)),
    **dict.fromkeys(("load_best_model_at_end", "save_best"), ("run.keep_best",)),
    **dict.fromkeys(("lora_dropout",), "the adapter has no dropout"),
    **dict.fromkeys(("lora_target_modules",), ("policy.lora.target_modules",)),
    **dict.fromkeys(
        ("max_completion_length", "max_response_length", "max_new_tokens", "response_length"),
        ("policy.max_new_tokens",),
    ),
    **dict.fromkeys(("max_prompt_length", "prompt_length"), ("policy.max_prompt_tokens",)),
    **dict.fromkeys(("bf16", "fp16", "torch_dtype", "precision"), ("policy.dtype",)),
    **dict.fromkeys(
        ("use_vllm", "vllm_mode", "rollout_backend", "vllm_server_base_url"),
        ("policy.sampler", "policy.vllm.base_urls"),
    ),
    **dict.fromkeys(("temperature",), ("policy.temperature", "executor.temperature")),
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "zero_stage"), ("policy.sharded",)),
    **dict.fromkeys(("api_key", "base_url", "openai_api_key", "openai_base_url"), _SERVERS),
    **dict.fromkeys(
        ("trainer", "actor_rollout_ref", "training_args"),
        "a section of another trainer's; those of this one are in docs/configuration.md",
    ),
    **dict.fromkeys(("reward_model", "reward_funcs", "reward_fn"), ("environment", "judge.model")),
}


def meant(location: Sequence[str], keys: Collection[str]) -> str:
    """Return the end of the message on an unknown key at ``location``, given all dotted ``keys``:
    ``; did you mean grpo.steps?``, another sentence, or nothing."""
    above, name = [*location[:-1]], location[-1].lower().replace("-", "_")
    prefix = "".join(f"{part}." for part in above)
    beside = {key[len(prefix) :].partition(".")[0] for key in keys if key.startswith(prefix)}
    known = ELSEWHERE.get(name, ())
    if isinstance(known, str):
        return f"; {known}"
    found = [key for key in known if key in keys]
    if found and not above:
        return _did_you_mean(found)
    close = difflib.get_close_matches(name, sorted(beside), n=1, cutoff=0.6)
    if close:
        return _did_you_mean([prefix + close[0]])
    namesakes = sorted((key for key in keys if key.split(".")[-1] == name), key=_depth)
    return _did_you_mean(found or namesakes[:3] or _alike(name, keys))


def unknown(key: str, keys: Collection[str], open_keys: Collection[str] = ()) -> str | None:
    """Return the mistake in a dotted key; None for one of ``keys``, for a section above one, and
    for a key below one of ``open_keys``, whose values have names of their own."""
    fits = key in keys or any(known.startswith(f"{key}.") for known in keys)
    if fits or any(key.startswith(f"{name}.") for name in open_keys):
        return None
    return f"{key}: unknown key{meant(key.split('.'), keys)}"


def _alike(name: str, keys: Collection[str]) -> list[str]:
    """The first key with almost this name, wherever it is."""
    names = {key.split(".")[-1]: key for key in sorted(keys, key=_depth, reverse=True)}
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
    return [names[one] for one in close]


def _depth(key: str) -> tuple[int, str]:
    return key.count("."), key


def _did_you_mean(keys: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(keys)}?" if keys else ""
