#!/usr/bin/env bash
# Supervised training of a judge: bash scripts/judge_training/run_sft.sh (--help lists the variables)
set -euo pipefail
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"
run_from_variables "$root" judge_training/run_sft.sh "$@"
