#!/usr/bin/env bash
# RuscaRL: GRPO rewarded by rubrics, some attempts scaffolded by them: bash scripts/instructions/verinstruct_RuscaRL.sh (--help lists the variables)
set -euo pipefail
# shellcheck source=scripts/instructions/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
train verinstruct_RuscaRL.sh rubric config/verinstruct_ruscarl.yaml "$@"
