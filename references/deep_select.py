"""DeepSelect's top-k, in plain torch (model.md §5.4). Its tie rule is unspecified there; here the
lowest index wins."""

from __future__ import annotations

import torch

from references.operands import refuse, require, require_ids, require_shape
from references.selection import lowest_index_topk

__all__ = ["get_stride_requirement", "topk"]

_LARGEST_TOP_K = 4096


def get_stride_requirement() -> tuple[int, int]:
    """Row strides in bytes that input and output must be multiples of; none here (1, 1)."""
    return 1, 1


def topk(
    input: torch.Tensor,
    topk: int,
    sorted: bool = False,
    begin: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    indices_type: torch.dtype = torch.int64,
    sorted_index: bool = False,
    hint: object = None,  # noqa: ARG001 - a hint for CUDA
    output_idx: torch.Tensor | None = None,
    output_idx_offset: torch.Tensor | None = None,
    idx_oob_fill_value: int = 2**31 - 1,
    value_oob_fill_value: float = -torch.inf,
    return_value: bool = True,
    abort_when_nan_found: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(values or None, ids), both [b, topk], of the largest entries of input [b, n].

    Row i considers the columns begin[i] <= j < end[i]. Rows with fewer entries than topk are
    filled with the two fill values. Ids are absolute columns plus output_idx_offset[i];
    `sorted` orders a row by falling value, `sorted_index` by rising id.

    Raises:
        UsageError: topk outside 1..4096, NaN among the considered entries, both orders at once,
            wrong shapes or dtypes.
    """
    op = "deep_select.topk"
    if input.dtype not in (torch.bfloat16, torch.float32) or input.ndim != 2:
        refuse(op, f"input is {input.dtype} {tuple(input.shape)}: pass bfloat16 or float32 [b, n]")
    require(1 <= topk <= _LARGEST_TOP_K, op, f"topk {topk} is not within 1..{_LARGEST_TOP_K}")
    require(not (sorted and sorted_index), op, "sorted and sorted_index exclude each other")
    require(indices_type in (torch.int32, torch.int64), op, f"indices_type is {indices_type}")
    values = input.float()
    inside = _inside(op, values, begin, end)
    require(
        not abort_when_nan_found or not bool((values.isnan() & inside).any()), op, "input holds NaN"
    )
    ids, present = _chosen(values, inside, topk, sorted)
    out = _numbered(op, ids, present, output_idx_offset, idx_oob_fill_value).to(indices_type)
    if output_idx is not None:
        require_shape(op, "output_idx", output_idx, tuple(out.shape))
        out = output_idx.copy_(out)
    if not return_value:
        return None, out
    taken = values.gather(1, ids.clamp(max=max(values.shape[1] - 1, 0)))
    return taken.masked_fill(~present, value_oob_fill_value).to(input.dtype), out


def _inside(
    op: str, values: torch.Tensor, begin: torch.Tensor | None, end: torch.Tensor | None
) -> torch.Tensor:
    columns = torch.arange(values.shape[1])
    inside = torch.ones_like(values, dtype=torch.bool)
    for name, bound in (("begin", begin), ("end", end)):
        if bound is not None:
            require_ids(op, name, bound, ndim=1)
            require_shape(op, name, bound, (values.shape[0],))
            beside = columns < bound.unsqueeze(1)
            inside &= beside if name == "end" else ~beside
    return inside


def _chosen(
    values: torch.Tensor, inside: torch.Tensor, count: int, by_value: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ascending ids [b, count] and which of them are there."""
    # An entry of -inf is a legal choice, so ranks take the place of values.
    order = values.nan_to_num(nan=torch.inf).masked_fill(~inside, -torch.inf)
    ranks = torch.argsort(torch.argsort(order, dim=1, stable=True, descending=True), dim=1)
    score = (-ranks).float().masked_fill(~inside, -torch.inf)
    mask = lowest_index_topk(score, count)
    ids = torch.zeros(values.shape[0], count, dtype=torch.int64)
    present = torch.arange(count) < mask.sum(1, keepdim=True)
    rows, columns = mask.nonzero(as_tuple=True)
    ids[rows, mask.cumsum(1)[rows, columns] - 1] = columns
    if by_value:
        key = score.gather(1, ids).masked_fill(~present, -torch.inf)
        ids = ids.gather(1, torch.argsort(key, dim=1, descending=True, stable=True))
    return ids, present


def _numbered(
    op: str,
    ids: torch.Tensor,
    present: torch.Tensor,
    offset: torch.Tensor | None,
    fill: int,
) -> torch.Tensor:
    if offset is not None:
        require_ids(op, "output_idx_offset", offset, ndim=1)
        require_shape(op, "output_idx_offset", offset, (ids.shape[0],))
        ids = ids + offset.unsqueeze(1)
    return ids.masked_fill(~present, fill)
