#!/usr/bin/env bash
# GRPO rewarded by rubrics: bash scripts/instructions/verinstruct_RL.sh (--help lists the variables)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"
run_from_variables "$root" instructions/verinstruct_RL.sh "$@"
