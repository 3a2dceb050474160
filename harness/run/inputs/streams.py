"""Inputs of the residual streams, the compressor, Engram and the output projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.run.inputs.codes import fp8_block_weight, fp8_row_table
from harness.run.inputs.draw import Draw

__all__ = ["BUILDERS"]


def _axes(draw: Draw, letters: str) -> tuple[int, ...]:
    return tuple(draw.case.axes[letter] for letter in letters.split())


def _compress_pool(draw: Draw) -> dict[str, Any]:
    T, D = _axes(draw, "T D")
    if T % draw.scalars["ratio"]:
        raise ValueError(f"T={T} must hold whole groups of {draw.scalars['ratio']}")
    return {
        "kv": draw.floats(T, D),
        "gate": draw.floats(T, D, spread=6, spikes=(80.0, -80.0, 300.0, -300.0)),
    }


def _hc_mixes(draw: Draw) -> dict[str, Any]:
    T, m, d = _axes(draw, "T m d")
    return {
        "streams": draw.activations(T, m, d),
        # z is normalised, so that 1/sqrt(d) here gives logits of order one and tests the
        # Sinkhorn steps harder than a trained 0.01 would.
        "fn": draw.normal((2 + m) * m, m * d, scale=max(1, m * d) ** -0.5),
        "base": draw.normal((2 + m) * m, scale=0.5),
        "scale": 1 + draw.normal(3, scale=0.2),
    }


def _coefficients(draw: Draw, T: int, m: int) -> torch.Tensor:
    """Gates in (0, 2), as mHC makes them; never zeroed by a family."""
    return 2 * torch.sigmoid(draw.normal(T, m))


def _hc_collapse(draw: Draw) -> dict[str, Any]:
    T, m, d = _axes(draw, "T m d")
    return {"streams": draw.activations(T, m, d), "pre": _coefficients(draw, T, m)}


def _hc_expand(draw: Draw) -> dict[str, Any]:
    T, m, d = _axes(draw, "T m d")
    return {
        "y": draw.activations(T, d),
        "streams": draw.activations(T, m, d),
        "post": _coefficients(draw, T, m),
        "comb": torch.softmax(draw.normal(T, m, m), dim=-1),
    }


def _engram_lookup(draw: Draw) -> dict[str, Any]:
    T, F, W, rows = _axes(draw, "T F W rows")
    if W % 32:
        raise ValueError(f"W={W} must be a multiple of 32")
    row_ids = draw.integers(0, rows, T, F)
    if T and F:
        row_ids[0, 0], row_ids[-1, -1] = 0, rows - 1
    return {"table": fp8_row_table(draw, rows, W), "row_ids": row_ids}


def _engram_gate(draw: Draw) -> dict[str, Any]:
    T, m, d = _axes(draw, "T m d")
    weights = [(1 + draw.normal(m, d, scale=0.1)).to(torch.bfloat16) for _ in range(2)]
    if draw.family == "midpoints":
        return _gates_at_the_floor(draw) | {"q_weight": weights[0], "k_weight": weights[1]}
    return {
        "streams": draw.activations(T, m, d),
        "key": draw.activations(T, m, d),
        "value": draw.activations(T, d),
        "q_weight": weights[0],
        "k_weight": weights[1],
    }


def _gates_at_the_floor(draw: Draw) -> dict[str, torch.Tensor]:
    """Keys so small that only the floor under |dot| moves a gate off 1/2, and streams that put
    value / 2 + stream in the middle of two bf16 numbers: without the floor every second rounds
    the other way. The dot is positive in even rows, negative in odd ones."""
    T, m, d = _axes(draw, "T m d")
    sign = torch.where(draw.integers(0, 2, T, 1, d) == 0, 1.0, -1.0)
    scale = torch.exp2(draw.integers(-8, 9, T, 1, 1).float())
    # Of value / 2 = (1 + step / 128) * scale; an even step rounds down from the middle.
    step = 126.0 - (torch.arange(T) % 2).view(T, 1, 1)
    half_ulp = (sign * scale * 2.0**-8).expand(T, m, d)
    row_sign = torch.where(torch.arange(T) % 2 == 0, 1.0, -1.0).view(T, 1, 1)
    parts = {
        "streams": half_ulp,
        "key": (sign * row_sign * 2.0**-100).expand(T, m, d),
        "value": (2 * sign * scale * (1 + step / 128)).squeeze(1),
    }
    return {name: part.to(torch.bfloat16).contiguous() for name, part in parts.items()}


def _output_projection(draw: Draw) -> dict[str, Any]:
    T, H, D, G, L = _axes(draw, "T H D G L")
    if H * D % G or (H * D // G) % 32:
        raise ValueError(f"H*D={H * D} must split into G={G} groups of whole 32-wide tiles")
    return {
        "o": draw.activations(T, H, D),
        "weight": fp8_block_weight(draw, G * L, H * D // G),
    }


BUILDERS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "compress_pool": _compress_pool,
    "hc_mixes": _hc_mixes,
    "hc_collapse": _hc_collapse,
    "hc_expand": _hc_expand,
    "engram_lookup": _engram_lookup,
    "engram_gate": _engram_gate,
    "output_projection": _output_projection,
}
