"""Checkpoint weights re-laid once at load for Trainium2, and kept on the weight that owns them.

fp8 (32x32 blocks): bytes transposed to [K, N] (K on partitions, no transpose on chip) and moved to
Trainium's e4m3 grid, which ends at 240 (nki.md §5.1, port.md R8). A block that holds a magnitude
above 240 has every code halved, to nearest even, and its scale doubled; a block that fits keeps its
bytes. Halving is exact for 238 of the 254 finite codes; the others are the odd multiples of 2^-9 up
to 15 * 2^-9, and how many of a weight's codes were hit is counted.

fp4 (per 32 along K): two codes a byte, output features n and n + N/2 sharing one. The first code
sits where e4m3 has its sign, lowest exponent bits and top mantissa bit (bits 7, 4, 3, 2), so a mask
alone turns it into the fp8 number value * 2^-6; the second (sign, e1, e0, m on bits 5, 6, 1, 0)
needs two masked shifts and an or. The factor 2^6 is folded into the scale bytes here.

Linears and experts carry their scales as bf16, exact for powers of two: the engines take them as
they come, for one more byte in 1024 (fp8) or 32 (fp4) codes. A table's scales stay bytes.

K is padded to whole partitions (128) and N to whole blocks (fp8) or pairs (fp4) with zero codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from harness.core.errors import KernelError, UsageError
from harness.core.weights import QuantisedWeight

__all__ = ["PreparedFp4", "PreparedFp8", "prepared_fp4", "prepared_fp8", "prepared_fp8_rows"]

Bytes = npt.NDArray[np.uint8]
_BLOCK = 32
_PARTITIONS = 128
_FP4_TO_FP8_EXPONENT = 6

_finite = np.arange(256, dtype=np.uint8)
_values = _finite.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
# numpy tables, one entry a byte. NaN (0x7f, 0xff) keeps its bytes: it is NaN on both grids.
_HALVED = np.where(
    np.isnan(_values), _finite, (_values / 2).astype(ml_dtypes.float8_e4m3).view(np.uint8)
)
_HALVES_INEXACTLY = ~np.isnan(_values) & (
    _HALVED.view(ml_dtypes.float8_e4m3).astype(np.float32) * 2 != _values
)
_ABOVE_240 = ~np.isnan(_values) & (np.abs(_values) > 240)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFp8:
    """A weight on the 240 grid.

    Attributes:
        codes: uint8 [Kp, Np], bytes of nl.float8_e4m3 (a table: [R, W]).
        scale: bf16 [Kp/32, Np/32] (a table: ue8m0 bytes [R, W/32]).
        out_features: N without padding.
        num_rescaled_blocks: blocks that were halved.
        num_inexact: codes whose half is not on the grid.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    out_features: int
    num_rescaled_blocks: int
    num_inexact: int


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFp4:
    """Expert weights in the paired byte layout.

    Attributes:
        codes: uint8 [E, Kp, Np/2].
        scale: bf16 [E, Kp/32, Np], 2^6 larger than stored.
        out_features: N without padding.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    out_features: int


def prepared_fp8(weight: QuantisedWeight) -> PreparedFp8:
    """The device layout of an "fp8_block" weight, built on first use.

    Raises:
        KernelError: UNSUPPORTED, a scale byte is NaN or cannot be doubled.
        UsageError: scale of another shape.
    """
    return weight.prepared("kernels/fp8_240_kn", _prepare_fp8)


def prepared_fp4(weight: QuantisedWeight) -> PreparedFp4:
    """The device layout of an "fp4" weight [E, N, K/2], built on first use.

    Raises:
        KernelError: UNSUPPORTED, a scale byte is 2^122 or more (2^6 does not fit above it).
        UsageError: scale of another shape.
    """
    return weight.prepared("kernels/fp4_paired_kn", _prepare_fp4)


def prepared_fp8_rows(table: QuantisedWeight) -> PreparedFp8:
    """An "fp8_row" table [R, W] on the 240 grid, rows as stored, built on first use.

    A row's 32 channels are one block of the rule above. out_features is R.

    Raises:
        KernelError: UNSUPPORTED, a scale byte is NaN or cannot be doubled.
        UsageError: scale of another shape.
    """
    return table.prepared("kernels/fp8_240_rows", _prepare_fp8_rows)


def _prepare_fp8(weight: QuantisedWeight) -> PreparedFp8:
    rows, columns = weight.codes.shape
    grid = (-(-rows // _BLOCK), -(-columns // _BLOCK))
    _require_scale_shape(weight, grid)
    codes = functional.pad(weight.codes, (0, -columns % _PARTITIONS, 0, -rows % _BLOCK)).numpy()
    scale = functional.pad(weight.scale, (0, codes.shape[1] // _BLOCK - grid[1]), value=127).numpy()
    moved = _on_240_grid(codes.reshape(grid[0], _BLOCK, -1, _BLOCK), scale, rows)
    return replace(moved, scale=_powers_of_two(moved.scale))


def _prepare_fp8_rows(table: QuantisedWeight) -> PreparedFp8:
    rows, columns = table.codes.shape
    _require_scale_shape(table, (rows, columns // _BLOCK))
    blocks = table.codes.numpy().reshape(rows, 1, -1, _BLOCK)
    moved = _on_240_grid(blocks, table.scale.numpy(), rows)
    return replace(moved, codes=moved.codes.t().contiguous(), scale=moved.scale.t().contiguous())


def _on_240_grid(blocks: Bytes, scale: Bytes, out_features: int) -> PreparedFp8:
    """Transposed codes and scales of blocks [a, rows, b, 32] with scale [a, b]."""
    too_large = _ABOVE_240[blocks].any(axis=(1, 3))
    if (scale == 255).any() or (too_large & (scale == 254)).any():
        raise KernelError("UNSUPPORTED", "fp8 weight: a scale byte is NaN or cannot be doubled")
    halve = too_large[:, None, :, None]
    moved = np.where(halve, _HALVED[blocks], blocks)
    moved = moved.reshape(blocks.shape[0] * blocks.shape[1], -1)
    return PreparedFp8(
        codes=torch.from_numpy(np.ascontiguousarray(moved.T)),
        scale=torch.from_numpy(np.ascontiguousarray((scale + too_large.astype(np.uint8)).T)),
        out_features=out_features,
        num_rescaled_blocks=int(too_large.sum()),
        num_inexact=int((_HALVES_INEXACTLY[blocks] & halve).sum()),
    )


def _prepare_fp4(weight: QuantisedWeight) -> PreparedFp4:
    num_experts, rows, _ = weight.codes.shape
    columns = weight.in_features
    _require_scale_shape(weight, (num_experts, rows, columns // _BLOCK))
    if (weight.scale > 254 - _FP4_TO_FP8_EXPONENT).any():
        raise KernelError("UNSUPPORTED", "fp4 weight: a scale is 2^122 or more, or NaN")
    packed = weight.codes.numpy()
    nibbles = np.stack((packed & 15, packed >> 4), axis=-1).reshape(num_experts, rows, columns)
    padding = ((0, 0), (0, -rows % 2), (0, -columns % _PARTITIONS))
    by_channel = np.pad(nibbles, padding).transpose(0, 2, 1)
    half = by_channel.shape[2] // 2
    paired = _first_code(by_channel[:, :, :half]) | _second_code(by_channel[:, :, half:])
    raised = weight.scale.numpy() + np.uint8(_FP4_TO_FP8_EXPONENT)
    scale_padding = (padding[0], padding[1], (0, by_channel.shape[1] // _BLOCK - raised.shape[2]))
    scale = np.pad(raised, scale_padding, constant_values=127).transpose(0, 2, 1)
    return PreparedFp4(
        codes=torch.from_numpy(np.ascontiguousarray(paired)),
        scale=_powers_of_two(torch.from_numpy(np.ascontiguousarray(scale))),
        out_features=rows,
    )


def _powers_of_two(bytes_: torch.Tensor) -> torch.Tensor:
    """bf16 2^(byte - 127)."""
    exponents = bytes_.int() - 127
    return torch.ldexp(torch.ones(bytes_.shape), exponents).bfloat16()


def _first_code(nibble: Bytes) -> Bytes:
    """sign to bit 7, e1 e0 m to bits 4 3 2."""
    moved: Bytes = np.bitwise_or((nibble & 8) << 4, (nibble & 7) << 2, dtype=np.uint8)
    return moved


def _second_code(nibble: Bytes) -> Bytes:
    """sign to bit 5, e1 to bit 6, e0 m to bits 1 0."""
    high = (nibble & 8) << 2 | (nibble & 4) << 4
    moved: Bytes = np.bitwise_or(high, nibble & 3, dtype=np.uint8)
    return moved


def _require_scale_shape(weight: QuantisedWeight, expected: tuple[int, ...]) -> None:
    if tuple(weight.scale.shape) != expected:
        raise UsageError(
            f"weight of layout {weight.layout!r} with codes {tuple(weight.codes.shape)}: scale has "
            f"shape {tuple(weight.scale.shape)}, it must be {expected}"
        )
