#!/usr/bin/env bash
# What CI runs, with the time of each stage. Extra arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

stage() { # $1: name, rest: command
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    "$@"
    TIMES+=("$(printf '%-12s %4d s' "$name" $((SECONDS - start)))")
}

TIMES=()
trap 'echo "== time per stage"; printf "%s\n" "${TIMES[@]}"' EXIT
BIN=$(dirname "$ENV_PYTHON")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # two cores are shared by tests that start ranks
stage format "$BIN/ruff" format --check .
stage lint "$BIN/ruff" check .
stage types "$BIN/mypy"
stage kernels "$BIN/neuron-harness" lint kernels
stage imports "$BIN/lint-imports" --no-logo
stage tests "$ENV_PYTHON" -m pytest "$@"
