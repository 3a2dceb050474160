"""What torchrun tells a process about itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from engine.parallel.topology import Topology
from harness.core.errors import UsageError

__all__ = ["Launch"]

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Launch:
    """One of several ranks that torchrun, or who sets the same variables, has started.

    Attributes:
        rank, size: among all.
        local_rank, local_size: among those of this host.
        node: number of the host.
        address: of the host that keeps the store (MASTER_ADDR).
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    address: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Launch | None:
        """None where nobody launched ranks: WORLD_SIZE is absent or 1, as the port sets it.

        Raises:
            UsageError: a variable is missing or no number.
        """
        found = os.environ if environment is None else environment
        if _number(found, "WORLD_SIZE", "1") == 1:
            return None
        rank, size, local_rank, local_size = (_number(found, name) for name in _VARIABLES)
        if not (0 <= local_rank < local_size <= size and local_rank <= rank < size):
            told = ", ".join(f"{name}={found[name]}" for name in _VARIABLES)
            raise UsageError(f"{told}: these do not fit together; start ranks with torchrun")
        address = found.get("MASTER_ADDR", "")
        if not address or not found.get("MASTER_PORT"):
            raise UsageError("MASTER_ADDR or MASTER_PORT is missing: start ranks with torchrun")
        node = _number(found, "GROUP_RANK", str(rank // local_size))
        return cls(rank, size, local_rank, local_size, node, address)

    @property
    def is_on_loopback(self) -> bool:
        """All ranks are on this host."""
        return self.address == "localhost" or self.address.startswith("127.")

    def check(self, topology: Topology) -> None:
        """Raises UsageError where the settings ask for another number of ranks."""
        if topology.num_ranks != self.size:
            raise UsageError(
                f"{self.size} ranks were started (WORLD_SIZE), --cp {topology.cp} "
                f"--ep {topology.num_ranks} needs {topology.num_ranks}: start as many, or unset "
                "WORLD_SIZE to let this command start its own"
            )


def _number(found: Mapping[str, str], name: str, default: str = "") -> int:
    text = found.get(name, "") or default
    try:
        return int(text)
    except ValueError:
        said = f"{name}={text!r}" if text else f"{name} is missing"
        raise UsageError(f"{said}: a number is needed; start ranks with torchrun") from None
