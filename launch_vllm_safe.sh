#!/usr/bin/env bash
# Start, look at or stop a vLLM server of Flowright's own; see --help.
set -euo pipefail
called_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")"
# The commands that it prints work where it was called.
me="bash launch_vllm_safe.sh"
[[ $PWD == "$called_from" ]] || me="bash $(printf %q "$PWD")/launch_vllm_safe.sh"
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
# shellcheck source=scripts/vllm_checks.sh
source scripts/vllm_checks.sh

usage() {
    cat <<'TEXT'
bash launch_vllm_safe.sh [executor|policy] [--dry-run | --status | --stop] [-- VLLM_ARGUMENT...]

  executor    the large model that answers operators and judges (the default)
  policy      the small model that writes workflows, with adapters that can be exchanged
  --dry-run   run every check and print the command; start and install nothing
  --status    say what runs; exit 0 when it serves, 3 when it does not
  --stop      end the server that this script started, and nothing else

Starting makes .venv-vllm if needed, checks model, GPU memory and port, starts `vllm serve` in the
background and waits until it serves. If the right model is served already, it says so and exits 0.
Log and process id are in outputs/vllm/. Arguments after -- go to `vllm serve` as they are.
Exit code: 0 it serves; 1 the server failed; 2 something has to be mended before it can start.

Environment variables, EXECUTOR_... for the executor and POLICY_... for the policy:

                          executor                policy
  ..._MODEL               openai/gpt-oss-120b     Qwen/Qwen2.5-7B-Instruct
                          a folder, or a Hugging Face id; also the name it is served under
  ..._HOST                127.0.0.1               127.0.0.1
  ..._PORT                8002                    8003
  ..._API_KEY             (none)                  (none)
  ..._DEVICE              gpu                     gpu         cpu: a vLLM that is built for CPUs
  ..._GPUS                CUDA_VISIBLE_DEVICES, or 0 for the executor and 1 for the policy;
                          numbers as in nvidia-smi
  ..._TENSOR_PARALLEL     one per GPU of _GPUS    the same
  ..._GPU_MEMORY          0.95                    0.90        share of each GPU's memory
  ..._MAX_MODEL_LEN       32768, cpu: 4096        8192, 4096  prompt and reply, in tokens; never
                          more than the model's own config.json says
  ..._MAX_BATCHED_TOKENS  1024                    (vLLM's)    cpu: 4096, or all of MAX_MODEL_LEN
  ..._REASONING_PARSER    openai_gptoss           (none)      not for what config.json calls another
  ..._MAX_LORA_RANK       (none)                  64
  ..._MAX_LORAS           (none)                  2
  ..._START_SECONDS       1800                    1800        patience until it serves
  ..._STOP_SECONDS        60                      60          patience before it is killed

An empty value leaves a flag out. With cpu, OMP_NUM_THREADS (1), VLLM_CPU_KVCACHE_SPACE (1, in GiB)
and VLLM_CPU_OMP_THREADS_BIND (nobind) are passed on. For both:
  VLLM_BIN                the vllm to run (default: .venv-vllm/bin/vllm, or one on PATH)
  VLLM_STATE_DIR          outputs/vllm
  PYTHON                  the Python that .venv-vllm is made with (default: python3)
TEXT
}

# --- What is asked for

role=executor
action=start
extra=()
while (($#)); do
    case $1 in
        executor | policy) role=$1 ;;
        --dry-run | --status | --stop) action=${1#--} ;;
        --)
            shift
            extra=("$@")
            break
            ;;
        -h | --help)
            usage
            exit
            ;;
        *) fail "$1: unknown; see $me --help" ;;
    esac
    shift
done

setting() { # NAME EXECUTOR_DEFAULT POLICY_DEFAULT: the environment's value, or the role's default
    local name="${role^^}_$1"
    if [[ -n ${!name+set} ]]; then
        printf '%s' "${!name}"
    elif [[ $role == executor ]]; then
        printf '%s' "$2"
    else
        printf '%s' "$3"
    fi
}

model="$(setting MODEL openai/gpt-oss-120b Qwen/Qwen2.5-7B-Instruct)"
host="$(setting HOST 127.0.0.1 127.0.0.1)"
port="$(setting PORT 8002 8003)"
api_key="$(setting API_KEY '' '')"
device="$(setting DEVICE gpu gpu)"
gpus="$(setting GPUS "${CUDA_VISIBLE_DEVICES:-0}" "${CUDA_VISIBLE_DEVICES:-1}")"
IFS=, read -ra gpu_list <<<"$gpus"
tensor_parallel="$(setting TENSOR_PARALLEL ${#gpu_list[@]} ${#gpu_list[@]})"
gpu_memory="$(setting GPU_MEMORY 0.95 0.90)"
lengths=(32768 8192) batches=(1024 '')
[[ $device == gpu ]] || lengths=(4096 4096)
max_model_len="$(setting MAX_MODEL_LEN "${lengths[@]}")"
[[ $max_model_len =~ ^([1-9][0-9]*)?$ ]] ||
    fail "${role^^}_MAX_MODEL_LEN=$max_model_len: whole tokens"
if [[ $device == cpu ]]; then # what is not prefilled in chunks has to fit at once
    longest=$((max_model_len > 4096 ? max_model_len : 4096))
    batches=("$longest" "$longest")
fi
max_batched_tokens="$(setting MAX_BATCHED_TOKENS "${batches[@]}")"
reasoning_parser="$(setting REASONING_PARSER openai_gptoss '')"
max_lora_rank="$(setting MAX_LORA_RANK '' 64)"
max_loras="$(setting MAX_LORAS '' 2)"
start_seconds="$(setting START_SECONDS 1800 1800)"
stop_seconds="$(setting STOP_SECONDS 60 60)"

state_dir="${VLLM_STATE_DIR:-outputs/vllm}"
pid_file="$state_dir/$role.pid"
log_file="$state_dir/$role.log"
reach=$host
if [[ $host == 0.0.0.0 || $host == :: ]]; then
    reach=127.0.0.1
fi
url="http://$reach:$port"

[[ $device == [cg]pu ]] || fail "${role^^}_DEVICE=$device: gpu or cpu"
[[ $port =~ ^[0-9]+$ ]] || fail "${role^^}_PORT=$port: not a port number"
[[ $start_seconds =~ ^[0-9]+$ ]] || fail "${role^^}_START_SECONDS=$start_seconds: whole seconds"
[[ $stop_seconds =~ ^[0-9]+$ ]] || fail "${role^^}_STOP_SECONDS=$stop_seconds: whole seconds"
model="${model/#\~/$HOME}"
if [[ $model == ./* || $model == ../* ]]; then
    model="$(cd "$called_from" && realpath -m -- "$model")"
fi

# --- Our own server: its process, known by number and start time

start_time() { # PID: when it started, in ticks since boot; fails when there is no such process
    local line fields
    line="$(cat "/proc/$1/stat" 2>/dev/null)" || return 1
    # After the name, which may hold spaces and brackets, comes field 3; the start is field 22.
    read -ra fields <<<"${line##*) }"
    [[ ${fields[0]} != Z ]] || return 1
    printf '%s' "${fields[19]}"
}

identity() { # PID: what tells this process from a later one with the same number
    local started
    started="$(start_time "$1")" || return 1
    printf '%s %s' "$(cat /proc/sys/kernel/random/boot_id)" "$started"
}

our_pid() { # print the process id of the server that we started, if it is still that process
    local pid recorded
    [[ -f $pid_file ]] || return 1
    { read -r pid && read -r recorded; } <"$pid_file" || return 1
    [[ $pid =~ ^[0-9]+$ && "$(identity "$pid")" == "$recorded" ]] || return 1
    printf '%s' "$pid"
}

our_server() { # print what we started: "MODEL at URL"
    sed -n 3p "$pid_file"
}

group_is_alive() { # PID: whether a process of the group it leads is left; the dead that nobody
    # buried, as in a container without an init, don't count
    local stat line fields
    kill -0 -- "-$1" 2>/dev/null || return 1
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        read -ra fields <<<"${line##*) }"
        if [[ ${fields[2]} == "$1" && ${fields[0]} != Z ]]; then
            return 0
        fi
    done
    return 1
}

end_server() { # PID: end it and its workers; a group keeps its leader's number from being reused
    local pid=$1 waited=0
    kill -TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || true
    while group_is_alive "$pid" && ((waited < stop_seconds * 5)); do
        sleep 0.2
        waited=$((waited + 1))
    done
    if group_is_alive "$pid"; then
        echo "$role: did not end within $stop_seconds s of SIGTERM: killed"
        kill -KILL -- "-$pid" 2>/dev/null || true
    fi
    rm -f "$pid_file"
}

# --- Whatever answers at the address

ask() { # PATH: the body of a 200 reply, else failure; never through a proxy
    ASK_KEY="$api_key" "$helper_python" - "$url$1" <<'PYTHON' 2>/dev/null
import os, sys, urllib.request

request = urllib.request.Request(sys.argv[1])
if key := os.environ["ASK_KEY"]:
    request.add_header("Authorization", f"Bearer {key}")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with opener.open(request, timeout=5) as reply:
    sys.stdout.write(reply.read().decode())
PYTHON
}

served_models() { # the ids of /v1/models, one a line
    ask /v1/models | "$helper_python" -c '
import json, sys
print(*(row["id"] for row in json.load(sys.stdin)["data"]), sep="\n")' 2>/dev/null
}

port_is_taken() {
    (exec 3<>"/dev/tcp/$reach/$port") 2>/dev/null
}

# --- Checks: every problem is collected, so that one call names them all

problems=()

check_address() { # exits 0 when the right model is served already
    port_is_taken || return 0
    local models
    if ask /health >/dev/null && models="$(served_models)"; then
        if grep -qxF -- "$model" <<<"$models"; then
            echo "$role: $model is served already at $url/v1$(ownership)"
            exit 0
        fi
        problems+=("port $port: a server is there already, but it serves ${models//$'\n'/, }, not $model;" \
            "  end it, or set ${role^^}_PORT")
        return
    fi
    problems+=("port $port: taken by something that is no healthy model server;" \
        "  see who has it: ss -ltnp 'sport = :$port'; end it, or set ${role^^}_PORT")
}

ownership() {
    local pid
    if pid="$(our_pid)"; then
        printf ' (process %s, log %s)' "$pid" "$log_file"
    else
        printf ' (not started by this script)'
    fi
}

report_problems() { # print them and exit 2, if there are any
    ((${#problems[@]})) || return 0
    echo "$role: to mend before it can start:" >&2
    printf '  %s\n' "${problems[@]}" >&2
    exit 2
}

# --- The command

own_vllm="$PWD/.venv-vllm/bin/vllm"

find_vllm() { # set `vllm`: the one named, our own, one on PATH, or our own yet to be made
    if [[ -n ${VLLM_BIN:-} ]]; then
        vllm="$VLLM_BIN"
        command -v "$vllm" >/dev/null || problems+=("VLLM_BIN: no such program: $vllm")
    elif [[ -x $own_vllm ]] || ! vllm="$(command -v vllm)"; then
        vllm="$own_vllm"
    fi
    if [[ $device == cpu && ! -x $vllm && -z ${VLLM_BIN:-} ]]; then
        problems+=("${role^^}_DEVICE=cpu: there is no vLLM; set VLLM_BIN to one that is built for CPUs," \
            "  or make one: VLLM_DEVICE=cpu bash scripts/setup_real_vllm.sh")
    fi
}

build_command() { # set `variables` and `command`
    command=("$vllm" serve "$model" --host "$host" --port "$port")
    if [[ $device == cpu ]]; then
        variables=("OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}"
            "VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}"
            "VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}")
        # With compilation or chunks, a seeded request ends the engine on CPUs.
        command+=(--enforce-eager --no-enable-chunked-prefill)
    else
        # Without the second, CUDA numbers the GPUs by speed and nvidia-smi by slot.
        variables=("CUDA_VISIBLE_DEVICES=$gpus" "CUDA_DEVICE_ORDER=PCI_BUS_ID")
        flag --tensor-parallel-size "$tensor_parallel"
        flag --gpu-memory-utilization "$gpu_memory"
    fi
    flag --max-model-len "$max_model_len"
    flag --max-num-batched-tokens "$max_batched_tokens"
    flag --reasoning-parser "$reasoning_parser"
    command+=(--enable-prefix-caching)
    if [[ $role == policy && -n $max_lora_rank ]]; then
        variables+=("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
        command+=(--enable-lora --max-lora-rank "$max_lora_rank")
        flag --max-loras "$max_loras"
        # The learner's ratio needs the log-probabilities of what was really sampled from.
        command+=(--logprobs-mode processed_logprobs)
    fi
    command+=("${extra[@]}")
}

flag() { # NAME VALUE: leave it out when the value is empty
    if [[ -n $2 ]]; then
        command+=("$1" "$2")
    fi
}

show_command() {
    echo
    printf '%s ' "${variables[@]}"
    if [[ -n $api_key ]]; then
        printf 'VLLM_API_KEY=... '
    fi
    printf '%q ' "${command[@]}"
    printf '\n'
}

# --- Starting

start_server() { # set `pid`; the server outlives this script and its terminal
    local variable
    for variable in "${variables[@]}"; do
        export "${variable?}"
    done
    if [[ -n $api_key ]]; then
        export VLLM_API_KEY="$api_key" # not as an argument, which everybody can read
    fi
    setsid "${command[@]}" >"$log_file" 2>&1 </dev/null 9>&- &
    pid=$!
    printf '%s\n' "$pid" "$(identity "$pid" || echo gone)" "$model at $url" >"$pid_file"
}

wait_until_served() { # PID [another]: 0 when it serves; exit 1 when time is up or it ended, 1 with "another"
    local began=$SECONDS shown=0 waited
    while true; do
        if [[ "$(our_pid)" != "$1" ]]; then
            [[ ${2:-} != another ]] || return 1
            give_up "ended before it served" "$1"
        fi
        if port_is_taken && ask /health >/dev/null; then
            break
        fi
        waited=$((SECONDS - began))
        if ((waited >= start_seconds)); then
            give_up "not serving after $start_seconds s (${role^^}_START_SECONDS)" "$1"
        fi
        if ((waited >= shown + 10)); then
            shown=$waited
            printf '  %5d s  %s\n' "$waited" "$(tail -n 1 "$log_file" | tr -d '\r' | cut -c1-100)"
        fi
        sleep 0.25
    done
    echo "$role: $model is served at $url/v1 (process $1, ready after $(duration $((SECONDS - began))))"
    echo "stop it:  $me $role --stop"
}

give_up() { # WHY PID: show the end of the log, end what is left of the server
    trap - INT TERM
    {
        echo "$role: $1; the end of $log_file:"
        tail -n 30 "$log_file" | sed 's/^/  | /'
        hint
    } >&2
    end_server "$2"
    exit 1
}

# --- What to do

show_status() { # exits 0 when it serves, 3 when it does not
    local pid=""
    if pid="$(our_pid)" && [[ "$(our_server)" != "$model at $url" ]]; then
        echo "$role: this script's server is $(our_server), process $pid"
    fi
    if ask /health >/dev/null; then
        echo "$role: serves $(served_models | paste -sd,) at $url/v1$(ownership)"
        exit 0
    elif [[ -n $pid ]]; then
        echo "$role: process $pid runs but does not serve (yet), log $log_file"
    else
        echo "$role: not running"
    fi
    exit 3
}

stop_server() {
    local pid
    if pid="$(our_pid)"; then
        end_server "$pid"
        echo "$role: stopped (process $pid)"
    else
        rm -f "$pid_file"
        echo "$role: no server of this script is running; nothing was stopped"
    fi
}

take_lock() { # one call at a time
    mkdir -p "$state_dir"
    exec 9>"$state_dir/$role.lock"
    if ! flock -n 9; then
        echo "$role: another call is at it; waiting for that"
        flock 9
    fi
}

resume_waiting() { # when a call before this one started the server and did not see it ready
    local pid
    pid="$(our_pid)" || return 0
    if [[ "$(our_server)" != "$model at $url" ]]; then
        problems+=("process $pid of this script already is $(our_server);" \
            "  first: $me $role --stop")
    elif ! ask /health >/dev/null; then
        echo "$role: process $pid is starting already; log $log_file"
        if wait_until_served "$pid" another; then
            exit 0
        fi
        end_server "$pid" # what is left of it: it was on its way down, not up
        echo "$role: process $pid has ended; starting another"
    fi
}

helper_python="$(find_python)"
case $action in
    status) show_status ;;
    stop)
        stop_server
        exit 0
        ;;
    start)
        take_lock
        resume_waiting
        ;;
esac

check_address
find_vllm
obey_model
build_command
check_model
[[ $device == cpu ]] || check_gpus
if [[ $action == dry-run ]]; then
    if [[ $vllm == "$own_vllm" && ! -x $vllm ]]; then
        echo "$role: .venv-vllm would be made first, from requirements-vllm.txt"
    fi
    show_command
    report_problems
    exit 0
fi
report_problems
if [[ $vllm == "$own_vllm" ]]; then
    ensure_environment .venv-vllm "vLLM" requirements-vllm.txt -- -r requirements-vllm.txt
fi
show_command
start_server
trap 'give_up "interrupted" "$pid"' INT TERM
echo "$role: process $pid is starting; log $log_file"
wait_until_served "$pid"
