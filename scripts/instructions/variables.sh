# Shared by the scripts beside it, which source it: variables of the environment, named as RuscaRL's scripts
# and its reward functions have them, as a command of train.py. What processes, folders and adapters are is
# scripts/judge_training/variables.sh's. Defines functions; does nothing by itself.
# shellcheck shell=bash
# shellcheck source=scripts/judge_training/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/../judge_training/variables.sh"

ALL_METHODS=(MODEL_PATH TRAIN_FILE VAL_FILE RUBRIC_FILE SAVE_PATH PROJECT_NAME EXPERIMENT_NAME
    TRAIN_BATCH_SIZE TOTAL_EPOCHS TOTAL_STEPS LR STRATEGY N_GPUS_PER_NODE N_NODES WORLD_SIZE RANK
    MASTER_ADDR MASTER_PORT RAY_ADDRESS LORA_RANK LORA_ALPHA LORA_TARGET_MODULES SAVE_FREQ TEST_FREQ
    VAL_BEFORE_TRAIN LOGGER)
SUPERVISED=(VLLM_BASE_URL VLLM_MODEL VLLM_API_KEY VLLM_MAX_TOKENS VLLM_TIMEOUT VLLM_TEMPERATURE
    VLLM_STREAM VLLM_METRICS_ENABLED VLLM_STRICT_OPENAI_COMPAT MIN_INTERVAL_S VERIF_SKIP_RULES
    VERIF_IGNORE_RULES VERIF_API_URL VERIF_MODEL_NAME VERIF_LLM_BACKEND VERIF_LLM_MAX_TOKENS
    VERIF_LLM_TEMPERATURE VERIF_LLM_MAX_RETRIES VERIF_MAX_THREADS GRADER_MAX_WORKERS)

usage() { # SCRIPT METHOD CONFIG: what --help says; METHOD is rubric or verif
    cat <<TEXT
bash scripts/instructions/$1 [--dry-run] [--check] [--resume] [--config FILE] [key=value ...]

Runs train.py with $3 and what these variables of the environment say. What is
not set stays as the file has it; key=value comes last and wins (docs/configuration.md).
--dry-run prints the command and runs nothing; --check has train.py check all and train nothing.

The judge's server, and nothing of it is written into the command:
  VLLM_BASE_URL                  up to and with /v1; several with commas
  VLLM_MODEL                     its name there
  VLLM_API_KEY                   or OPENAI_API_KEY, DASHSCOPE_API_KEY; several with commas
  VLLM_STREAM                    true for servers that only stream; set for DashScope by itself
  VLLM_MAX_TOKENS, VLLM_TEMPERATURE, VLLM_TIMEOUT   of its replies, and seconds of a request

  MODEL_PATH                     strategy_model
  TRAIN_FILE, VAL_FILE           instructions.train_files, instructions.val_files
TEXT
    if [[ $2 == verif ]]; then
        cat <<'TEXT'
  RUBRIC_FILE                    RuscaRL: rubrics to show (instructions.scaffolding.files)
  VERIF_SKIP_RULES=1             rules go to the judge, too; VERIF_IGNORE_RULES=1: they are left out
  VERIF_API_URL, VERIF_MODEL_NAME   as VLLM_BASE_URL and VLLM_MODEL, before these
  VERIF_LLM_MAX_TOKENS, VERIF_LLM_TEMPERATURE   judge.max_tokens, judge.temperature
  VERIF_LLM_MAX_RETRIES          judge.max_attempts, less the first
  VERIF_LLM_BACKEND              vllm or openai: one client asks both
TEXT
    fi
    cat <<'TEXT'
  VERIF_MAX_THREADS, GRADER_MAX_WORKERS   llm.max_concurrency
  SAVE_PATH                      the run directory: run.output_dir and run.name
  PROJECT_NAME, EXPERIMENT_NAME  the same, where there is no SAVE_PATH: outputs/PROJECT, EXPERIMENT
  TRAIN_BATCH_SIZE, PPO_MINI_BATCH_SIZE   grpo.prompts_per_step, and grpo.minibatches of it
  TOTAL_STEPS, TOTAL_EPOCHS      grpo.steps, instructions.epochs
  ROLLOUT_N, LR, KL_LOSS_COEF    grpo.group_size, grpo.learning_rate, grpo.kl_coefficient
  MAX_PROMPT_LENGTH, MAX_RESPONSE_LENGTH   policy.max_prompt_tokens, policy.max_new_tokens
  MICRO_BATCH_SIZE               grpo.micro_batch_tokens, times the sum of both (4096 + 4096)
  LORA_RANK                      policy.lora.rank; 0: policy.train full
  LORA_ALPHA, LORA_TARGET_MODULES   policy.lora.alpha, policy.lora.target_modules (all-linear)
  SAVE_FREQ, TEST_FREQ           run.checkpoint_every, evaluation.every; in steps
  STRATEGY                       fsdp or fsdp2: policy.sharded, where there are several processes
  N_GPUS_PER_NODE, N_NODES       processes of a node, and nodes (default: 1 and 1)
  RAY_ADDRESS                    train.py --ray on that cluster (ray.address)
  VLLM_METRICS_ENABLED, VLLM_STRICT_OPENAI_COMPAT, VAL_BEFORE_TRAIN, LOGGER   said: done in any case
  MIN_INTERVAL_S                 refused: requests are bounded by llm.max_concurrency
PYTHON names the Python (default: .venv of the checkout, else python3).
TEXT
}

translate() { # METHOD: every variable as a key, a note or a problem
    has MODEL_PATH && key strategy_model "$(text "$MODEL_PATH")"
    files_of "$1"
    judge_of "$1"
    place_of_the_run
    whole TRAIN_BATCH_SIZE 1 && key grpo.prompts_per_step "$TRAIN_BATCH_SIZE"
    whole TOTAL_STEPS 1 && key grpo.steps "$TOTAL_STEPS"
    whole TOTAL_EPOCHS 1 && key instructions.epochs "$TOTAL_EPOCHS"
    number LR && key grpo.learning_rate "$(real "$LR")"
    lengths_sampled 4096 64
    adapter
    whole SAVE_FREQ 1 && key run.checkpoint_every "$SAVE_FREQ"
    whole TEST_FREQ 0 && key evaluation.every "$TEST_FREQ"
    has VAL_BEFORE_TRAIN &&
        note "VAL_BEFORE_TRAIN: what the untrained policy reaches is in the before/after table"
    has LOGGER && note "LOGGER: metrics.jsonl and TensorBoard are always written (run.tensorboard)"
    processes
}

files_of() { # METHOD
    local name
    for name in TRAIN_FILE VAL_FILE RUBRIC_FILE; do
        has $name || continue
        [[ -f ${!name} ]] || problem "$name=${!name}: no such file"
    done
    has TRAIN_FILE && key instructions.train_files "[$(text "$TRAIN_FILE")]"
    has VAL_FILE && key instructions.val_files "[$(text "$VAL_FILE")]"
    has RUBRIC_FILE || return 0
    if [[ $1 == verif ]]; then
        key instructions.scaffolding.files "[$(text "$RUBRIC_FILE")]"
    else
        note "RUBRIC_FILE: of the verif scripts, nothing is done with it here"
    fi
}

judge_of() { # METHOD: addresses and keys stay in the environment, where the YAML files read them
    has VERIF_API_URL && export VLLM_BASE_URL=$VERIF_API_URL
    has VERIF_MODEL_NAME && export VLLM_MODEL=$VERIF_MODEL_NAME
    local secret=${VLLM_API_KEY:-${OPENAI_API_KEY:-${DASHSCOPE_API_KEY:-}}}
    [[ -z $secret ]] || export VLLM_API_KEY=$secret
    has VLLM_BASE_URL || [[ " ${more[*]} " == *" judge.model="* ]] ||
        note "VLLM_BASE_URL: not set, so the judge is looked for at http://localhost:8001/v1"
    [[ ${VLLM_BASE_URL:-} != *dashscope*compatible-mode* ]] || export VLLM_STREAM="${VLLM_STREAM:-true}"
    whole VLLM_MAX_TOKENS 1
    number VLLM_TIMEOUT
    number VLLM_TEMPERATURE
    whole VERIF_LLM_MAX_TOKENS 1 && key judge.max_tokens "$VERIF_LLM_MAX_TOKENS"
    number VERIF_LLM_TEMPERATURE && key judge.temperature "$(real "$VERIF_LLM_TEMPERATURE")"
    whole VERIF_LLM_MAX_RETRIES 0 && key judge.max_attempts "$((VERIF_LLM_MAX_RETRIES + 1))"
    whole GRADER_MAX_WORKERS 1 && key llm.max_concurrency "$GRADER_MAX_WORKERS"
    whole VERIF_MAX_THREADS 1 && key llm.max_concurrency "$VERIF_MAX_THREADS"
    case ${VERIF_LLM_BACKEND:-} in
        "" | vllm | openai) ;;
        *) problem "VERIF_LLM_BACKEND=$VERIF_LLM_BACKEND: vllm or openai" ;;
    esac
    has MIN_INTERVAL_S && problem "MIN_INTERVAL_S=$MIN_INTERVAL_S: requests are not paced by time;" \
        "leave it out, and set llm.max_concurrency=1 for one at a time"
    has VLLM_METRICS_ENABLED && note "VLLM_METRICS_ENABLED: what servers are asked is always in servers/*"
    has VLLM_STRICT_OPENAI_COMPAT && note "VLLM_STRICT_OPENAI_COMPAT: only the protocol's own" \
        "fields are ever sent"
    return 0
}
