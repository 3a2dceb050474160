# Sourced by the other scripts. Decides which Python serves this checkout:
# the active one if it already has torch (a Neuron host, a conda environment), else .venv/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

active_has_torch() {
    { [ -n "${VIRTUAL_ENV:-}" ] || [ -n "${CONDA_PREFIX:-}" ]; } &&
        python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' \
            2>/dev/null
}

if active_has_torch; then
    ENV_KIND=active
    ENV_PYTHON=$(command -v python)
else
    ENV_KIND=venv
    ENV_PYTHON=$PWD/.venv/bin/python
fi
export ENV_KIND ENV_PYTHON
