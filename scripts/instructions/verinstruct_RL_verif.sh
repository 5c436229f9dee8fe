#!/usr/bin/env bash
# GRPO rewarded by VerIF: bash scripts/instructions/verinstruct_RL_verif.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/instructions/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train verinstruct_RL_verif.sh verif config/verinstruct_rl_verif.yaml "$@"
