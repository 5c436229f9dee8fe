"""Suggestions for an unknown key, by name alone.

Needs the standard library only, so that ``scripts/quickstart.sh`` can check its arguments before
anything is installed.
"""

import difflib
from collections.abc import Collection, Sequence

_KEYS = {
    "grpo.learning_rate": "lr learning_rate",
    "grpo.schedule": "lr_scheduler_type lr_scheduler scheduler",
    "grpo.warmup_steps": "warmup_ratio lr_warmup_steps warmup",
    "grpo.prompts_per_step grpo.group_size": (
        "batch_size train_batch_size per_device_train_batch_size global_batch_size"
    ),
    "grpo.group_size": "num_generations rollout_n n_samples num_rollouts n",
    "grpo.micro_batch_tokens": (
        "gradient_accumulation_steps micro_batch_size ppo_micro_batch_size_per_gpu"
    ),
    "grpo.epochs": "ppo_epochs num_iterations",
    "grpo.minibatches": "ppo_mini_batch_size mini_batch_size",
    "grpo.steps": (
        "max_steps total_steps num_steps total_training_steps num_train_epochs total_epochs "
        "num_epochs"
    ),
    "grpo.kl_coefficient": "kl_coef kl_beta beta kl_loss_coef init_kl_coef kl_coeff kl",
    "grpo.clip_low grpo.clip_high": "epsilon clip_range cliprange clip_ratio clip",
    "grpo.clip_high": "epsilon_high clip_ratio_high",
    "grpo.clip_low": "epsilon_low clip_ratio_low",
    "grpo.dual_clip": "clip_ratio_c delta",
    "grpo.off_policy": "rollout_is rollout_rs tis",
    "grpo.off_policy_cap": "rollout_is_threshold tis_imp_ratio_cap",
    "grpo.overlong_buffer": "overlong_buffer_len soft_punish_cache",
    "grpo.entropy_coefficient": "entropy_coef entropy_coeff",
    "grpo.max_grad_norm": "grad_clip max_norm gradient_clipping",
    "grpo.loss": "loss_type algorithm adv_estimator",
    "grpo.advantage_scale": "scale_rewards norm_adv_by_std_in_grpo",
    "strategy_model": "model_name model model_name_or_path model_path base_model policy_model",
    "aflow_executor_model": "executor_model large_model",
    "judge.model": "judge_model judge_model_name",
    "judge.service.judge_url": "judge_url judge_model_url",
    "train_dataset val_dataset": "dataset data dataset_name data_path",
    "train_dataset": "train_file train_files train_data",
    "val_dataset": "val_file val_files eval_dataset test_dataset val_data",
    "physical_gpus": "num_gpus n_gpus gpus gpu gpu_ids n_gpus_per_node cuda_visible_devices",
    "ray.workers": "num_workers nnodes num_processes",
    "run.loggers": "use_wandb wandb report_to logger use_mlflow use_trackio",
    "run.project": "wandb_project project_name mlflow_experiment_name",
    "run.checkpoint_every": "save_steps save_freq save_every checkpoint_freq",
    "run.keep_checkpoints": "save_total_limit max_ckpt_to_keep",
    "evaluation.every": "eval_steps test_freq eval_every",
    "run.name": "run_name experiment_name",
    "run.output_dir": "default_local_dir save_dir checkpoint_dir",
    "policy.lora.rank": "lora_r lora_rank r",
    "policy.lora.alpha": "lora_alpha",
    "policy.lora.rank_stabilised": "use_rslora rslora",
    "policy.quantised": "load_in_4bit quantization use_qlora",
    "policy.train": "finetuning_type use_peft use_lora",
    "run.keep_best": "load_best_model_at_end save_best",
    "policy.lora.target_modules": "lora_target_modules",
    "policy.max_new_tokens": (
        "max_completion_length max_response_length max_new_tokens response_length"
    ),
    "policy.max_prompt_tokens": "max_prompt_length prompt_length",
    "policy.dtype": "bf16 fp16 torch_dtype precision",
    "policy.sampler policy.vllm.base_urls": (
        "use_vllm vllm_mode rollout_backend vllm_server_base_url"
    ),
    "policy.temperature executor.temperature": "temperature",
    "policy.sharded": "deepspeed fsdp fsdp_config zero_stage",
    "environment judge.model": "reward_model reward_funcs reward_fn",
}
"""Names of other trainers' keys, by one key of ours or several. By their last part, in lower case
with underscores."""

_SENTENCES = {
    "the optimizer is AdamW, its keys are grpo's": "optim optimizer",
    "TensorBoard files are written where run.tensorboard is true": "use_tensorboard",
    "every step is written to metrics.jsonl of the run": (
        "logging_steps log_every log_freq log_interval"
    ),
    "to go on with a run is the option --resume": "resume resume_from_checkpoint resume_mode",
    "the adapter has no dropout": "lora_dropout",
    "addresses and keys of models are in the file that llm.file names": (
        "api_key base_url openai_api_key openai_base_url"
    ),
    "a section of another trainer's; those of this one are in docs/configuration.md": (
        "trainer actor_rollout_ref training_args"
    ),
    "a judge service is judge.service here: {judge_url: ..., api_key: ...}": "reward.type",
    "its keys are judge.service's, but for fallback_to_rule (judge.mode: judge_with_rule_fallback),"
    " cache_size (judge.cache_size) and circuit_breaker_* (judge.breaker_*)": "reward.config",
    "cached verdicts do not expire; cache_size bounds them, use_cache: false keeps none": (
        "cache_ttl"
    ),
    "the judge is always asked; judge.mode: rules, of a run or a service, asks none": "use_judge",
    "the judge's score in [0, 1] is result['reward'], and result['acc_reward']": "acc_reward",
}
"""Names, or dotted keys, that a sentence explains."""

ELSEWHERE: dict[str, tuple[str, ...] | str] = {
    **{name: tuple(keys.split()) for keys, names in _KEYS.items() for name in names.split()},
    **{name: text for text, names in _SENTENCES.items() for name in names.split()},
}


def meant(location: Sequence[str], keys: Collection[str]) -> str:
    """Return the end of the message on an unknown key at ``location``, given all dotted ``keys``:
    ``; did you mean grpo.steps?``, another sentence, or nothing."""
    above, name = [*location[:-1]], location[-1].lower().replace("-", "_")
    prefix = "".join(f"{part}." for part in above)
    beside = {key[len(prefix) :].partition(".")[0] for key in keys if key.startswith(prefix)}
    known = ELSEWHERE.get(prefix + name) or ELSEWHERE.get(name, ())
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
