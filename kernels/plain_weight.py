"""Plain weights [N, K] as kernels want them: [K, N], K padded to whole partitions.

The transposed copy is kept as long as its weight lives and is rebuilt when the weight changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from kernels.tiling import PARTITIONS

__all__ = ["channel_major"]

_copies: Any = WeakIdKeyDictionary()


def channel_major(weight: torch.Tensor) -> torch.Tensor:
    """[Kp, N] of weight [N, K] in its own dtype, rows K..Kp zero."""
    known = _copies.get(weight)
    if known is not None and known[0] == weight._version:
        copy: torch.Tensor = known[1]
        return copy
    padded = functional.pad(weight.detach(), (0, -weight.shape[1] % PARTITIONS))
    copy = padded.t().contiguous()
    _copies[weight] = (weight._version, copy)
    return copy
