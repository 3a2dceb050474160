"""What the interpreter costs: per instruction over bare NumPy, and a GEMM over plain NumPy."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from harness.cli.benchmarks.measurement import Figure, paired_seconds, source_hash
from kernels.launch import nisa, nki, nl

__all__ = ["gemm_figures", "overhead_figures"]

_TILE = (128, 16)
_INSTRUCTIONS = 2000
_GEMM_MKN = (16, 4096, 2048)


@nki.jit
def _many_multiplies(x_hbm: Any, count: int) -> Any:
    """y = 1.5 x, computed `count` times over."""
    y_hbm = nl.ndarray(_TILE, dtype=nl.float32, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(_TILE, dtype=nl.float32, buffer=nl.sbuf)
    y_sb = nl.ndarray(_TILE, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x_hbm)
    for _ in range(count):
        nisa.tensor_scalar(dst=y_sb, data=x_sb, op0=nl.multiply, operand0=1.5)
    nisa.dma_copy(dst=y_hbm, src=y_sb)
    return y_hbm


def _bare_multiplies(x: np.ndarray, y: np.ndarray, count: int) -> None:
    factor = np.float32(1.5)
    for _ in range(count):
        np.multiply(x, factor, out=y)


def overhead_figures() -> list[Figure]:
    """Overhead over bare NumPy of one tensor_scalar on a [128, 16] tile."""
    x = np.ones(_TILE, np.float32)
    y = np.empty_like(x)
    bare_us = _per_instruction_us(lambda count: _bare_multiplies(x, y, count))
    first_us = _first_call_us(x)
    repeated_us = _per_instruction_us(lambda count: _many_multiplies(x, count))
    baseline = f"numpy.multiply, {source_hash(_bare_multiplies)}"
    return [
        Figure("bare numpy, one multiply on [128,16]", bare_us, "us"),
        _overhead("interpreter overhead, first call", first_us - bare_us, 40.0, baseline),
        _overhead("interpreter overhead, repeated", repeated_us - bare_us, 15.0, baseline),
    ]


def _overhead(name: str, value_us: float, goal_us: float, baseline: str) -> Figure:
    return Figure(name, value_us, "us", f"<= {goal_us:g} us", value_us <= goal_us, baseline)


def _per_instruction_us(run: Any) -> float:
    run(_INSTRUCTIONS)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        run(_INSTRUCTIONS)
        times.append((time.perf_counter() - start) / _INSTRUCTIONS * 1e6)
    return statistics.median(times)


def _first_call_us(x: np.ndarray) -> float:
    """The same instruction the first time a kernel of this shape runs, launch cost taken off."""
    start = time.perf_counter()
    _many_multiplies(x, _INSTRUCTIONS + 1)
    whole = time.perf_counter() - start
    start = time.perf_counter()
    _many_multiplies(x, 1)
    return (whole - (time.perf_counter() - start)) / _INSTRUCTIONS * 1e6


def gemm_figures() -> list[Figure]:
    """The block-scaled fp8 GEMM kernel against plain NumPy with a 256-entry table."""
    import torch

    from harness.core.numerics import FAST, Numerics
    from harness.core.weights import QuantisedWeight
    from kernels.linear_fp8_nki import linear_fp8

    m, k, n = _GEMM_MKN
    numerics = Numerics("fast", FAST.activation, FAST.accumulate, quantise=True, fp8_max=240)
    rng = np.random.Generator(np.random.PCG64(20261130))
    codes = rng.integers(0, 0x70, (n, k)).astype(np.uint8)
    scale = rng.integers(118, 124, (n // 32, k // 32)).astype(np.uint8)
    weight = QuantisedWeight(torch.from_numpy(codes), torch.from_numpy(scale), "fp8_block")
    x = torch.from_numpy(rng.standard_normal((m, k)).astype(np.float32)).to(torch.bfloat16)
    plain = _PlainGemm(x.float().numpy(), codes, scale)
    linear_fp8(x, weight, "activation", numerics=numerics)  # lays the weight out, once
    ours, theirs, ratio = paired_seconds(
        lambda: linear_fp8(x, weight, "activation", numerics=numerics), plain.run, pairs=7
    )
    return [
        Figure("fp8 GEMM 16x4096x2048, interpreter", ours * 1e3, "ms"),
        Figure("fp8 GEMM 16x4096x2048, plain numpy", theirs * 1e3, "ms"),
        Figure(
            "fp8 GEMM, interpreter over numpy",
            ratio,
            "x",
            "<= 1.3 x",
            ratio <= 1.3,
            f"table decode, out= buffers, {source_hash(_PlainGemm)}",
        ),
    ]


class _PlainGemm:
    """Dequantise by table, scale by block, multiply; buffers reused, no weight kept decoded."""

    def __init__(self, x: np.ndarray, codes: np.ndarray, scale: np.ndarray) -> None:
        import ml_dtypes

        self.table = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        self.x, self.codes, self.scale = x, codes, scale
        self.weight = np.empty(codes.shape, np.float32)
        self.quantised = np.empty_like(x)
        self.y = np.empty((x.shape[0], codes.shape[0]), np.float32)

    def run(self) -> np.ndarray:
        import ml_dtypes

        rows, columns = self.codes.shape
        groups = self.x.reshape(self.x.shape[0], columns // 32, 32)
        amax = np.maximum(np.abs(groups).max(-1, keepdims=True), np.float32(1e-4))
        bits = (amax * np.float32(1 / 240)).view(np.uint32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).astype(np.uint32)
        step = (exponent << 23).view(np.float32)
        grid = (groups / step).astype(ml_dtypes.float8_e4m3).astype(np.float32) * step
        self.quantised[:] = grid.reshape(self.x.shape)
        np.take(self.table, self.codes, out=self.weight, mode="clip")
        factors = np.ldexp(np.float32(1), self.scale.astype(np.int32) - 127)
        blocks = self.weight.reshape(rows // 32, 32, columns // 32, 32)
        np.multiply(blocks, factors[:, None, :, None], out=blocks)
        np.matmul(self.quantised, self.weight.T, out=self.y)
        return self.y.astype(ml_dtypes.bfloat16)
