#!/usr/bin/env bash
# A judge that scores one answer, by GRPO: bash scripts/judge_training/run_pointwise.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/judge_training/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train run_pointwise.sh grpo config/judge_pointwise.yaml "$@"
