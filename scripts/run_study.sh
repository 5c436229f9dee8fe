#!/usr/bin/env bash
# A study from its file to its report: bash scripts/run_study.sh [CONFIG.yaml] [--dry-run ...]
set -euo pipefail
called_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

for argument in "$@"; do
    case $argument in
        -h | --help)
            cat <<'TEXT'
bash scripts/run_study.sh [CONFIG.yaml] [--dry-run] [--report-only] [--at-once N] [--out DIR]
                          [--limit-runs N] [--transfer] [--ray] [--arm NAME] [--keep DIR]

Makes .venv if it is missing, installs the requirements unless that is done, and runs a study: all its
arms and seeds, then its report (default: config/study/quick.yaml). The same command goes on where it
was interrupted. docs/study.md
TEXT
            exit
            ;;
        --dry-run | --report-only | --at-once* | --out* | --limit-runs* | --transfer | --ray | --arm* | --keep*) ;;
        -*) fail "$argument: no such option; see bash scripts/run_study.sh --help" ;;
    esac
done

ensure_environment .venv "the requirements" requirements.txt pyproject.toml -- -r requirements.txt

given=("$@")
if [[ ${1:-} != *.y*ml ]]; then
    given=("$PWD/config/study/quick.yaml" "$@")
elif [[ $1 != /* ]]; then
    [[ -e "$called_from/$1" ]] && given[0]="$called_from/$1"
fi
PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" exec .venv/bin/python -m flowright.study "${given[@]}"
