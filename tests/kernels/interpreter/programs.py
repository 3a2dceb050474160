"""Random NKI programs, built from a seed, for comparing two runtimes.

A program is a kernel over whatever `nl` and `nisa` it is given: a few tiles, a random sequence of
instructions whose operands are always valid, and a sum of what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ROWS", "WIDTH", "program_steps", "random_program"]

ROWS, WIDTH = 128, 64
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
_FUNCTIONS = ("copy", "square", "relu", "abs", "sign")
_KINDS = ("binary", "scalar", "fused", "function", "reduce", "matmul", "transpose", "cast", "slice")


def program_steps(seed: int, length: int = 24) -> list[tuple[Any, ...]]:
    """The instructions of program `seed` as plain data."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(length):
        kind = _KINDS[rng.integers(len(_KINDS))]
        first, second, target = (int(i) for i in rng.integers(0, 3, size=3))
        op = _BINARY[rng.integers(len(_BINARY))]
        function = _FUNCTIONS[rng.integers(len(_FUNCTIONS))]
        number = float(rng.integers(-4, 5)) / 2
        start = int(rng.integers(0, WIDTH // 2))
        steps.append((kind, first, second, target, op, function, number, start))
    return steps


def random_program(seed: int, nl: Any, nisa: Any) -> Callable[[Any], Any]:
    """The kernel of program `seed`: x [3, ROWS, WIDTH] fp32 -> [3, ROWS, WIDTH] fp32."""
    steps = program_steps(seed)

    def kernel(x: Any) -> Any:
        out = nl.ndarray((3, ROWS, WIDTH), dtype=nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for i in range(3):
            tile = nl.ndarray((ROWS, WIDTH), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i])
            tiles.append(tile)
        for step in steps:
            _issue(step, tiles, nl, nisa)
            # Keeps every value small, so that no step overflows.
            nisa.tensor_scalar(
                dst=tiles[step[3]],
                data=tiles[step[3]],
                op0=nl.minimum,
                operand0=64.0,
                op1=nl.maximum,
                operand1=-64.0,
            )
        for i in range(3):
            nisa.dma_copy(dst=out[i], src=tiles[i])
        return out

    return kernel


def _issue(step: tuple[Any, ...], tiles: list[Any], nl: Any, nisa: Any) -> None:
    kind, first, second, target, op, function, number, start = step
    a, b, dst = tiles[first], tiles[second], tiles[target]
    if kind == "binary":
        nisa.tensor_tensor(dst=dst, data1=a, data2=b, op=getattr(nl, op))
    elif kind == "scalar":
        nisa.tensor_scalar(dst=dst, data=a, op0=getattr(nl, op), operand0=number)
    elif kind == "fused":
        nisa.scalar_tensor_tensor(
            dst=dst, data=a, op0=nl.multiply, operand0=number, op1=getattr(nl, op), operand1=b
        )
    elif kind == "function":
        nisa.activation(dst=dst, op=getattr(nl, function), data=a, scale=0.5)
    elif kind == "reduce":
        column = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=column, op=nl.maximum, data=a, axis=1)
        nisa.tensor_scalar(dst=dst, data=b, op0=nl.add, operand0=column)
    elif kind == "matmul":
        psum = nl.ndarray((WIDTH, WIDTH), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=a, moving=b)
        nisa.tensor_scalar(dst=dst[0:WIDTH], data=psum, op0=nl.multiply, operand0=2.0**-7)
    elif kind == "transpose":
        psum = nl.ndarray((WIDTH, ROWS), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=psum, data=a)
        nisa.tensor_copy(dst=dst[0:WIDTH], src=psum[:, 0:WIDTH])
    elif kind == "cast":
        narrow = nl.ndarray((ROWS, WIDTH), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=narrow, src=a)
        nisa.tensor_copy(dst=dst, src=narrow)
    else:
        half = WIDTH // 2
        nisa.tensor_copy(dst=dst[:, start : start + half], src=a[:, 0:half])
