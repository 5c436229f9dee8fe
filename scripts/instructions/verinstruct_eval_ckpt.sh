#!/usr/bin/env bash
# Responses of a checkpoint to VerInstruct's prompts: bash scripts/instructions/verinstruct_eval_ckpt.sh CKPT [OUT]
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"

usage() {
    cat <<'TEXT'
verinstruct_eval_ckpt.sh CKPT [OUT]: responses to VerInstruct's validation prompts, in OUT.

CKPT  a run, a checkpoint, verl's global_step_N or its actor folder, or a model's folder
OUT   (outputs/instructions) gets <tag>_verinstruct_val_gen_ns<N_SAMPLES>.parquet, and the exported model in <tag>_model;
      <tag> is the name of CKPT with a hash of its weights and base

Variables: BASE_MODEL_PATH (an adapter's base)  DATA_PATH (data/raw/rubrics/verinstruct_val.parquet)
  N_SAMPLES 8  BATCH_SIZE 8  RESP_LEN 4096  PROMPT_LEN 4096  TEMP 0.7  TOP_P 0.8  TOP_K 20  LIMIT
  ROLLOUT_NAME hf (in this process) or vllm (VLLM_BASE_URL and VLLM_MODEL serve the exported model)
  JUDGE, REWARD (rubric or verif): with JUDGE=NAME the responses are scored as well
  N_GPUS TP_SIZE GPU_MEM_UTIL MAX_NUM_BATCHED_TOKENS LOAD_FORMAT ENABLE_CHUNKED_PREFILL are a vLLM server's
TEXT
}

for argument in "$@"; do
    case $argument in
        -h | --help) usage && exit ;;
        -*) fail "$argument: no such option; see --help" ;;
    esac
done
(($# == 1 || $# == 2)) || fail "verinstruct_eval_ckpt.sh CKPT [OUT]; see --help"
checkpoint=${1%/} out=${2:-outputs/instructions}
out=${out%/}
[[ -d $checkpoint ]] || fail "$checkpoint: no such folder"
[[ $checkpoint == */actor ]] && checkpoint=${checkpoint%/actor}
data=${DATA_PATH:-$root/data/raw/rubrics/verinstruct_val.parquet}
[[ -f $data ]] || fail "$data: no such file; python scripts/download_all_datasets.py verinstruct fetches it"
for name in N_GPUS TP_SIZE GPU_MEM_UTIL MAX_NUM_BATCHED_TOKENS LOAD_FORMAT ENABLE_CHUNKED_PREFILL; do
    [[ -z ${!name:-} ]] || echo "note: $name: of a vLLM server, which is started with it" >&2
done

python="$(find_checkout_python "$root")" || exit
base=()
[[ -z ${BASE_MODEL_PATH:-} ]] || base=(--base "$BASE_MODEL_PATH")
tag=$(basename "$checkpoint")-$("$python" "$root/scripts/export_model.py" "$checkpoint" --merge --id "${base[@]}")
who=()
case ${ROLLOUT_NAME:-hf} in
    hf)
        model=$checkpoint
        if [[ ! -f $checkpoint/config.json || ! -f $checkpoint/tokenizer_config.json ||
            -f $checkpoint/adapter_config.json ]]; then
            model=$out/${tag}_model
            [[ -f $model/config.json ]] ||
                "$python" "$root/scripts/export_model.py" "$checkpoint" --merge --out "$model" "${base[@]}"
        fi
        who=(--model "$model" --max-model-len "$((${PROMPT_LEN:-4096} + ${RESP_LEN:-4096}))")
        ;;
    vllm)
        [[ -n ${VLLM_BASE_URL:-} && -n ${VLLM_MODEL:-} ]] ||
            fail "ROLLOUT_NAME=vllm: VLLM_BASE_URL and VLLM_MODEL name the server of the exported model" \
                "(python scripts/export_model.py $checkpoint --merge --out DIR, then vllm serve DIR)"
        ;;
    *) fail "ROLLOUT_NAME=$ROLLOUT_NAME: hf or vllm" ;;
esac
samples=${N_SAMPLES:-8}
file=$out/${tag}_verinstruct_val_gen_ns$samples.parquet
mkdir -p "$out"
"$python" "$root/scripts/generate_responses.py" "${who[@]}" --data-path "$data" --output-path "$file" \
    --n-samples "$samples" --batch-size "${BATCH_SIZE:-8}" --max-tokens "${RESP_LEN:-4096}" \
    --temperature "${TEMP:-0.7}" --top-p "${TOP_P:-0.8}" --top-k "${TOP_K:-20}" ${LIMIT:+--limit "$LIMIT"}
[[ -n ${JUDGE:-} ]] || echo "note: JUDGE=NAME has them scored as well" >&2
[[ -z ${JUDGE:-} ]] || exec "$python" "$root/scripts/score_responses.py" "data.path=$file" \
    --reward "${REWARD:-rubric}" --judge "$JUDGE"
