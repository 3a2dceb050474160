"""What a worker asks of the device it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch

__all__ = ["CpuDevice", "Device"]


class Device(Protocol):
    """One rank's device.

    Attributes:
        torch_device: where its tensors are made.
        collective_backend: of torch.distributed between such ranks.
    """

    @property
    def torch_device(self) -> torch.device:
        """Where tensors of this rank are."""

    @property
    def collective_backend(self) -> str:
        """Name torch.distributed knows it by."""

    def start_step(self) -> None:
        """Count fallbacks of a new step."""

    def finish_step(self) -> Mapping[str, int]:
        """Wait until the step's work is done. Returns op -> calls that fell back to the CPU."""


class CpuDevice:
    """Eager torch on the host: nothing to wait for, nothing to fall back from."""

    torch_device = torch.device("cpu")
    collective_backend = "gloo"

    def start_step(self) -> None:
        """Nothing to count."""

    def finish_step(self) -> Mapping[str, int]:
        """No op can leave the CPU."""
        return MappingProxyType({})
