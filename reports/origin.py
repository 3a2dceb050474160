"""Where something was shown: on CPU, on the official simulator, on a device. Never mixed.

What ran on doubles of the device's modules is STAND_IN, and a record that does not say where it
ran is UNSTATED; neither stands for one of the three states.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from reports.ledger import Entry

__all__ = ["Origin", "origin_of"]


class Origin(Enum):
    """One of the three states, or one of two that are none of them."""

    CPU = "CPU"
    SIMULATOR = "official simulator"
    DEVICE = "device"
    STAND_IN = "stand-in (module doubles)"
    UNSTATED = "not stated"


_BY_NAME: Mapping[str, Origin] = {
    "interpret": Origin.CPU,
    "cpu-interpreter": Origin.CPU,
    "cpu": Origin.CPU,
    "simulate": Origin.SIMULATOR,
    "official-simulator": Origin.SIMULATOR,
    "device": Origin.DEVICE,
    "stand-in": Origin.STAND_IN,
}
_ON_THE_SDK = (Origin.SIMULATOR, Origin.DEVICE)


def origin_of(entry: Entry) -> Origin:
    """The state a record counts for: what its payload says, else its environment.

    A payload names the backend that was asked for; that its modules were doubles only the
    environment knows.
    """
    environment = entry.record.environment
    stated = _stated(entry.payload) or _stated(environment)
    if stated in _ON_THE_SDK and _is_double(environment):
        return Origin.STAND_IN
    if stated is not None:
        return stated
    return Origin.CPU if _without_neuron(environment) else Origin.UNSTATED


def _stated(source: Mapping[str, Any]) -> Origin | None:
    for field in ("backend", "origin"):
        name = source.get(field)
        if name is not None and name != "":
            return _BY_NAME.get(str(name), Origin.UNSTATED)
    return None


def _is_double(environment: Mapping[str, Any]) -> bool:
    sdk = environment.get("sdk")
    states = sdk.values() if isinstance(sdk, Mapping) else ()
    return environment.get("origin") == "stand-in" or any(
        isinstance(one, Mapping) and one.get("state") == "stand-in" for one in states
    )


def _without_neuron(environment: Mapping[str, Any]) -> bool:
    """Whether the fingerprint says that no torch-neuronx was there: then torch ran on the CPU."""
    sdk = environment.get("sdk")
    runtime = sdk.get("torch-neuronx") if isinstance(sdk, Mapping) else None
    state = runtime.get("state") if isinstance(runtime, Mapping) else None
    return state in ("absent", "placeholder")
