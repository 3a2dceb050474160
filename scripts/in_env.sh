#!/usr/bin/env bash
# Runs a command of the environment this checkout uses: scripts/in_env.sh neuron-harness …
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
PATH=$(dirname "$ENV_PYTHON"):$PATH
exec "$@"
