"""What Trainium's e4m3 (largest value 240) costs a checkpoint's fp8 weights, tensor by tensor.

A scale tile that holds a magnitude above 240 has its codes halved and its scale doubled at load
(port.md R8). Halving is exact but for 16 of the 254 finite codes, the odd multiples of 2^-9 up
to 15 * 2^-9, so a tile loses something only where it holds both large and very small values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.weights.checkpoint import Checkpoint
from harness.core.errors import InputError

__all__ = ["RescaleLoss", "rescale_losses", "tile_loss"]

_TILE = 32
_LARGEST = 240.0
# Rows read at a time: an Engram table is far larger than memory.
_SLAB_ROWS = 1 << 13


@dataclass(frozen=True, slots=True)
class RescaleLoss:
    """Of one fp8 tensor.

    Attributes:
        num_rescaled_tiles: of num_tiles, those with a magnitude above 240.
        num_inexact: values that are not what they were.
        largest_error: largest |new - old| / |old|, 1 where a value became 0.
        error_energy, energy: sums of squares of the differences and of the values.
    """

    name: str
    num_values: int
    num_tiles: int
    num_rescaled_tiles: int
    num_inexact: int
    largest_error: float
    error_energy: float
    energy: float

    @property
    def rms_error(self) -> float:
        """Root of the error's share of the tensor's energy."""
        return float((self.error_energy / self.energy) ** 0.5) if self.energy else 0.0

    def joined(self, other: RescaleLoss) -> RescaleLoss:
        """Of both parts of one tensor."""
        return RescaleLoss(
            self.name,
            self.num_values + other.num_values,
            self.num_tiles + other.num_tiles,
            self.num_rescaled_tiles + other.num_rescaled_tiles,
            self.num_inexact + other.num_inexact,
            max(self.largest_error, other.largest_error),
            self.error_energy + other.error_energy,
            self.energy + other.energy,
        )


def rescale_losses(checkpoint: Checkpoint) -> Iterator[RescaleLoss]:
    """The loss of every fp8 weight of a checkpoint, by name.

    Raises:
        InputError: a weight without its scale, or a scale of another shape than the layouts have.
    """
    for name in sorted(checkpoint.names):
        dtype, shape = checkpoint.header(name)
        if dtype == "F8_E4M3" and name.endswith(".weight"):
            yield _tensor_loss(checkpoint, name, shape)


def _tensor_loss(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> RescaleLoss:
    scale_name = name.removesuffix(".weight") + ".scale"
    if not checkpoint.has(scale_name):
        remedy = "every fp8 weight has a scale beside it"
        raise InputError(checkpoint.directory, f"tensor {scale_name}", "absent", remedy)
    _, scale_shape = checkpoint.header(scale_name)
    columns = -(-shape[1] // _TILE)
    by_row = scale_shape == (shape[0], columns)
    if not by_row and scale_shape != (-(-shape[0] // _TILE), columns):
        remedy = f"one scale per 32 channels or 32x32 tile of {list(shape)}"
        raise InputError(checkpoint.directory, f"shape of {scale_name}", list(scale_shape), remedy)
    row_tile = 1 if by_row else _TILE
    total: RescaleLoss | None = None
    for first in range(0, shape[0], _SLAB_ROWS):
        last = min(shape[0], first + _SLAB_ROWS)
        scale_rows = (first // row_tile, -(-last // row_tile))
        codes = checkpoint.read(name, "F8_E4M3", shape, rows=(first, last))
        scale = checkpoint.read(scale_name, "F8_E8M0", scale_shape, rows=scale_rows)
        part = tile_loss(name, codes, scale, row_tile)
        total = part if total is None else total.joined(part)
    assert total is not None
    return total


def tile_loss(name: str, codes: torch.Tensor, scale: torch.Tensor, row_tile: int) -> RescaleLoss:
    """Of e4m3 bytes [N, K] with ue8m0 bytes [N / row_tile, K / 32].

    Args:
        row_tile: rows that share a scale, 1 or 32.
    """
    rows, columns = codes.shape
    values = codes.view(torch.float8_e4m3fn).double()
    padded = functional.pad(values, (0, -columns % _TILE, 0, -rows % row_tile))
    tiles = padded.view(scale.shape[0], row_tile, scale.shape[1], _TILE)
    too_large = tiles.abs().amax((1, 3), keepdim=True) > _LARGEST
    # A multiple of 2^-9 halves to a multiple of 2^-9; the larger binades only change exponent.
    halved = torch.where(tiles.abs() < 2.0**-5, torch.round(tiles * 2.0**8) * 2.0**-9, tiles / 2)
    difference = torch.where(too_large, 2 * halved - tiles, 0.0)
    factor = torch.exp2(scale.double() - 127)[:, None, :, None]
    relative = (difference / tiles).abs().nan_to_num(0.0)
    return RescaleLoss(
        name=name,
        num_values=codes.numel(),
        num_tiles=scale.numel(),
        num_rescaled_tiles=int(too_large.sum()),
        num_inexact=int((difference != 0).sum()),
        largest_error=float(relative.max()),
        error_energy=float((difference * factor).square().sum()),
        energy=float((tiles * factor).square().sum()),
    )
