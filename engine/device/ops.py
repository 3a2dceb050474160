"""An op table for a device: the same ops, with weights and the Engram table where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.device.placement import resident
from harness.core.op_table import OpTable
from harness.core.weights import QuantisedWeight

__all__ = ["ops_for_device"]

_LOOKUP = "engram_lookup"


def ops_for_device(table: OpTable, device: torch.device) -> OpTable:
    """The table itself on the CPU. On a device:

    * ops in plain torch get quantised weights on the device, kernels get them on the host, where
      they are laid out once (kernels.launch keeps the device's copy of the result);
    * the Engram table stays in the host's shared memory: its rows are gathered there and only
      they travel.
    """
    if device.type == "cpu":
        return table
    ops = {name: _placed(name, op, table, device) for name, op in table.ops.items()}
    return OpTable(ops, fp8_max=table.fp8_max, source=table.source)


def _placed(
    name: str, op: Callable[..., Any], table: OpTable, device: torch.device
) -> Callable[..., Any]:
    if name == _LOOKUP:
        return _host_lookup(op, table, device)
    if _is_kernel(name, table):
        return op

    def call(*arguments: Any, **options: Any) -> Any:
        placed = [
            resident(value, device) if isinstance(value, QuantisedWeight) else value
            for value in arguments
        ]
        return op(*placed, **options)

    return call


def _is_kernel(name: str, table: OpTable) -> bool:
    """Kernel ops take their weights from the host (kernels.weight_layout)."""
    return table.source.get(name, "").startswith("kernels.")


def _host_lookup(
    op: Callable[..., Any], table: OpTable, device: torch.device
) -> Callable[..., Any]:
    on_host = _is_kernel(_LOOKUP, table)

    def call(weight: QuantisedWeight, rows: torch.Tensor, **options: Any) -> Any:
        wanted = rows.cpu()
        flat = wanted.reshape(-1)
        gathered = QuantisedWeight(weight.codes[flat], weight.scale[flat], weight.layout)
        own = torch.arange(flat.numel()).view(wanted.shape).to(device)
        return op(gathered if on_host else resident(gathered, device), own, **options)

    return call
