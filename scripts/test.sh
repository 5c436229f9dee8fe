#!/usr/bin/env bash
# Every check and test: bash scripts/test.sh [pytest arguments, such as -k sandbox]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

ensure_environment .venv "the requirements" requirements.txt pyproject.toml -- \
    -r requirements.txt -e .
ensure_environment .venv "the test tools" requirements-test.txt -- -r requirements-test.txt
ensure_environment .venv "what checkers of instructions need" requirements-constraints.txt -- \
    --no-deps -r requirements-constraints.txt

failed=()
check() { # NAME COMMAND...: run it, remember that it failed
    local name=$1 began=$SECONDS
    shift
    echo "== $name"
    "$@" || failed+=("$name")
    echo "   $(duration $((SECONDS - began)))"
}

check "ruff check" .venv/bin/python -m ruff check
check "ruff format" .venv/bin/python -m ruff format --check
check "basedpyright" .venv/bin/python -m basedpyright --level error
# A file's tests share what is slow to make, so files are dealt out whole; in their order, as the
# longest is not to be the last.
check "pytest" .venv/bin/python -m pytest \
    -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"

if ((${#failed[@]})); then
    printf 'failed:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
    exit 1
fi
echo "all checks passed"
