#!/usr/bin/env bash
# Start, check or stop a vLLM server (src/flowright/app/launch_vllm.py); see --help.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"
python="$(find_checkout_python "$root")" || exit
run_module "$python" "$root" flowright.app.launch_vllm "$@"
