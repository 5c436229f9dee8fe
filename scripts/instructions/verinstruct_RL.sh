#!/usr/bin/env bash
# GRPO rewarded by rubrics: bash scripts/instructions/verinstruct_RL.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/instructions/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train verinstruct_RL.sh rubric config/verinstruct_rl.yaml "$@"
