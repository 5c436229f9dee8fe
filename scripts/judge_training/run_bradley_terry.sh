#!/usr/bin/env bash
# A scalar judge from pairs of answers, by Bradley-Terry: bash scripts/judge_training/run_bradley_terry.sh (--help lists the variables)
set -euo pipefail
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"
run_from_variables "$root" judge_training/run_bradley_terry.sh "$@"
