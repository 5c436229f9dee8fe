#!/usr/bin/env bash
# A judge that compares two answers, by GRPO: bash scripts/judge_training/run_pairwise.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/judge_training/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train run_pairwise.sh grpo config/judge_pairwise.yaml "$@"
