# Shared by the scripts that source it: finding a Python and keeping virtual environments up to date.
# Defines functions; does nothing by itself.
# shellcheck shell=bash

fail() { # LINE...: say it on stderr and exit with 2
    printf '%s\n' "$@" >&2
    exit 2
}

duration() { # SECONDS: as people say it
    if (($1 >= 60)); then
        printf '%d min %d s' $(($1 / 60)) $(($1 % 60))
    else
        printf '%d s' "$1"
    fi
}

is_new_enough() { # PYTHON: whether it runs and is 3.11 or newer
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() { # print the first Python that is new enough: $PYTHON, python3, python3.13 ...
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; ${PYTHON:-python3} is $(
        "${PYTHON:-python3}" --version 2>/dev/null || echo missing
    )." \
        "Install it (Debian, Ubuntu: apt-get install python3 python3-venv)," \
        "or set PYTHON=/path/to/a/newer/python3."
}

find_checkout_python() { # ROOT: print $PYTHON or the one of ROOT/.venv, else as find_python does
    local python="${PYTHON:-$1/.venv/bin/python}"
    if [[ -x $python ]]; then
        printf '%s\n' "$python"
    else
        find_python
    fi
}

find_venv_python() { # print a Python as find_python does, if it can make virtual environments
    local python
    python="$(find_python)" || exit
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments: its venv module is incomplete." \
            "Install it (Debian, Ubuntu: apt-get install python3-venv) and call again."
    printf '%s\n' "$python"
}

run_module() { # PYTHON ROOT MODULE ARGUMENT...: become main(ROOT, arguments) of a module of ROOT/src
    exec "$1" -c '
import sys
from importlib import import_module
from pathlib import Path

root, module = sys.argv[1:3]
sys.path.insert(0, f"{root}/src")
from flowright.core.command_line import run_command

main = import_module(module).main
sys.exit(run_command(lambda: main(Path(root), sys.argv[3:]), signals=False))
' "${@:2}"
}

run_from_variables() { # ROOT SCRIPT ARGUMENT...: train.py with settings from environment variables
    local python
    python="$(find_checkout_python "$1")" || exit
    run_module "$python" "$1" flowright.app.training_variables "${@:2}"
}

# ensure_environment DIR WHAT FILE... -- PIP_ARGUMENT...
#
# Make the virtual environment DIR if it is missing, and install into it unless that was done with
# the same FILEs, the same Python and in the same place: DIR/.installed-<hash> says so. Calls at the
# same time wait for each other. Says nothing when there is nothing to do.
ensure_environment() {
    local directory=$1 what=$2 host files=()
    shift 2
    while [[ $1 != -- ]]; do
        files+=("$1")
        shift
    done
    shift
    if [[ -e "$(_stamp "$directory" "${files[@]}")" ]]; then
        return
    fi
    host="$(find_venv_python)"
    mkdir -p "$directory"
    (
        flock 9
        _make_environment "$directory" "$host"
        stamp="$(_stamp "$directory" "${files[@]}")"
        if [[ -e $stamp ]]; then
            exit
        fi
        echo "installing $what into $directory (takes minutes the first time)"
        began=$SECONDS
        "$directory/bin/python" -m pip install -qq --disable-pip-version-check "$@" ||
            fail "Installing into $directory failed, the lines above say why. Call again to go on."
        touch "$stamp"
        echo "installed in $(duration $((SECONDS - began)))"
    ) 9>"$directory/.lock"
}

_stamp() { # DIR FILE...: the stamp's path for what is asked for now
    local directory=$1
    shift
    printf '%s/.installed-%s\n' "$directory" "$(
        { pwd && readlink -f "$directory/bin/python" && head -v -n -0 -- "$@"; } | sha256sum | cut -c1-16
    )"
}

_make_environment() { # DIR PYTHON: unless a working one with pip is there
    local python="$1/bin/python"
    if is_new_enough "$python" &&
        { "$python" -m pip --version || "$python" -m ensurepip; } >/dev/null 2>&1; then
        return
    fi
    echo "making $1 with $("$2" --version)"
    find "$1" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +
    "$2" -m venv "$1"
}
