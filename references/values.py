"""Whether an op may look at its operands' values.

While an engine captures a region as a graph, tensors have shapes but no values. Checks that read a
value (is every index inside?) then wait: the op that runs eagerly makes them.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["has_values"]


def has_values(tensor: torch.Tensor) -> bool:
    """False of a tensor on the meta device and of one that stands in while a graph is captured."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))
