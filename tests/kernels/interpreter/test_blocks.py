"""Tiles larger than a block of work give what one pass over them gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import nearest, run_instruction, same, tile_values

_SHAPE = (128, 5, 120)  # 76,800 elements: several blocks of 32,768, the last one shorter


def _scale(dst: Any, x: Any, y: Any, c: Any) -> None:
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=c, op1=nl.add, operand1=c)


def _combine(dst: Any, x: Any, y: Any, c: Any) -> None:
    nisa.scalar_tensor_tensor(
        dst=dst, data=x, op0=nl.multiply, operand0=c, op1=nl.subtract, operand1=y
    )


def _multiply(dst: Any, x: Any, y: Any, c: Any) -> None:
    nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=nl.multiply)


def _square(dst: Any, x: Any, y: Any, c: Any) -> None:
    nisa.activation(dst=dst, op=nl.square, data=x, bias=c, scale=2.0)


_CASES = {
    "tensor_scalar": (_scale, lambda x, y, c: x * c + c),
    "scalar_tensor_tensor": (_combine, lambda x, y, c: x * c - y),
    "tensor_tensor": (_multiply, lambda x, y, c: x * y),
    "activation": (_square, lambda x, y, c: (x * np.float32(2) + c) ** 2),
    "tensor_copy": (lambda dst, x, y, c: nisa.tensor_copy(dst=dst, src=x), lambda x, y, c: x),
}


@pytest.mark.parametrize("name", sorted(_CASES))
@pytest.mark.parametrize("source", ["bfloat16", "float8_e4m3", "uint8"])
@pytest.mark.parametrize("target", ["bfloat16", "float32"])
def test_large_tiles(name: str, source: str, target: str) -> None:
    issue, definition = _CASES[name]
    x = tile_values(1, _SHAPE, source)
    y = tile_values(2, _SHAPE, "bfloat16")
    c = tile_values(3, (128, 1), "float32", special=False)
    got = run_instruction(issue, [x, y, c], _SHAPE, target)
    with np.errstate(all="ignore"):
        values = definition(x.astype(np.float32), y.astype(np.float32), c[:, :, None])
        expected = nearest(values, target)
    if name == "tensor_copy" and source == target:
        expected = x
    assert same(got, expected)


def test_row_sums_of_a_large_activation_cover_every_partition() -> None:
    x = np.random.default_rng(4).integers(0, 5, _SHAPE).astype(np.float32)

    def issue(dst: Any, tile: Any) -> None:
        scrap = nl.ndarray(_SHAPE, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.activation_reduce(dst=scrap, op=nl.copy, data=tile, reduce_op=nl.add, reduce_res=dst)

    got = run_instruction(issue, [x], (128, 1), "float32")
    assert np.array_equal(got[:, 0], x.sum(axis=(1, 2)))


def test_large_fp8_tiles_of_an_odd_width_decode_one_byte_a_lookup() -> None:
    x = tile_values(5, (128, 301), "float8_e5m2")
    got = run_instruction(
        lambda dst, t: nisa.tensor_copy(dst=dst, src=t), [x], (128, 301), "float32"
    )
    assert same(got, x.astype(np.float32))


@pytest.mark.parametrize("source", ["bfloat16", "float8_e4m3", "uint8"])
@pytest.mark.parametrize("columns", [5, 300])
def test_repeated_operands_of_narrow_dtypes(source: str, columns: int) -> None:
    x = tile_values(6, (128, columns, 4), "bfloat16")
    scale = tile_values(7, (128, columns), source)

    def issue(dst: Any, data: Any, factors: Any) -> None:
        repeated = factors.expand_dim(2).broadcast(2, 4)
        nisa.tensor_tensor(dst=dst, data1=data, data2=repeated, op=nl.multiply)

    got = run_instruction(issue, [x, scale], (128, columns, 4), "float32")
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32) * scale.astype(np.float32)[:, :, None]
    assert same(got, expected)
