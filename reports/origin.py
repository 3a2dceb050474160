"""Where something was shown: on CPU, on the official simulator, on a device. Never mixed.

A record that does not say where it ran is UNSTATED, a fourth state that stands for none of the
other three.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from reports.ledger import Entry

__all__ = ["Origin", "origin_of"]


class Origin(Enum):
    """One of the three states, or none."""

    CPU = "CPU"
    SIMULATOR = "official simulator"
    DEVICE = "device"
    UNSTATED = "not stated"


_BY_NAME: Mapping[str, Origin] = {
    "interpret": Origin.CPU,
    "cpu-interpreter": Origin.CPU,
    "cpu": Origin.CPU,
    "simulate": Origin.SIMULATOR,
    "official-simulator": Origin.SIMULATOR,
    "device": Origin.DEVICE,
}


def origin_of(entry: Entry) -> Origin:
    """The state a record counts for: what its payload says, else its environment."""
    for source in (entry.payload, entry.record.environment):
        for field in ("backend", "origin"):
            stated = source.get(field)
            if stated is not None and stated != "":
                return _BY_NAME.get(str(stated), Origin.UNSTATED)
    return Origin.CPU if _without_neuron(entry.record.environment) else Origin.UNSTATED


def _without_neuron(environment: Mapping[str, Any]) -> bool:
    """Whether the fingerprint says that no torch-neuronx was there: then torch ran on the CPU."""
    sdk = environment.get("sdk")
    runtime = sdk.get("torch-neuronx") if isinstance(sdk, Mapping) else None
    state = runtime.get("state") if isinstance(runtime, Mapping) else None
    return state in ("absent", "placeholder")
