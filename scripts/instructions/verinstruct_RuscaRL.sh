#!/usr/bin/env bash
# RuscaRL: GRPO rewarded by rubrics, some attempts scaffolded by them: bash scripts/instructions/verinstruct_RuscaRL.sh (--help lists the variables)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=scripts/environment.sh
source "$root/scripts/environment.sh"
run_from_variables "$root" instructions/verinstruct_RuscaRL.sh "$@"
