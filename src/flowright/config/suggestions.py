"""Suggestions for an unknown key, by name alone.

Needs the standard library only, so that ``scripts/quickstart.sh`` can check its arguments before
anything is installed.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence

_KEYS = {
    "grpo.learning_rate": "lr learning_rate",
    "grpo.schedule": "lr_scheduler_type lr_scheduler scheduler",
    "grpo.warmup_steps": "lr_warmup_steps warmup",
    "grpo.warmup_share": "warmup_ratio warmup_steps_ratio lr_warmup_steps_ratio lr_warmup_ratio",
    "grpo.weight_decay": "weight_decay wd",
    "grpo.prompts_per_step grpo.group_size": (
        "batch_size train_batch_size per_device_train_batch_size global_batch_size"
    ),
    "grpo.group_size": "num_generations rollout_n n_samples num_rollouts n",
    "grpo.micro_batch_tokens": (
        "gradient_accumulation_steps micro_batch_size micro_batch_size_per_gpu "
        "ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu"
    ),
    "grpo.epochs": "ppo_epochs num_iterations",
    "grpo.minibatches": "ppo_mini_batch_size mini_batch_size",
    "grpo.steps": "max_steps total_steps num_steps total_training_steps",
    "grpo.steps judging.epochs instructions.epochs": "num_train_epochs total_epochs num_epochs",
    "grpo.kl_coefficient": "kl_coef kl_beta beta kl_loss_coef init_kl_coef kl_coeff kl",
    "grpo.clip_low grpo.clip_high": "epsilon clip_range cliprange clip_ratio clip",
    "grpo.clip_high grpo.ratio_cap": "epsilon_high",
    "grpo.clip_high": "clip_ratio_high",
    "grpo.teacher.model": "teacher teacher_model_name_or_path teacher_model",
    "grpo.teacher.base_urls": "teacher_model_server_url teacher_url",
    "grpo.teacher.weight": "teacher_tau opd_kl_coef",
    "grpo.clip_low": "epsilon_low clip_ratio_low",
    "grpo.dual_clip": "clip_ratio_c delta",
    "grpo.off_policy": "rollout_is rollout_rs tis",
    "grpo.off_policy_cap": "rollout_is_threshold tis_imp_ratio_cap",
    "grpo.overlong_buffer": "overlong_buffer_len soft_punish_cache",
    "grpo.entropy_coefficient": "entropy_coef entropy_coeff",
    "grpo.max_grad_norm": "clip_grad grad_clip max_norm gradient_clipping",
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
    "policy.max_prompt_tokens": "max_prompt_length prompt_length max_length max_seq_length",
    "judging.overlong instructions.overlong": "truncation filter_overlong_prompts",
    "policy.gradient_checkpointing": (
        "enable_gradient_checkpointing use_gradient_checkpointing activation_checkpointing "
        "activation_offload"
    ),
    "policy.dtype": "bf16 fp16 torch_dtype precision",
    "policy.sampler policy.vllm.base_urls": (
        "use_vllm vllm_mode rollout_backend vllm_server_base_url"
    ),
    "policy.temperature executor.temperature": "temperature",
    "policy.offload": ("cpu_offload param_offload optimizer_offload offload_policy offload_params"),
    "policy.sharded": "strategy deepspeed fsdp fsdp2 fsdp_config zero_stage",
    "environment judge.model": "reward_model",
    "reward environment": "reward_funcs reward_fn compute_score",
    "reward.terms": "reward_weights",
}
"""Names of other trainers' keys, by one key of ours or several. By their last part, in lower case
with underscores."""

_SENTENCES = {
    "TensorBoard files are written where run.tensorboard is true": "use_tensorboard",
    "every step is written to metrics.jsonl of the run": (
        "logging_steps log_every log_freq log_interval"
    ),
    "to go on with a run is the option --resume": "resume resume_from_checkpoint resume_mode",
    "the adapter has no dropout": "lora_dropout",
    "addresses and keys of models are in the file that llm.file names": (
        "models api_key base_url api_type no_proxy openai_api_key openai_base_url"
    ),
    "of a judge service, which is no run: flowright judge serve --config FILE": "server trained",
    "a sequence is not split among GPUs; policy.sharded and policy.offload make room for longer "
    "ones": ("sp_size ulysses_sequence_parallel_size sequence_parallel_size context_parallel_size"),
    "a Ray cluster is joined by --ray and ray.address, in scripts RAY_ADDRESS": (
        "ray_address ray_port ray_init"
    ),
    "a vLLM server's, see bash launch_vllm_safe.sh --help": (
        "tp_size tensor_model_parallel_size tensor_parallel_size gpu_memory_utilization"
    ),
    "conversations are read whole, from the column messages, or chosen and rejected": (
        "multiturn messages_key prompt_key"
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

_SECTIONS = {
    "the optimizer is AdamW, its keys are grpo's": "optim optimizer",
    "a section of another trainer's; those of this one are in docs/configuration.md": (
        "trainer actor_rollout_ref training_args"
    ),
}
"""The same of sections whose keys may have names here."""

ELSEWHERE: dict[str, tuple[str, ...] | str] = {
    **{name: tuple(keys.split()) for keys, names in _KEYS.items() for name in names.split()},
    **{n: text for text, names in (_SENTENCES | _SECTIONS).items() for n in names.split()},
}

_DEEPEST = 8  # of sections within sections that are looked through


def meant(location: Sequence[str], keys: Collection[str]) -> str:
    """Return the end of the message on an unknown key at ``location``, given all dotted ``keys``:
    ``; did you mean grpo.steps?``, another sentence, or nothing."""
    prefix = "".join(f"{part}." for part in location[:-1])
    name = _plain(location[-1])
    known = ELSEWHERE.get(prefix + name) or ELSEWHERE.get(name, ())
    if isinstance(known, str):
        return f"; {known}"
    found = [key for key in known if key in keys]
    if within := [key for key in found if key.startswith(prefix)]:
        return _did_you_mean(within)
    if close := _close(location, keys):
        return _did_you_mean([prefix + close[0]])
    namesakes = sorted((key for key in keys if key.split(".")[-1] == name), key=_depth)
    return _did_you_mean(found or namesakes[:3] or _alike(name, keys))


def meaning(variable: str) -> str:
    """Return the end of the message on an environment variable named as another trainer's key."""
    known = ELSEWHERE.get(_plain(variable), ())
    return f"; {known}" if isinstance(known, str) else _did_you_mean(known)


def meant_within(
    location: Sequence[str], value: object, keys: Collection[str]
) -> list[tuple[str, str]]:
    """Return ``(dotted key, meant(...))`` of an unknown key; of a section, as other trainers have
    them, also of the keys in it that mean something here."""
    name = _plain(location[-1])
    one = (".".join(location), meant(location, keys))
    is_ours = name not in ELSEWHERE and _close(location, keys)  # misspelt
    is_told = any({name, one[0]} & {*names.split()} for names in _SENTENCES.values())
    if not isinstance(value, Mapping) or is_ours or is_told or len(location) > _DEEPEST:
        return [one]
    inner: list[tuple[str, str]] = []
    for key, within in value.items():
        # In a strange section a name that is only alike means another thing.
        named = isinstance(within, Mapping) or _plain(str(key)) in ELSEWHERE
        inner += meant_within([*location, str(key)], within, keys) if named else [(str(key), "")]
    clear = [found for found in inner if found[1]]
    return clear if clear and len(clear) == len(inner) else [one, *clear]


def unknown(key: str, keys: Collection[str], open_keys: Collection[str] = ()) -> str | None:
    """Return the mistake in a dotted key; None for one of ``keys``, for a section above one, and
    for a key below one of ``open_keys``, whose values have names of their own."""
    fits = key in keys or any(known.startswith(f"{key}.") for known in keys)
    if fits or any(key.startswith(f"{name}.") for name in open_keys):
        return None
    return f"{key}: unknown key{meant(key.split('.'), keys)}"


def _plain(name: str) -> str:
    """A name as ELSEWHERE has it."""
    return name.lower().replace("-", "_")


def _close(location: Sequence[str], keys: Collection[str]) -> list[str]:
    """The name beside a location's that is nearest to it, if one is near."""
    prefix = "".join(f"{part}." for part in location[:-1])
    beside = {key[len(prefix) :].partition(".")[0] for key in keys if key.startswith(prefix)}
    return difflib.get_close_matches(_plain(location[-1]), sorted(beside), n=1, cutoff=0.6)


def _alike(name: str, keys: Collection[str]) -> list[str]:
    """The first key with almost this name, wherever it is."""
    names = {key.split(".")[-1]: key for key in sorted(keys, key=_depth, reverse=True)}
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
    return [names[one] for one in close]


def _depth(key: str) -> tuple[int, str]:
    return key.count("."), key


def _did_you_mean(keys: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(keys)}?" if keys else ""
