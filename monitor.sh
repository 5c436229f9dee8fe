#!/usr/bin/env bash
# Watch a run in the terminal: bash monitor.sh [RUN] [--once] [--output-dir DIR] [--interval S]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# The first Python that has what the monitor needs; without one, the last says what it lacks.
for python in "${PYTHON:-$here/.venv/bin/python}" python3 python; do
    if "$python" -c 'import pydantic, rich, yaml' 2>/dev/null; then
        break
    fi
done
exec "$python" "$here/monitor_training_live.py" "$@"
