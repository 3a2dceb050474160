"""The same values in another memory layout."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.core.errors import UsageError
from harness.core.op_axes import LAYOUTS
from harness.core.suggest import near_names

__all__ = ["laid_out"]

# What stands around a view: a kernel that reads it shows, and one that writes it is caught.
_SURROUNDING = 77


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """`tensor`'s values as a view of the named layout ("expanded" repeats its first row).

    Raises:
        UsageError: the layout is not known.
    """
    if layout not in _PLACERS:
        raise UsageError(f"layout {layout!r} is not known{near_names(layout, LAYOUTS)}")
    return _PLACERS[layout](tensor)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The last two axes swapped in memory; a vector stays as it is."""
    if tensor.dim() < 2:
        return tensor.contiguous()
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Every second element of the last axis, inside wider rows."""
    if tensor.dim() == 0:
        return tensor.clone()
    wide = _surrounded((*tensor.shape[:-1], 2 * tensor.shape[-1] + 6), tensor)
    view = wide[..., 3 : 3 + 2 * tensor.shape[-1] : 2]
    return _filled(view, tensor)


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    """A slice of a larger tensor: rows before and after, columns left and right."""
    if tensor.dim() == 0:
        return tensor.clone()
    wide = _surrounded(tuple(length + 5 for length in tensor.shape), tensor)
    view = wide[tuple(slice(3, 3 + length) for length in tensor.shape)]
    return _filled(view, tensor)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first row repeated with stride 0."""
    if tensor.dim() == 0 or tensor.shape[0] == 0:
        return tensor.contiguous()
    return tensor[:1].clone().expand(tensor.shape)


def _surrounded(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    fill = True if like.dtype is torch.bool else _SURROUNDING
    return torch.full(shape, fill, dtype=like.dtype)


def _filled(view: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    view.copy_(tensor)
    return view


_PLACERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = dict(
    zip(LAYOUTS, (_contiguous, _transposed, _strided, _offset, _expanded), strict=True)
)
