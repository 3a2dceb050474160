"""Double of torch_neuronx.utils."""

import os

__all__ = ["get_logical_neuron_cores"]


def get_logical_neuron_cores() -> int:
    """Physical cores of a logical core, as the runtime was configured."""
    runtime = os.environ.get("FAKE_NEURON_RUNTIME_LNC")
    return int(runtime or os.environ.get("NEURON_LOGICAL_NC_CONFIG", "2"))
