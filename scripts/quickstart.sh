#!/usr/bin/env bash
# From a fresh clone to a trained policy and its report: bash scripts/quickstart.sh [key=value ...]
set -euo pipefail
called_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

usage() {
    cat <<'TEXT'
bash scripts/quickstart.sh [key=value ...]

Makes .venv if it is missing, installs the requirements unless that is done, and trains the embedded
policy against the embedded server (config/quickstart.yaml). Every call starts a new run: quickstart,
quickstart-2, ... key=value changes the configuration, such as grpo.steps=10 or seed=1; see
docs/configuration.md. PYTHON names the Python that .venv is made with (default: python3).
TEXT
}

for argument in "$@"; do
    case $argument in
        -h | --help)
            usage
            exit
            ;;
        -*) fail "quickstart.sh takes key=value only, not $argument; for options use train.py:" \
            "  .venv/bin/python train.py --help" ;;
    esac
done

# Names of keys, before anything is installed; values are checked with all the rest, before training.
python="$(find_python)" || exit
(run_module "$python" "$PWD" flowright.app.quickstart check "$@") || exit 2

ensure_environment .venv "the requirements" requirements.txt pyproject.toml -- -r requirements.txt

config=config/quickstart.yaml
# The run directory: as asked for with run.name=..., else the first free one.
run="$(run_module .venv/bin/python "$PWD" flowright.app.quickstart directory "$config" "$@")" || exit 2
name="$(basename "$run")"

began=$SECONDS
status=0
.venv/bin/python train.py --config "$config" "$@" "run.name=$name" <&0 &
training=$!
# Ctrl-C reaches it by itself; what ends this script alone would leave it running.
trap : INT
trap 'kill -TERM "$training" 2>/dev/null || true' TERM
trap 'kill -HUP "$training" 2>/dev/null || true' HUP
while true; do
    status=0
    wait "$training" || status=$?
    kill -0 "$training" 2>/dev/null || break
done
trap - INT TERM HUP
if ((status != 0)); then
    echo "stopped after $(duration $((SECONDS - began)))" >&2
    if compgen -G "$run/checkpoints/step_*" >/dev/null; then
        go_to=""
        [[ $PWD == "$called_from" ]] || go_to="cd $(printf %q "$PWD") && "
        again=(.venv/bin/python train.py --config "$config" "$@" "run.name=$name" --resume)
        echo "go on: $go_to$(printf '%q ' "${again[@]}")" >&2
    fi
    exit "$status"
fi
echo "took      $(duration $((SECONDS - began))), cold start and comparison included"
