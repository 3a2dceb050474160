"""Inputs of norms, rope, quantisers, linears and the activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.run.inputs.codes import (
    fp4_weight,
    fp8_block_weight,
    fp8_codes,
    ue8m0_scales,
)
from harness.run.inputs.draw import Draw

__all__ = ["BUILDERS"]

_BF16_MAX = 3.3895313892515355e38
# Borders of e4m3 at block scale 1: the two maxima, what lies between and beyond them.
_FP8_SPIKES = (240.0, -240.0, 241.0, 248.0, 255.0, 448.0, -448.0, 449.0, 464.0, 480.0, _BF16_MAX)
_LINEAR_SPIKES = (240.0, 248.0, 448.0, -480.0)
_FP4_SPIKES = (6.0, -6.0, 6.5, 7.0, _BF16_MAX, -_BF16_MAX)


def _rms_norm(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    # Squares must not leave fp32: 2^50 squared and summed stays below 2^127.
    x = draw.activations(axes["T"], axes["d"], spread=50, spikes=(2.0**55, -(2.0**55)))
    weight = 1 + draw.normal(axes["d"], scale=0.1)
    return {"x": x, "weight": weight.to(torch.bfloat16)}


def _rope(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    heads = (axes["H"],) if "H" in axes else ()
    if axes["R"] % 2 or axes["R"] > axes["D"]:
        raise ValueError(f"R={axes['R']} must be even and at most D={axes['D']}")
    positions = draw.integers(0, 1 << 20, axes["T"]).to(torch.float64)
    frequencies = 10000.0 ** (-torch.arange(0, axes["R"], 2, dtype=torch.float64) / axes["R"])
    angles = positions[:, None] * frequencies[None, :]
    return {
        "x": draw.activations(axes["T"], *heads, axes["D"], spread=60),
        "cos": angles.cos().to(torch.float32),
        "sin": angles.sin().to(torch.float32),
    }


def _midpoints(draw: Draw, T: int, K: int, block: int, grid: torch.Tensor) -> torch.Tensor:
    """Values halfway between neighbours of a grid, each block's scale pinned to 1 by its max."""
    halfway = (grid[1:] + grid[:-1]) / 2
    values = halfway[draw.integers(0, len(halfway), T, K)]
    values *= torch.where(draw.integers(0, 2, T, K) == 0, 1.0, -1.0)
    values[:, ::block] = grid[-1]
    return values.to(torch.bfloat16)


def _fp8_grid_to_240() -> torch.Tensor:
    return torch.arange(0x78, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)


def _quantise_fp8(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    _require_multiple(axes["K"], 32, "K")
    if draw.family == "ties":
        return {"x": _midpoints(draw, axes["T"], axes["K"], 32, _fp8_grid_to_240())}
    x = draw.blocks_of_activations(axes["T"], axes["K"], spread=40, spikes=_FP8_SPIKES)
    return {"x": x}


def _dequantise_fp8(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    _require_multiple(axes["K"], 32, "K")
    largest = 0x7E if draw.fp8_max == 448 else 0x77
    codes = fp8_codes(draw, axes["T"], axes["K"], largest=largest)
    if draw.family == "zero_block":
        codes[:, :32] = 0
    return {"codes": codes, "scale": ue8m0_scales(draw, axes["T"], axes["K"] // 32, centre=122)}


def _quantise_fp4(draw: Draw) -> dict[str, Any]:
    axes, block = draw.case.axes, draw.scalars["block"]
    _require_multiple(axes["K"], block, "K")
    if draw.family == "ties":
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        return {"x": _midpoints(draw, axes["T"], axes["K"], block, grid)}
    # Block 16 has e4m3 scales: beyond 6 * 448 the values saturate, which is part of the op.
    spread, spikes = (40, _FP4_SPIKES) if block == 32 else (8, (6.0, -6.0, 2688.0, -2688.0))
    x = draw.blocks_of_activations(axes["T"], axes["K"], spread=spread, spikes=spikes)
    return {"x": x}


def _dequantise_fp4(draw: Draw) -> dict[str, Any]:
    axes, block = draw.case.axes, draw.scalars["block"]
    _require_multiple(axes["K"], block, "K")
    shape = (axes["T"], axes["K"] // block)
    codes = draw.integers(0, 256, axes["T"], axes["K"] // 2).to(torch.uint8)
    if draw.family == "zero_block":
        codes[:, : block // 2] = 0
    if block == 32:
        return {"codes": codes, "scale": ue8m0_scales(draw, *shape, centre=125)}
    largest = 0x7E if draw.fp8_max == 448 else 0x77
    return {"codes": codes, "scale": draw.integers(1, largest + 1, *shape).to(torch.uint8)}


def _linear_fp8(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    _require_multiple(axes["K"], 32, "K")
    x = draw.blocks_of_activations(axes["T"], axes["K"], spikes=_LINEAR_SPIKES)
    weight = fp8_block_weight(draw, axes["N"], axes["K"])
    if draw.family == "spread_blocks":  # the largest channels set the scales and nothing else
        weight.codes[:, ::32] = 0
    return {"x": x, "weight": weight}


def _linear_fp4_grouped(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    _require_multiple(axes["K"], 32, "K")
    weight = fp4_weight(draw, axes["E"], axes["N"], axes["K"])
    x = draw.blocks_of_activations(axes["T"], axes["K"], spikes=_LINEAR_SPIKES)
    if draw.family == "spread_blocks":  # the largest channels set the scales and nothing else
        weight.codes[:, :, ::16] &= 0xF0
    return {
        "x": x,
        "weight": weight,
        "group_sizes": _group_sizes(draw, axes["T"], axes["E"]),
    }


def _group_sizes(draw: Draw, T: int, E: int) -> torch.Tensor:
    """T rows over E experts, uneven, one expert idle if there are two; "masked_rows": one busy."""
    sizes = torch.zeros(E, dtype=torch.int64)
    if draw.family == "masked_rows":
        sizes[E - 1] = T
        return sizes
    idle = int(draw.integers(0, E, 1)) if E > 1 else -1
    busy = torch.tensor([expert for expert in range(E) if expert != idle])
    chosen = busy[draw.integers(0, len(busy), T)]
    return torch.bincount(chosen, minlength=E)


def _linear_bf16(draw: Draw) -> dict[str, Any]:
    axes = draw.case.axes
    weight = draw.normal(axes["N"], axes["K"], scale=max(1, axes["K"]) ** -0.5)
    return {
        "x": draw.activations(axes["T"], axes["K"]),
        "weight": weight.to(torch.bfloat16),
    }


def _swiglu(draw: Draw) -> dict[str, Any]:
    T, I = draw.case.axes["T"], draw.case.axes["I"]  # noqa: E741 - the sheet's letter
    spikes = (10.0, 10.0625, -10.0, -10.0625, 88.0, -88.0, -104.0, _BF16_MAX, -_BF16_MAX)
    route_weight = draw.floats(T, spread=4).abs() if draw.scalars["route_weight"] else None
    # Scale 6: a tenth of the values lies beyond the limit of 10, so that clamps act.
    gate = draw.activations(T, I, spread=8, spikes=spikes, scale=6.0)
    # Rows of gates that all lie below -limit: only there does a clamp from below show.
    gate[1::4] = -(gate[1::4].abs().clamp(max=20.0) + draw.scalars["limit"])
    return {
        "gate": gate,
        "up": draw.activations(T, I, spread=8, spikes=spikes, scale=6.0),
        "route_weight": route_weight,
    }


def _require_multiple(length: int, of: int, name: str) -> None:
    if length % of:
        raise ValueError(f"{name}={length} must be a multiple of {of}")


BUILDERS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "rms_norm": _rms_norm,
    "rope": _rope,
    "quantise_fp8": _quantise_fp8,
    "dequantise_fp8": _dequantise_fp8,
    "quantise_fp4": _quantise_fp4,
    "dequantise_fp4": _dequantise_fp4,
    "linear_fp8": _linear_fp8,
    "linear_fp4_grouped": _linear_fp4_grouped,
    "linear_bf16": _linear_bf16,
    "swiglu": _swiglu,
}
