"""The attention call of a step, on either of its two paths (model.md §2.4, port.md R26).

A decode step gathers each token's own rows. The tokens of a prompt chunk see nearly the same rows,
so a prefill step reads them in tiles that all its tokens share, under a mask of who sees what. The
mask is made from the very indices that the decode path would gather.

Legend: T rows of the step, H heads, D head dim, M rows a token may see, N rows of the buffer.
"""

from __future__ import annotations

import torch

from engine.model.context import StepContext
from engine.ops import BoundOps

__all__ = ["attend", "visibility"]


def attend(
    ops: BoundOps,
    step: StepContext,
    q_THD: torch.Tensor,
    rows_ND: torch.Tensor,
    indices_TM: torch.Tensor,
    sink_H: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """o [T, H, D]: softmax with sink over rows indices [T, M] (-1: none) of the buffer."""
    if step.inputs.path == "decode":
        gathered: torch.Tensor = ops.sparse_attention(q_THD, rows_ND, indices_TM, sink_H, scale)
        return gathered
    selection = step.selection
    # Layers that share a selection share its mask.
    if selection.mask is None or selection.mask_indices is not indices_TM:
        selection.mask = visibility(indices_TM, rows_ND.shape[0])
        selection.mask_indices = indices_TM
    shared: torch.Tensor = ops.prefill_attention(q_THD, rows_ND, selection.mask, sink_H, scale)
    return shared


def visibility(indices_TM: torch.Tensor, num_rows: int) -> torch.Tensor:
    """[T, N] bool: whether a row's number is among the token's indices."""
    # Absent entries mark one column more, which is cut off.
    columns = torch.where(indices_TM < 0, num_rows, indices_TM)
    marked = torch.zeros(
        indices_TM.shape[0], num_rows + 1, dtype=torch.bool, device=indices_TM.device
    )
    return marked.scatter_(1, columns, True)[:, :num_rows]
