#!/usr/bin/env bash
# Prepares this checkout on a Trainium host: an environment over the host's Neuron environment,
# whose torch and torch-neuronx stay as they are. Does nothing when it is already prepared; ends in
# `neuron-harness doctor`.
#
#   scripts/setup_trn2.sh [NEURON_ENVIRONMENT]
#
# NEURON_ENVIRONMENT is the directory of a Python environment with torch and torch-neuronx; default:
# the active one, else the newest /opt/aws_neuronx_venv_pytorch*.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

NEURON_INDEX=${NEURON_INDEX:-https://pip.repos.neuron.amazonaws.com}
OVERLAY=${OVERLAY:-$PWD/.venv-trn2}

fail() {
    echo "setup_trn2: $1" >&2
    exit "${2:-2}"
}

host_environment() {
    if [ -n "${1:-}" ]; then
        echo "$1"
    elif [ -n "${VIRTUAL_ENV:-}" ] && [ "${VIRTUAL_ENV}" != "$OVERLAY" ]; then
        echo "$VIRTUAL_ENV"
    else
        # Newest first; the inference and vLLM environments of the AMI have other torch builds.
        find /opt -maxdepth 1 -name 'aws_neuronx_venv_pytorch*' 2>/dev/null | sort -rV | head -1
    fi
}

host_site() { # $1: python of the host's environment; prints the directory that holds its torch
    "$1" - <<'PY'
import importlib.util, pathlib, sys

if not (3, 12) <= sys.version_info[:2] <= (3, 14) and not __import__("os").environ.get("NEURON_HARNESS_ANY_PYTHON"):
    sys.exit(f"Python {sys.version.split()[0]}: AWS's Neuron wheels need 3.12 to 3.14")
for name, remedy in (
    ("torch", "this environment has no torch"),
    ("torch_neuronx", "this environment has no torch-neuronx"),
):
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(f"{remedy}; name the Neuron environment: scripts/setup_trn2.sh DIRECTORY")
torch = pathlib.Path(importlib.util.find_spec("torch").origin).parents[1]
neuron = pathlib.Path(importlib.util.find_spec("torch_neuronx").origin).parents[1]
print("\n".join(dict.fromkeys([str(torch), str(neuron)])))
PY
}

is_native() { # the device named neuron; a version would not tell, the XLA product had the name too
    "$1" -c 'import sys, torch; sys.exit(torch._C._get_privateuse1_backend_name() != "neuron")'
}

host_pins() { # what the host has stays as it is
    "$1" - <<'PY'
import importlib.metadata as metadata, re

seen = {}
for distribution in metadata.distributions():
    name = distribution.metadata["Name"]
    if name and name.lower() != "neuron-harness":
        seen.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
for name, version in sorted(seen.items()):
    # A local version (2.13.0+cpu) is matched by its public part.
    print(f"{name}=={version.split('+')[0]}")
PY
}

our_pins() { # $1: pins of the host; ours for what it lacks, and never the CPU build of torch
    grep -E '^[A-Za-z0-9_.-]+==' constraints.txt | grep -v '^torch==' | while IFS= read -r pin; do
        local name
        name=$(echo "${pin%%==*}" | tr 'A-Z_.' 'a-z--')
        grep -q "^$name==" "$1" || echo "$pin"
    done
}

stamp() { # $1: pins of the host
    cat "$1" pyproject.toml constraints.txt scripts/setup_trn2.sh | cksum
    pwd
}

has_real_nki() {
    "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("nki") is None or u.find_spec("nki.isa") is None)' \
        2>/dev/null
}

make_overlay() { # $1: python of the host, $2: its site directories, one a line
    # A copy that was cut short never carries the stamp, so the next start begins anew.
    [ ! -e "$OVERLAY" ] || [ -f "$OVERLAY/pyvenv.cfg" ] ||
        fail "$OVERLAY exists and is no Python environment; choose another: OVERLAY=DIRECTORY"
    rm -rf "$OVERLAY"
    "$1" -m venv --without-pip "$OVERLAY"
    local site
    site=$("$OVERLAY/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$2" >"$site/neuron_host.pth"
    # The host's pip serves here too; it installs into the overlay.
    "$OVERLAY/bin/python" -m pip --version >/dev/null 2>&1 || "$OVERLAY/bin/python" -m ensurepip
}

main() {
    local host python site start=$SECONDS
    host=$(host_environment "${1:-}")
    [ -n "$host" ] || fail "no Neuron environment found; activate it or name it: scripts/setup_trn2.sh DIRECTORY" 3
    python=$host/bin/python
    [ -x "$python" ] || fail "$python is no Python; name the directory of an environment"
    site=$(host_site "$python") || exit 3
    is_native "$python" ||
        fail "torch of $host has no device named neuron: its torch-neuronx is the XLA product; install the native one (2.13.3 or later) from $NEURON_INDEX" 3
    pins=$(mktemp)
    trap 'rm -f "$pins" "$pins.ours"' EXIT
    host_pins "$python" >"$pins"
    our_pins "$pins" >>"$pins.ours"
    local wanted
    wanted=$(stamp "$pins")
    cat "$pins.ours" >>"$pins"
    rm -f "$pins.ours"
    if [ "$(cat "$OVERLAY/.neuron-harness-ready" 2>/dev/null)" != "$wanted" ]; then
        echo "setup_trn2: preparing $OVERLAY over $host"
        make_overlay "$python" "$site"
        has_real_nki "$OVERLAY/bin/python" ||
            "$OVERLAY/bin/python" -m pip install --quiet --extra-index-url "$NEURON_INDEX" 'nki>=0.6'
        "$OVERLAY/bin/python" -m pip install --quiet -c "$pins" -e '.[dev]'
        echo "$wanted" >"$OVERLAY/.neuron-harness-ready"
        echo "setup_trn2: ready in $((SECONDS - start)) s"
    else
        echo "setup_trn2: $OVERLAY is prepared"
    fi
    echo "setup_trn2: source $OVERLAY/bin/activate"
    "$OVERLAY/bin/neuron-harness" doctor
}

pins=
main "$@"
