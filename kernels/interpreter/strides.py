"""Arithmetic of strided layouts: which reshapes need no copy, which views are dense."""

from __future__ import annotations

__all__ = ["contiguous_strides", "is_dense", "product", "reshaped_strides"]

Shape = tuple[int, ...]


def product(shape: Shape) -> int:
    """Number of elements."""
    size = 1
    for extent in shape:
        size *= extent
    return size


def contiguous_strides(shape: Shape) -> Shape:
    """Strides in elements of a C-ordered tensor."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the view visits `product(shape)` adjacent elements, each once, in any order."""
    step = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent == 1:
            continue
        if stride != step:
            return False
        step *= extent
    return True


def _merged(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """(extent, stride) after joining neighbours that are one run of memory."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == stride * extent:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def reshaped_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Strides that show the same elements in C order as `new_shape`; None if only a copy could.

    The shapes must have equal products.
    """
    if 0 in shape:
        return contiguous_strides(new_shape)
    runs = _merged(shape, strides)
    new_strides = [0] * len(new_shape)
    position = len(new_shape) - 1
    for extent, stride in reversed(runs):
        remaining, step = extent, stride
        while remaining > 1:
            if position < 0 or remaining % new_shape[position]:
                return None
            new_strides[position] = step
            step *= new_shape[position]
            remaining //= new_shape[position]
            position -= 1
    for index in range(len(new_shape) - 1, -1, -1):
        if new_shape[index] == 1:
            new_strides[index] = 1
    return tuple(new_strides)
