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
    if [ -x "$place/bin/$program" ] && [ -f "$place/install.log" ]; then
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

# What the benchmark imports of vLLM needs; its engine and the accelerator stack of that do not come.
VLLM_BENCH_NEEDS="aiohttp blake3 cachetools cbor2 cloudpickle compressed-tensors datasets depyf \
diskcache einops fastapi gguf ijson lark llguidance lm-format-enforcer mcp model-hosting-container-standards \
msgspec openai openai-harmony outlines_core pandas partial-json-parser pillow \
prometheus-fastapi-instrumentator psutil py-cpuinfo pybase64 pyzmq requests sentencepiece \
setproctitle tiktoken uvloop watchfiles xgrammar"

prepare_vllm() { # $1: pin of torch
    # shellcheck disable=SC2086 # a list of names
    prepare vllm python "$1" 'transformers>=5.16.1,<5.21' $VLLM_BENCH_NEEDS
    "$PLACE/vllm/bin/python" -m pip install --quiet --no-deps vllm==0.33.0 \
        >>"$PLACE/vllm/install.log" 2>&1 || echo "clients: vllm cannot be installed here" >&2
}

main() {
    local torch
    torch=$(torch_pin)
    mkdir -p "$PLACE"
    prepare aiperf aiperf aiperf
    prepare guidellm guidellm "$torch" guidellm
    prepare lm-eval lm_eval "$torch" 'lm-eval[api]'
    [ -d "$PLACE/vllm" ] || prepare_vllm "$torch"
}

main
