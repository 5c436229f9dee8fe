#!/usr/bin/env bash
# Every check and test: bash scripts/test.sh [--all] [pytest arguments, such as -k sandbox]
# --all: the slow tests, too, as in CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

for argument in "$@"; do
    case $argument in
        -h | --help)
            cat <<'TEXT'
bash scripts/test.sh [--all] [PYTEST_ARGUMENT...]     such as -k sandbox, or tests/llm

ruff, basedpyright and the tests, in .venv, which is made or brought up to date first (PYTHON names the
Python that it is made with). --all: the slow tests, too. Ends with 1 if a check failed.
TEXT
            exit
            ;;
    esac
done

ensure_environment .venv "the requirements" requirements.txt pyproject.toml -- -r requirements.txt
ensure_environment .venv "the test tools" requirements-test.txt -- -r requirements-test.txt
ensure_environment .venv "the packages of instruction checkers" requirements-constraints.txt -- \
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
# Each worker and each process that a test starts imports the same modules.
unset PYTHONDONTWRITEBYTECODE
# Beside the tests: it has one thread, and most tests wait.
types="$(mktemp)"
trap 'rm -f "$types"' EXIT
.venv/bin/python -m basedpyright --level error >"$types" 2>&1 &
type_checker=$!
# Tests of a file share what is slow to make, so files are dealt out whole, in their order: the
# longest must not be the last. A worker that a hanging test ended (pyproject.toml) would begin that
# test anew if it were started again.
check "pytest" .venv/bin/python -m pytest -n auto --maxprocesses 4 --max-worker-restart 0 \
    --dist loadfile --no-loadscope-reorder "$@"
check "basedpyright" wait "$type_checker"
cat "$types"

if ((${#failed[@]})); then
    printf 'failed:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
    exit 1
fi
echo "all checks passed"
