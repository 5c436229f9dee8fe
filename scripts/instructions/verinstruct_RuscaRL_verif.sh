#!/usr/bin/env bash
# RuscaRL: GRPO rewarded by VerIF, some attempts scaffolded by rubrics: bash scripts/instructions/verinstruct_RuscaRL_verif.sh (--help lists the variables)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"
run_from_variables "$root" instructions/verinstruct_RuscaRL_verif.sh "$@"
