"""fp64 formulas of model.md, written without references/ and without the kernels' helpers."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from harness.core.numerics import FAST, Numerics
from harness.core.weights import QuantisedWeight

__all__ = [
    "NUMERICS",
    "fp4_values",
    "fp4_weight",
    "fp8_240_values",
    "fp8_weight",
    "layouts_of",
    "normal",
    "on_fp8_grid",
    "rounding_error_of_bf16",
]

Array = npt.NDArray[np.float64]
NUMERICS: Numerics = replace(FAST, fp8_max=240)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """bf16 normals."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).bfloat16()


def layouts_of(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same values as a transposed, a strided, an offset and a plain tensor."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 7.0, dtype=x.dtype)
    strided = wide[..., ::2]
    strided.copy_(x)
    long = torch.full((x.shape[0] + 3, *x.shape[1:]), 7.0, dtype=x.dtype)
    offset = long[2 : 2 + x.shape[0]]
    offset.copy_(x)
    transposed = x.transpose(0, -1).contiguous().transpose(0, -1)
    return {"plain": x, "strided": strided, "offset": offset, "transposed": transposed}


def on_fp8_grid(x: torch.Tensor) -> Array:
    """act_quant of model.md §2.1 on the 240 grid, [T, K] -> fp64 values, by frexp."""
    values = x.float().numpy().reshape(-1, 32)
    amax = np.maximum(np.abs(values).max(-1, keepdims=True), np.float32(1e-4))
    ratio = amax * np.float32(1 / 240)
    mantissa, exponent = np.frexp(ratio)  # ratio = mantissa * 2^exponent, mantissa in [0.5, 1)
    scale = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    codes = (values / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3)
    return (codes.astype(np.float64) * scale).reshape(tuple(x.shape))


def fp8_weight(rows: int, columns: int, seed: int = 0, largest: int = 0x7E) -> QuantisedWeight:
    """Random finite e4m3fn codes with magnitude bytes up to `largest`, scales near 2^-10."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.randint(0, largest + 1, (rows, columns), generator=generator)
    sign = torch.randint(0, 2, (rows, columns), generator=generator) * 128
    blocks = (-(-rows // 32), -(-columns // 32))
    scale = torch.randint(114, 120, blocks, generator=generator)
    return QuantisedWeight((magnitude + sign).to(torch.uint8), scale.to(torch.uint8), "fp8_block")


def fp8_240_values(weight: QuantisedWeight) -> Array:
    """Values [N, K] after the move to the 240 grid, block by block in plain Python loops."""
    stored = weight.codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    out = np.empty_like(stored)
    for i, j in np.ndindex(*weight.scale.shape):
        block = stored[32 * i : 32 * i + 32, 32 * j : 32 * j + 32]
        factor = 2.0 ** (int(weight.scale[i, j]) - 127)
        if np.abs(block).max() > 240:
            block = (block / 2).astype(ml_dtypes.float8_e4m3).astype(np.float64)
            factor *= 2
        out[32 * i : 32 * i + 32, 32 * j : 32 * j + 32] = block * factor
    return out


def fp4_weight(experts: int, rows: int, columns: int, seed: int = 0) -> QuantisedWeight:
    """Random packed codes, scales near 2^-10."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (experts, rows, columns // 2), generator=generator)
    scale = torch.randint(112, 121, (experts, rows, columns // 32), generator=generator)
    return QuantisedWeight(codes.to(torch.uint8), scale.to(torch.uint8), "fp4")


def fp4_values(weight: QuantisedWeight) -> Array:
    """Values [E, N, K]: element 2i in the low nibble, one scale for 32 of K."""
    codes = weight.codes.numpy()
    values = np.stack((_E2M1[codes & 15], _E2M1[codes >> 4]), axis=-1)
    values = values.reshape(*codes.shape[:2], -1)
    factor = 2.0 ** (weight.scale.numpy().astype(np.float64) - 127)
    return values * np.repeat(factor, 32, axis=-1)


def rounding_error_of_bf16(golden: Array) -> Array:
    """Half an ulp of bf16 at each golden value: what one rounding may cost."""
    magnitude = np.maximum(np.abs(golden), 2.0**-120)
    return 2.0 ** (np.floor(np.log2(magnitude)) - 8)
