#!/usr/bin/env bash
# Prepares the environment this checkout runs in; does nothing when it is already prepared.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu

stamp() { # what the environment was prepared for
    cat pyproject.toml constraints.txt scripts/setup.sh | cksum
    "$ENV_PYTHON" --version
    pwd
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
            2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11-3.14 with the venv module found; install one, or name it: PYTHON=/path/to/python3.12 make setup" >&2
    exit 2
}

brings_accelerator_stack() { # $@: pip arguments; true if they would install a CUDA or ROCm stack
    local plan
    plan=$(mktemp)
    if ! "$ENV_PYTHON" -m pip install --quiet --dry-run --report "$plan" "$@"; then
        rm -f "$plan"
        return 0
    fi
    "$ENV_PYTHON" - "$plan" <<'PY'
import json, sys

with open(sys.argv[1], encoding="utf-8") as file:
    names = [item["metadata"]["name"].lower() for item in json.load(file)["install"]]
heavy = [name for name in names if name.startswith(("nvidia-", "cuda-", "triton", "pytorch-triton"))]
sys.exit(not heavy)
PY
    local answer=$?
    rm -f "$plan"
    return $answer
}

install_cpu_torch() {
    local spec
    spec=$(grep '^torch==' constraints.txt)
    if "$ENV_PYTHON" -c 'import torch' 2>/dev/null; then
        return
    fi
    if ! brings_accelerator_stack "$spec"; then
        "$ENV_PYTHON" -m pip install --quiet "$spec"
    elif ! brings_accelerator_stack --index-url "$CPU_TORCH_INDEX" "$spec"; then
        "$ENV_PYTHON" -m pip install --quiet --index-url "$CPU_TORCH_INDEX" "$spec"
    else
        echo "setup: no CPU build of $spec can be reached for $("$ENV_PYTHON" --version); install one into .venv, or activate an environment that has torch, and run make setup again" >&2
        exit 2
    fi
}

prepare_venv() {
    [ -x .venv/bin/python ] || "$(find_python)" -m venv .venv
    install_cpu_torch
    "$ENV_PYTHON" -m pip install --quiet -c constraints.txt -e '.[dev]'
}

prepare_active() { # keeps the host's torch whatever its version
    local pin
    pin=$(mktemp)
    "$ENV_PYTHON" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >"$pin"
    "$ENV_PYTHON" -m pip install --quiet -c "$pin" -e '.[dev]'
    rm -f "$pin"
}

main() {
    local mark
    if [ "$ENV_KIND" = active ]; then
        mark=$("$ENV_PYTHON" -c 'import sys; print(sys.prefix)')/.neuron-harness-ready
    else
        mark=.venv/.neuron-harness-ready
    fi
    if [ -f "$mark" ] && [ -x "$ENV_PYTHON" ] && [ "$(cat "$mark")" = "$(stamp)" ]; then
        return
    fi
    local start=$SECONDS
    echo "setup: preparing $([ "$ENV_KIND" = active ] && echo "the active environment" || echo ".venv/")"
    if [ "$ENV_KIND" = active ]; then prepare_active; else prepare_venv; fi
    stamp >"$mark"
    echo "setup: ready in $((SECONDS - start)) s"
}

main
