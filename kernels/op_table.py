"""The NKI ops, laid over another table: `references.op_table:TABLE,kernels.op_table:TABLE`."""

from __future__ import annotations

from harness.core.op_table import OpTable
from kernels.catalog import KERNELS

__all__ = ["TABLE"]

TABLE = OpTable({name: KERNELS.resolve(name) for name in KERNELS}, fp8_max=240)
