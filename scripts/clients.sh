#!/usr/bin/env bash
# Makes one environment a benchmark client below .clients/, for the tests marked `clients`.
# None of them is a dependency of this project; a client that cannot be installed here is named and
# its tests say that they did not run.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu
PLACE=${CLIENTS_DIR:-.clients}

torch_pin() { # a CPU build; clients that draw in torch would otherwise bring an accelerator stack
    "$ENV_PYTHON" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))'
}

prepare() { # $1: name, $2: a program it installs, rest: pip arguments
    local name=$1 program=$2 place=$PLACE/$1
    shift 2
    if [ -x "$place/bin/$program" ]; then
        echo "clients: $name is there"
        return
    fi
    "$ENV_PYTHON" -m venv "$place"
    # The host's own sources may hold a CPU build of torch; its index is the second choice.
    if "$place/bin/python" -m pip install --quiet "$@" >"$place/install.log" 2>&1 ||
        "$place/bin/python" -m pip install --quiet --extra-index-url "$CPU_TORCH_INDEX" "$@" \
            >"$place/install.log" 2>&1; then
        echo "clients: $name is ready"
    else
        rm -f "$place/bin/$program"
        echo "clients: $name cannot be installed here: $(grep -m1 ERROR "$place/install.log" || tail -n1 "$place/install.log")" >&2
    fi
}

main() {
    local torch
    torch=$(torch_pin)
    mkdir -p "$PLACE"
    prepare aiperf aiperf aiperf
    prepare guidellm guidellm "$torch" guidellm
    prepare lm-eval lm_eval "$torch" 'lm-eval[api]'
}

main
