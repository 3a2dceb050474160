"""A NeuronCore as torch-neuronx's native backend offers it (nki.md §6).

Native means a PrivateUse1 device named neuron: versions say nothing, since the XLA product bore
the same package name. An op the backend lacks runs on the CPU without a word; the backend keeps a
list of such calls, which is read once a step.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine.device.base import CpuDevice, Device
from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.numerics import Numerics

__all__ = ["DEVICES", "NeuronDevice", "num_compiled", "open_device", "require_device"]

DEVICES = ("cpu", "neuron")
_NEFF_CACHE, _DEFAULT_NEFF_CACHE = "TORCH_NEURONX_NEFF_CACHE_DIR", "/tmp/neff_cache"
_TRACKING = ("clear_op_tracking", "get_fallback_ops")


def open_device(name: str, rank: int) -> Device:
    """The device of a rank: `cpu`, or NeuronCore `rank` of those visible.

    Raises:
        MissingEvidenceError, UsageError: see `require_device`.
    """
    if name == "cpu":
        return CpuDevice()
    return NeuronDevice(rank)


def require_device(name: str, num_ranks: int, numerics: Numerics) -> None:
    """Refuse, in one line, what cannot run here, before a checkpoint is read.

    Raises:
        MissingEvidenceError: no native torch-neuronx, no core, or too few of them.
        UsageError: an unknown name, a simulator switched on, or sums in fp64.
    """
    if name not in DEVICES:
        raise UsageError(f"device {name!r} is not known: choose {' or '.join(DEVICES)}")
    if name == "cpu":
        return
    if os.environ.get("NKI_SIMULATOR", "0") not in ("", "0"):
        raise UsageError("NKI_SIMULATOR is set: unset it, a device run must not be simulated")
    if numerics.accumulate == "float64":
        raise UsageError(
            f"numerics {numerics.name!r} sum in fp64, which the device has not: use fast there"
        )
    num_cores = _num_cores()
    if num_cores < num_ranks:
        raise MissingEvidenceError(
            f"device neuron: {num_ranks} ranks need as many logical NeuronCores, {num_cores} are "
            "visible (NEURON_RT_VISIBLE_CORES, NEURON_LOGICAL_NC_CONFIG, other processes)"
        )


def num_compiled() -> int:
    """NEFF files in torch-neuronx's cache: what a measurement adds, it has compiled."""
    place = Path(os.environ.get(_NEFF_CACHE) or _DEFAULT_NEFF_CACHE)
    return sum(1 for _ in place.rglob("*.neff")) if place.is_dir() else 0


def _num_cores() -> int:
    if torch._C._get_privateuse1_backend_name() != "neuron":
        raise MissingEvidenceError(
            "device neuron is missing: no PrivateUse1 device of that name, install the native "
            "torch-neuronx (2.13.3 or later) on a Trainium host with scripts/setup_trn2.sh"
        )
    num_cores = int(_face().device_count())
    if not num_cores:
        raise MissingEvidenceError(
            "device neuron is missing: torch-neuronx is there but sees no NeuronCore (is the "
            "driver loaded, is /dev/neuron0 there, are the cores taken?)"
        )
    return num_cores


def _face() -> Any:
    """`torch.neuron`, which the backend registers."""
    return torch.get_device_module("neuron")


class NeuronDevice:
    """See Device.

    Raises:
        MissingEvidenceError: this torch-neuronx cannot tell which ops fell back.
    """

    collective_backend = "neuron"

    def __init__(self, rank: int) -> None:
        self.torch_device = torch.device("neuron", rank)
        _face().set_device(rank)
        self._tracking = importlib.import_module("torch_neuronx")
        for name in _TRACKING:
            if not hasattr(self._tracking, name):
                raise MissingEvidenceError(
                    f"torch_neuronx has no {name}: CPU fallbacks cannot be counted, so nothing "
                    "measured here could be trusted; install torch-neuronx 2.13.3 or later"
                )

    def start_step(self) -> None:
        """Forget what fell back before, e.g. while weights were loaded."""
        self._tracking.clear_op_tracking()

    def finish_step(self) -> Mapping[str, int]:
        """See Device; eager calls return before their work is done, so this waits first."""
        _face().synchronize()
        return Counter(self._tracking.get_fallback_ops())
