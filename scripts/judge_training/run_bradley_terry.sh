#!/usr/bin/env bash
# A scalar judge from pairs of answers, by Bradley-Terry: bash scripts/judge_training/run_bradley_terry.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/judge_training/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train run_bradley_terry.sh supervised config/judge_bradley_terry.yaml "$@"
