# What launch_vllm_safe.sh, which sources it, looks at before it starts a server and after one failed:
# the model's files, the GPUs, the log. Its settings are variables here; problems go into `problems`.
# shellcheck shell=bash disable=SC2154,SC2034

check_model() {
    case $model in
        "") problems+=("${role^^}_MODEL is empty: give a folder or a Hugging Face id") ;;
        /*) check_model_folder "$model" "${role^^}_MODEL" ;;
        *) check_model_cache ;;
    esac
}

check_model_folder() { # DIR LABEL: config.json, weights, and every part that the index names
    local missing=() part
    if [[ ! -d $1 ]]; then
        problems+=("$2: no such folder: $1")
        return
    fi
    if [[ ! -e $1/config.json ]]; then
        problems+=("$2: $1 has no config.json: not a model in the Hugging Face format")
        return
    fi
    if ! compgen -G "$1/*.safetensors" >/dev/null; then
        problems+=("$2: $1 has no *.safetensors: the weights are missing")
        return
    fi
    if [[ -e $1/model.safetensors.index.json ]]; then
        while read -r part; do
            [[ -e $1/$part ]] || missing+=("$part")
        done < <(grep -o '[^"/]*\.safetensors' "$1/model.safetensors.index.json" | sort -u)
        if ((${#missing[@]})); then
            problems+=("$2: $1 lacks ${#missing[@]} of its weight files, such as ${missing[0]};" \
                "  bring the download to its end")
        fi
    fi
}

cache="${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}"

model_folder() { # print the folder of the model: it is one, or in the cache, where vLLM looks
    local folder
    for folder in "$model" "$cache/models--${model//\//--}"/snapshots/*/; do
        if [[ $model != /* || $folder == "$model" ]] && [[ -e $folder/config.json ]]; then
            printf '%s' "${folder%/}"
            return
        fi
    done
    return 1
}

obey_model() { # ask for no more than the model's config.json says, as vLLM reads it
    local folder own="" kind=""
    folder="$(model_folder)" || return 0
    read -r own kind < <("$helper_python" - "$folder/config.json" <<'PYTHON' 2>/dev/null
import json, sys

config = json.load(open(sys.argv[1], encoding="utf-8"))
text = config.get("text_config") or config
keys = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
known = [text[key] for key in keys if isinstance(text.get(key), int)]
rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
rope_type, factor = rope.get("rope_type", rope.get("type")), rope.get("factor") or 1
if known and rope_type == "yarn":
    known = [int(rope.get("original_max_position_embeddings", min(known)) * factor)]
elif known and rope_type in ("linear", "dynamic"):
    known = [int(min(known) * factor)]
print(min(known, default=0), config.get("model_type", ""))
PYTHON
    ) || true
    if [[ ${own:-0} -gt 0 && -n $max_model_len && $max_model_len -gt $own ]]; then
        echo "$role: $model takes $own tokens, not $max_model_len: --max-model-len is $own"
        max_model_len=$own
    fi
    if [[ -n $kind && $kind != gpt_oss && $reasoning_parser == openai_gptoss ]]; then
        reasoning_parser=""
    fi
}

check_model_cache() { # a Hugging Face id
    local folder
    if folder="$(model_folder)"; then
        check_model_folder "$folder" "${role^^}_MODEL=$model"
        return
    fi
    if [[ ${HF_HUB_OFFLINE:-0} == 1 ]]; then
        problems+=("${role^^}_MODEL: $model is not in $cache, and HF_HUB_OFFLINE is set;" \
            "  download it elsewhere and give its folder")
    else
        echo "$role: $model is not in $cache; vLLM will download it first"
    fi
}

check_gpus() { # vLLM wants its share of the whole memory to be free when it starts
    local gpu line name free total need
    if ! command -v nvidia-smi >/dev/null; then
        problems+=("no nvidia-smi: this machine has no NVIDIA GPU or no driver;" \
            "  for a vLLM that is built for CPUs set ${role^^}_DEVICE=cpu")
        return
    fi
    if ((${#gpu_list[@]} == 0)); then
        problems+=("${role^^}_GPUS is empty: name the GPUs, such as 0 or 0,1")
    fi
    for gpu in "${gpu_list[@]}"; do
        if ! line="$(nvidia-smi -i "$gpu" --query-gpu=memory.total,memory.free,name \
            --format=csv,noheader,nounits 2>/dev/null)"; then
            problems+=("GPU $gpu: nvidia-smi does not know it; set ${role^^}_GPUS" \
                "  there are: $(nvidia-smi -L 2>&1 | sed 's/ (UUID.*//' | paste -sd ';' || true)")
            continue
        fi
        IFS=', ' read -r total free name <<<"$line"
        if [[ ! $total =~ ^[0-9]+$ || ! $free =~ ^[0-9]+$ ]]; then
            echo "$role: GPU $gpu ($name) does not say how much memory is free: not checked"
            continue
        fi
        need="$(awk -v total="$total" -v share="$gpu_memory" 'BEGIN { printf "%d", total * share }')"
        if ((free < need)); then
            problems+=("GPU $gpu ($name): $free of $total MiB are free, $need are needed" \
                "  (${role^^}_GPU_MEMORY=$gpu_memory); end what runs there, lower the share, or set ${role^^}_GPUS")
        else
            echo "$role: GPU $gpu ($name): $free of $total MiB free"
        fi
    done
}

hint() { # what the log's best-known complaints mean; the first that fits
    local say="${role^^}" pattern advice
    while IFS='~' read -r pattern advice; do
        if grep -qiE -- "$pattern" "$log_file"; then
            echo "  $advice"
            return
        fi
    done <<TEXT
greater than the derived max_model_len~The model takes fewer tokens: lower ${say}_MAX_MODEL_LEN to what the line says.
max_num_batched_tokens.*smaller than max_model_len~Give ${say}_MAX_BATCHED_TOKENS as many as ${say}_MAX_MODEL_LEN, or lower that.
KV cache is needed, which is larger~The cache holds no request of that length: a shorter ${say}_MAX_MODEL_LEN, more GPUs (${say}_GPUS); on a CPU a larger VLLM_CPU_KVCACHE_SPACE.
out of memory|no available memory for the cache blocks~Memory: more GPUs (${say}_GPUS), a shorter ${say}_MAX_MODEL_LEN, or fewer ${say}_MAX_BATCHED_TOKENS.
address already in use~Port $port is in use: see who has it (ss -ltnp 'sport = :$port'), end it or set ${say}_PORT.
attention heads.*divisible by tensor|not divisible by.*tensor.parallel~The model's heads do not divide so: set ${say}_TENSOR_PARALLEL to a divisor of that number, such as 1, 2 or 4.
torchvision::nms~torchvision is not of this torch: uninstall torchvision, torchaudio and torchcodec beside this vLLM, which needs none of them.
does not recognize this architecture|architectures.*not supported|no supported architecture~This vLLM does not know the model's architecture: a newer vLLM, or another ${say}_MODEL.
trust_remote_code=True~The model brings code of its own: if you trust it, add -- --trust-remote-code.
unrecognized arguments|invalid choice~This vLLM does not know a flag: an empty variable of --help leaves it out.
failed to infer device type|no CUDA.*device|libcuda\.so~This vLLM finds no GPU: see nvidia-smi; for one that is built for CPUs set ${say}_DEVICE=cpu.
tiktoken|openai_harmony|HarmonyError~GPT-OSS needs its tiktoken files: offline, bring them and set TIKTOKEN_ENCODINGS_BASE.
gated repo|401 client error~The model is not open to all: ask for access on its page and set HF_TOKEN, or bring it and set ${say}_MODEL to its folder.
LocalEntryNotFound|offline mode|Max retries exceeded~The model cannot be downloaded: bring it and set ${say}_MODEL to its folder.
TEXT
}
