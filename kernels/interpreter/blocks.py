"""Large tiles in blocks of partitions, so that the fp32 work arrays stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.interpreter.faces import Face

__all__ = ["in_blocks"]

_BLOCK_ELEMENTS = 1 << 15


def in_blocks(run: Callable[..., Any], dst: Face) -> Callable[..., Any]:
    """`run(out, *operands)` over blocks of partitions where dst is large.

    Operands that are arrays have the partitions of dst; results that are arrays are joined.
    Blocks do not interfere: two operands of one instruction overlap in whole partitions or not at
    all.
    """
    if dst.size <= _BLOCK_ELEMENTS or dst.free_size == 0:
        return run
    rows = max(1, _BLOCK_ELEMENTS // dst.free_size)

    def blocked(out: Any, *operands: Any) -> Any:
        results = []
        for start in range(0, dst.partitions, rows):
            block = slice(start, start + rows)
            parts = [o[block] if isinstance(o, np.ndarray) else o for o in operands]
            results.append(run(out[block], *parts))
        return None if results[0] is None else np.concatenate(results)

    return blocked
