#!/usr/bin/env bash
# Watch a run in the terminal: bash monitor.sh [RUN] [--once] [--output-dir DIR] [--interval S]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="$here/.venv/bin/python"
[[ -x "$python" ]] || python=python3
exec "$python" "$here/monitor_training_live.py" "$@"
