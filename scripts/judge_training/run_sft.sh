#!/usr/bin/env bash
# Supervised training of a judge: bash scripts/judge_training/run_sft.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/judge_training/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train run_sft.sh supervised config/judge_sft.yaml "$@"
