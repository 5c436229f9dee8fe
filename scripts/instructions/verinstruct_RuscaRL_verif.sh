#!/usr/bin/env bash
# RuscaRL: GRPO rewarded by VerIF, some attempts scaffolded by rubrics: bash scripts/instructions/verinstruct_RuscaRL_verif.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/instructions/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train verinstruct_RuscaRL_verif.sh verif config/verinstruct_ruscarl_verif.yaml "$@"
