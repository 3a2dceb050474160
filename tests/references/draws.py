"""Seeded operands for the tests of this folder."""

from __future__ import annotations

import torch

from harness.core.weights import QuantisedWeight

__all__ = ["fp4_weight", "fp8_weight", "normal", "table_weight"]


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Standard normal values that bf16 can hold, in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16().to(dtype)


def _bytes(seed: int, low: int, high: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(torch.uint8)


def _finite_e4m3(seed: int, *shape: int) -> torch.Tensor:
    codes = _bytes(seed, 0, 256, *shape)
    return torch.where((codes & 0x7F) == 0x7F, codes & 0x80, codes)


def fp8_weight(seed: int, rows: int, columns: int) -> QuantisedWeight:
    """Every finite e4m3fn code, scales 2^-12 to 2^-5, tails where 32 does not divide."""
    scale = _bytes(seed + 1, 115, 123, -(-rows // 32), -(-columns // 32))
    return QuantisedWeight(_finite_e4m3(seed, rows, columns), scale, "fp8_block")


def fp4_weight(seed: int, experts: int, rows: int, columns: int) -> QuantisedWeight:
    """Every nibble, scales 2^-5 to 2^2."""
    codes = _bytes(seed, 0, 256, experts, rows, columns // 2)
    return QuantisedWeight(codes, _bytes(seed + 1, 122, 130, experts, rows, columns // 32), "fp4")


def table_weight(seed: int, rows: int, columns: int) -> QuantisedWeight:
    """An Engram table."""
    scale = _bytes(seed + 1, 119, 127, rows, columns // 32)
    return QuantisedWeight(_finite_e4m3(seed, rows, columns), scale, "fp8_row")
