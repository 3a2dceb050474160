"""TileKernels' functions that this model calls, in plain torch (model.md §5.6).

Four families, as there: engram (hash, fused weight, gate), modeling.mhc (unshifted V4 form whose
pieces V4.1 uses), moe (routing and permutation) and quant (casts). Each is a class of static
functions, so that a caller reads `tile_kernels.moe.topk_gate(...)` as with the original. Scales
are float32 and row-major; packed ue8m0 is refused.
"""

from __future__ import annotations

from references.tile_engram import engram
from references.tile_mhc import mhc
from references.tile_moe import moe
from references.tile_quant import quant

__all__ = ["engram", "mhc", "modeling", "moe", "quant"]


class modeling:  # noqa: N801 - the original's name
    """`tile_kernels.modeling.mhc`, the place it has in the original."""

    mhc = mhc
