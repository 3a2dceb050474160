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

# Two halves side by side, one a core; what the second half ignores is what the first one runs.
FIRST_HALF=(tests/engine tests/docs tests/repo)

test_halves() {
    local log second first_code=0 second_code=0
    log=$(mktemp)
    "$ENV_PYTHON" -m pytest tests "${FIRST_HALF[@]/#/--ignore=}" "$@" >"$log" 2>&1 &
    second=$!
    trap 'kill "$second" 2>/dev/null; wait "$second"; exit 130' INT TERM
    "$ENV_PYTHON" -m pytest "${FIRST_HALF[@]}" "$@" || first_code=$?
    wait "$second" || second_code=$?
    trap - INT TERM
    cat "$log"
    rm -f "$log"
    return $((first_code ? first_code : second_code))
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
stage tests test_halves "$@"
