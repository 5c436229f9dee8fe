# Shared by the scripts beside it, which source it: variables of the environment, named as OpenJudge's
# training scripts have them, as a command of train.py. Defines functions; does nothing by itself.
# shellcheck shell=bash
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"

ALL_METHODS=(MODEL_PATH TRAIN_FILE VAL_FILE SAVE_PATH PROJECT_NAME EXPERIMENT_NAME TRAIN_BATCH_SIZE
    VAL_BATCH_SIZE MICRO_BATCH_SIZE SP_SIZE TOTAL_EPOCHS LR STRATEGY N_GPUS_PER_NODE N_NODES
    WORLD_SIZE RANK MASTER_ADDR MASTER_PORT RAY_ADDRESS LORA_RANK LORA_ALPHA LORA_TARGET_MODULES
    SAVE_FREQ TEST_FREQ VAL_BEFORE_TRAIN LOGGER)
SUPERVISED=(MAX_LENGTH)
GRPO=(MAX_PROMPT_LENGTH MAX_RESPONSE_LENGTH ROLLOUT_N KL_LOSS_COEF PPO_MINI_BATCH_SIZE
    GPU_MEMORY_UTILIZATION)

keys=()
notes=()
problems=()

usage() { # SCRIPT METHOD CONFIG: what --help says; METHOD is supervised or grpo
    cat <<TEXT
bash scripts/judge_training/$1 [--dry-run] [--check] [--resume] [--config FILE] [key=value ...]

Runs train.py with $3 and what these variables of the environment say. What is
not set stays as the file has it; key=value comes last and wins (docs/configuration.md).
--dry-run prints the command and runs nothing; --check has train.py check all and train nothing.

  MODEL_PATH                     strategy_model
  TRAIN_FILE, VAL_FILE           judging.train_files, judging.val_files
  SAVE_PATH                      the run directory: run.output_dir and run.name
  PROJECT_NAME, EXPERIMENT_NAME  the same, where there is no SAVE_PATH: outputs/PROJECT, EXPERIMENT
  TRAIN_BATCH_SIZE               grpo.prompts_per_step, over all processes
  TOTAL_EPOCHS                   judging.epochs
  LR                             grpo.learning_rate
TEXT
    if [[ $2 == supervised ]]; then
        cat <<'TEXT'
  MAX_LENGTH                     policy.max_prompt_tokens
  MICRO_BATCH_SIZE               grpo.micro_batch_tokens, times MAX_LENGTH (4096 where not set)
TEXT
    else
        cat <<'TEXT'
  MAX_PROMPT_LENGTH              policy.max_prompt_tokens
  MAX_RESPONSE_LENGTH            policy.max_new_tokens
  MICRO_BATCH_SIZE               grpo.micro_batch_tokens, times the sum of both (4096 + 2048)
  ROLLOUT_N                      grpo.group_size
  KL_LOSS_COEF                   grpo.kl_coefficient
  PPO_MINI_BATCH_SIZE            grpo.minibatches: TRAIN_BATCH_SIZE divided by it
  GPU_MEMORY_UTILIZATION         said: launch_vllm_safe.sh has it as GPU_MEMORY
TEXT
    fi
    cat <<'TEXT'
  LORA_RANK                      policy.lora.rank; 0: policy.train full
  LORA_ALPHA, LORA_TARGET_MODULES   policy.lora.alpha, policy.lora.target_modules (all-linear)
  SAVE_FREQ, TEST_FREQ           run.checkpoint_every, evaluation.every; in steps
  STRATEGY                       fsdp or fsdp2: policy.sharded, where there are several processes; an
                                 adapter's base only: not with LORA_RANK=0
  N_GPUS_PER_NODE                processes of a node (default: 1)
  N_NODES, or WORLD_SIZE         nodes (default: 1); with RANK, MASTER_ADDR, MASTER_PORT by torchrun
  RAY_ADDRESS                    train.py --ray on that cluster (ray.address)
  SP_SIZE                        1 to 8, said: no sequence is split among GPUs, see below
  VAL_BATCH_SIZE, VAL_BEFORE_TRAIN, LOGGER   said: what is done here in any case

SP_SIZE: upstream splits a long sequence among GPUs. Here a sequence is computed in chunks of
grpo.micro_batch_tokens, and what several texts begin with once, so that a sequence longer than a
GPU's memory needs no second GPU.
PYTHON names the Python (default: .venv of the checkout, else python3).
TEXT
}

note() { notes+=("$*"); }
problem() { problems+=("$*"); }
has() { [[ -n ${!1:-} ]]; } # NAME: whether a variable is set, and not to nothing
key() { keys+=("$1=$2"); }

whole() { # NAME LEAST [MOST]: whether NAME is set to a whole number in these bounds; else a problem
    local value=${!1:-} most=${3:-999999999}
    [[ -n $value ]] || return 1
    if [[ ! $value =~ ^[0-9]{1,9}$ ]] || ((10#$value < $2 || 10#$value > most)); then
        problem "$1=$value: a whole number from $2 on${3:+, up to $3}"
        return 1
    fi
}

number() { # NAME: whether NAME is set to a number that is not negative; else a problem
    local value=${!1:-}
    [[ -n $value ]] || return 1
    if [[ ! $value =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$ ]]; then
        problem "$1=$value: a number such as 2e-6"
        return 1
    fi
}

real() { # NUMBER: as YAML takes it for a number
    local mantissa=${1%%[eE]*} exponent=""
    [[ $mantissa == *.* ]] || mantissa+=.0
    mantissa=${mantissa/#./0.}
    if [[ $1 == *[eE]* ]]; then
        exponent=${1##*[eE]}
        [[ $exponent == [+-]* ]] || exponent="+$exponent"
        exponent="e$exponent"
    fi
    printf '%s%s' "$mantissa" "$exponent"
}

text() { # WORDS: as YAML takes them for a text
    if [[ $1 =~ ^[A-Za-z_./~-][A-Za-z0-9_./@+-]*$ && ! $1 =~ ^(true|false|null|yes|no|on|off|~)$ ]]; then
        printf '%s' "$1"
    else
        printf "'%s'" "${1//\'/\'\'}"
    fi
}

translate() { # METHOD: every variable as a key, a note or a problem
    has MODEL_PATH && key strategy_model "$(text "$MODEL_PATH")"
    local name
    for name in TRAIN_FILE VAL_FILE; do
        has $name || continue
        [[ -f ${!name} ]] || problem "$name=${!name}: no such file"
        key "judging.${name,,}s" "[$(text "${!name}")]"
    done
    place_of_the_run
    whole TRAIN_BATCH_SIZE 1 && key grpo.prompts_per_step "$TRAIN_BATCH_SIZE"
    whole TOTAL_EPOCHS 1 && key judging.epochs "$TOTAL_EPOCHS"
    number LR && key grpo.learning_rate "$(real "$LR")"
    if [[ $1 == supervised ]]; then lengths_supervised; else lengths_grpo; fi
    adapter
    whole SAVE_FREQ 1 && key run.checkpoint_every "$SAVE_FREQ"
    whole TEST_FREQ 0 && key evaluation.every "$TEST_FREQ"
    whole SP_SIZE 1 8 && ((SP_SIZE > 1)) &&
        note "SP_SIZE=$SP_SIZE: sequences are computed in chunks and shared beginnings once, not" \
            "split among GPUs"
    has VAL_BATCH_SIZE && whole VAL_BATCH_SIZE 1 &&
        note "VAL_BATCH_SIZE: every row of VAL_FILE counts, however they are grouped"
    has VAL_BEFORE_TRAIN &&
        note "VAL_BEFORE_TRAIN: what the untrained judge reaches is in the before/after table"
    has LOGGER && note "LOGGER: metrics.jsonl and TensorBoard are always written (run.tensorboard)"
    processes
}

place_of_the_run() {
    if has SAVE_PATH; then
        local path=${SAVE_PATH%/}
        if has EXPERIMENT_NAME; then path+="/$EXPERIMENT_NAME"; fi
        [[ ${path##*/} =~ ^(|\.|\.\.)$ ]] && problem "SAVE_PATH=$SAVE_PATH: name a folder"
        [[ $path == */* ]] || path="./$path"
        key run.output_dir "$(text "${path%/*}")"
        key run.name "$(text "${path##*/}")"
    else
        has PROJECT_NAME && key run.output_dir "$(text "outputs/$PROJECT_NAME")"
        has EXPERIMENT_NAME && key run.name "$(text "$EXPERIMENT_NAME")"
    fi
}

lengths_supervised() {
    whole MAX_LENGTH 1 && key policy.max_prompt_tokens "$MAX_LENGTH"
    whole MICRO_BATCH_SIZE 1 &&
        key grpo.micro_batch_tokens "$((MICRO_BATCH_SIZE * ${MAX_LENGTH:-4096}))"
    left_out "GRPO" "${GRPO[@]}"
}

lengths_grpo() {
    lengths_sampled 2048 96
    left_out "SFT and Bradley-Terry" "${SUPERVISED[@]}"
}

lengths_sampled() { # RESPONSE BATCH: where MAX_RESPONSE_LENGTH and TRAIN_BATCH_SIZE are not set
    whole MAX_PROMPT_LENGTH 1 && key policy.max_prompt_tokens "$MAX_PROMPT_LENGTH"
    whole MAX_RESPONSE_LENGTH 1 && key policy.max_new_tokens "$MAX_RESPONSE_LENGTH"
    whole MICRO_BATCH_SIZE 1 && key grpo.micro_batch_tokens \
        "$((MICRO_BATCH_SIZE * (${MAX_PROMPT_LENGTH:-4096} + ${MAX_RESPONSE_LENGTH:-$1})))"
    whole ROLLOUT_N 2 && key grpo.group_size "$ROLLOUT_N"
    number KL_LOSS_COEF && key grpo.kl_coefficient "$(real "$KL_LOSS_COEF")"
    if whole PPO_MINI_BATCH_SIZE 1; then
        local batch=${TRAIN_BATCH_SIZE:-$2}
        if ((batch % PPO_MINI_BATCH_SIZE)); then
            problem "PPO_MINI_BATCH_SIZE=$PPO_MINI_BATCH_SIZE: does not divide TRAIN_BATCH_SIZE $batch"
        else
            key grpo.minibatches "$((batch / PPO_MINI_BATCH_SIZE))"
        fi
    fi
    has GPU_MEMORY_UTILIZATION && note "GPU_MEMORY_UTILIZATION: of a vLLM server, which" \
        "launch_vllm_safe.sh starts with GPU_MEMORY=$GPU_MEMORY_UTILIZATION"
    return 0
}

left_out() { # METHODS NAME...: variables that this method has not
    local methods=$1 name
    shift
    for name in "$@"; do
        has "$name" && note "$name: of $methods, nothing is done with it here"
    done
    return 0
}

adapter() {
    if whole LORA_RANK 0; then
        if ((LORA_RANK == 0)); then
            key policy.train full
            has LORA_ALPHA && note "LORA_ALPHA: there is no adapter with LORA_RANK=0"
            return
        fi
        key policy.train lora
        key policy.lora.rank "$LORA_RANK"
    fi
    whole LORA_ALPHA 1 && key policy.lora.alpha "$LORA_ALPHA"
    has LORA_TARGET_MODULES || return 0
    local modules=${LORA_TARGET_MODULES//[\[\]\"\' ]/}
    [[ $modules == all-linear ]] && modules=q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj
    if [[ $modules =~ ^[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*$ ]]; then
        key policy.lora.target_modules "[${modules//,/, }]"
    else
        problem "LORA_TARGET_MODULES=$LORA_TARGET_MODULES: all-linear, or names such as q_proj,v_proj"
    fi
}

processes() { # how many, and by what they are started: the words before train.py, and its options
    local gpus=1 nodes=1 rank=0 several
    whole N_GPUS_PER_NODE 1 1024 && gpus=$N_GPUS_PER_NODE
    whole WORLD_SIZE 1 65536 && nodes=$WORLD_SIZE
    if whole N_NODES 1 65536; then
        has WORLD_SIZE && [[ $N_NODES != "$WORLD_SIZE" ]] &&
            problem "N_NODES=$N_NODES and WORLD_SIZE=$WORLD_SIZE: both are the number of nodes"
        nodes=$N_NODES
    fi
    whole MASTER_PORT 1 65535
    if whole RANK 0; then
        rank=$RANK
        ((rank < nodes)) || problem "RANK=$RANK: of $nodes nodes the last is $((nodes - 1))"
    fi
    before=()
    options=()
    several=$((gpus * nodes > 1))
    if has RAY_ADDRESS; then
        options+=(--ray)
        key ray.address "$(text "$RAY_ADDRESS")"
        if has N_GPUS_PER_NODE || has N_NODES || has WORLD_SIZE; then
            key ray.workers "$((gpus * nodes))"
        else
            several=1 # as many as ray.workers says
        fi
    elif ((several)); then
        before=(-m torch.distributed.run "--nproc_per_node=$gpus")
        if ((nodes > 1)); then
            before+=("--nnodes=$nodes" "--node_rank=$rank")
            before+=("--master_addr=${MASTER_ADDR:-127.0.0.1}" "--master_port=${MASTER_PORT:-29500}")
            has MASTER_ADDR || problem "MASTER_ADDR: of $nodes nodes each has to know the first one's"
        elif has MASTER_PORT; then
            before+=("--master_port=$MASTER_PORT")
        else
            before+=(--standalone)
        fi
    fi
    case ${STRATEGY:-} in
        "") ;;
        fsdp | fsdp2)
            if ((several)) && [[ ${LORA_RANK:-} == 0 ]]; then
                problem "STRATEGY=$STRATEGY with LORA_RANK=0: only weights that are not trained are" \
                    "split among processes; set LORA_RANK=64, or leave STRATEGY out (each process" \
                    "then has the whole model)"
            elif ((several)); then
                key policy.sharded true
                [[ $STRATEGY == fsdp2 ]] || note "STRATEGY=fsdp: PyTorch's FSDP2 is what is built"
            else
                note "STRATEGY=$STRATEGY: one process has all the weights, there is nothing to split"
            fi
            ;;
        *) problem "STRATEGY=$STRATEGY: fsdp or fsdp2" ;;
    esac
}

warn_of_near_names() { # PYTHON: variables that may have been meant to be one of ours
    "$1" - "${ALL_METHODS[@]}" "${SUPERVISED[@]}" "${GRPO[@]}" <<'PYTHON'
import difflib
import os
import sys

known = sys.argv[1:]
for name in sorted(os.environ):
    if name.isupper() and len(name) > 4 and name not in known:
        for near in difflib.get_close_matches(name, known, 1, 0.86):
            print(f"warning: {name} is not known here; did you mean {near}?", file=sys.stderr)
    if name.startswith("CUSTOM_"):
        print(f"warning: {name} names a function of verl; nothing is done with it", file=sys.stderr)
PYTHON
}

train() { # SCRIPT METHOD CONFIG ARGUMENT...: what the scripts are
    local script=$1 method=$2 config="$root/$3" dry="" more=()
    local shown=$3
    shift 3
    while (($#)); do
        case $1 in
            -h | --help)
                usage "$script" "$method" "$shown"
                exit
                ;;
            --dry-run) dry=yes ;;
            --check) more+=(--dry-run) ;;
            --resume) more+=(--resume) ;;
            --config)
                (($# > 1)) || fail "--config: name a file"
                config=$2
                shift
                ;;
            -*) fail "$script: no option $1; see --help" ;;
            *=*)
                [[ $1 =~ ^[A-Z0-9_]+= ]] && fail "$1: write it before the command: $1 bash $script"
                more+=("$1")
                ;;
            *) fail "$script: $1: write key=value, or see --help" ;;
        esac
        shift
    done
    local python="${PYTHON:-$root/.venv/bin/python}"
    [[ -x $python ]] || python="$(find_python)" || exit
    warn_of_near_names "$python"
    translate "$method" || : # what is not set is no failure
    ((${#problems[@]} == 0)) || fail "${problems[@]}"
    ((${#notes[@]} == 0)) || printf 'note: %s\n' "${notes[@]}" >&2
    local command=("$python" "${before[@]}" "$root/train.py" --config "$config" "${options[@]}"
        "${keys[@]}" "${more[@]}")
    printf '%q ' "${command[@]}"
    echo
    [[ -z $dry ]] || exit 0
    # Of nodes here; to train.py they would be those of torchrun.
    unset WORLD_SIZE RANK MASTER_ADDR MASTER_PORT RAY_ADDRESS
    exec "${command[@]}"
}
