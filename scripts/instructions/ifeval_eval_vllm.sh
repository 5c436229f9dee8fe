#!/usr/bin/env bash
# IFEval of a model or a checkpoint: bash scripts/instructions/ifeval_eval_vllm.sh --model NAME (--help lists the options)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"

usage() {
    cat <<'TEXT'
IFEval of a model: its answers, then the table of scripts/evaluate_instructions.py.

  --model PATH|NAME      loaded in this process, or
  --server NAME          a model of config/aflow_llm.yaml; without both VLLM_BASE_URL and VLLM_MODEL name servers
  --ckpt-dir DIR         a run or checkpoint instead, which becomes a model in --merge-target DIR first
                         (in DIR-HASH where DIR holds the model of another one)
  --input FILE           IFEval's prompts (data/raw/ifeval/input_data.jsonl)
  --responses FILE       where the answers go (outputs/instructions/NAME.ifeval.jsonl)
  --eval-output-dir DIR  gets ifeval.json, the record with every verdict
  --temperature T        default 0: published figures are greedy
  --max-tokens N (4096)  --max-model-len N  --batch-size N (128)  --limit N
  --tp-size N  --gpu-mem-util X  --cuda-devices LIST  --no-chat-template
  --skip-nltk-download   nothing is ever downloaded; accepted
TEXT
}

checkpoint="" target="" model="" options=()
tokens=4096 batch=128
while (($#)); do
    case $1 in
        -h | --help) usage && exit ;;
        --skip-nltk-download) shift && continue ;;
        --no-chat-template) options+=("$1") && shift && continue ;;
    esac
    (($# > 1)) || fail "$1: a value belongs to it, or no such option; see --help"
    case $1 in
        --ckpt-dir) checkpoint=$2 ;;
        --merge-target) target=$2 ;;
        --model) model=$2 ;;
        --input) options+=(--data "$2") ;;
        --responses) options+=(--save-responses "$2") ;;
        --eval-output-dir) options+=(--json "$2/ifeval.json") ;;
        --max-tokens) tokens=$2 ;;
        --batch-size) batch=$2 ;;
        --cuda-devices) export CUDA_VISIBLE_DEVICES=$2 ;;
        --server | --temperature | --max-model-len | --tp-size | --gpu-mem-util | --limit)
            options+=("$1" "$2")
            ;;
        *) fail "$1: no such option; see --help" ;;
    esac
    shift 2
done

python="$(find_checkout_python "$root")" || exit
if [[ -n $checkpoint ]]; then
    [[ -n $target && -z $model ]] || fail "--ckpt-dir: --merge-target DIR is where its model goes, and --model is left out"
    made_from=$("$python" "$root/scripts/export_model.py" "$checkpoint" --merge --id)
    if [[ -f $target/config.json ]] && ! grep -qs "$made_from" "$target/origin.json"; then
        echo "note: $target holds another model; this one is $target-$made_from" >&2
        target=$target-$made_from
    fi
    [[ -f $target/config.json ]] || "$python" "$root/scripts/export_model.py" "$checkpoint" --merge --out "$target"
    model=$target
fi
[[ -z $model ]] || options+=(--model "$model")
exec "$python" "$root/scripts/evaluate_instructions.py" --benchmark ifeval \
    --max-tokens "$tokens" --batch-size "$batch" "${options[@]}"
