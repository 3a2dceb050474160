"""tensor_tensor and reciprocal against definitions in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import (
    FLOATS,
    INTEGERS,
    PROPERTY,
    nearest,
    run_instruction,
    same,
    tile_values,
)

# fp64 then one rounding to fp32: exact for +, - and * of fp32 numbers (53 >= 2 * 24 + 2).
DEFINITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, np.where(a > b, a, b)),
    "minimum": lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, np.where(a < b, a, b)),
    "equal": lambda a, b: (a == b) * 1.0,
    "not_equal": lambda a, b: (a != b) * 1.0,
    "less": lambda a, b: (a < b) * 1.0,
    "less_equal": lambda a, b: (a <= b) * 1.0,
    "greater": lambda a, b: (a > b) * 1.0,
    "greater_equal": lambda a, b: (a >= b) * 1.0,
    "logical_and": lambda a, b: ((a != 0) & (b != 0)) * 1.0,
    "logical_or": lambda a, b: ((a != 0) | (b != 0)) * 1.0,
    "logical_xor": lambda a, b: ((a != 0) != (b != 0)) * 1.0,
}
BITS: dict[str, Callable[[int, int], int]] = {
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "left_shift": lambda a, b: (a << b) & 0xFFFFFFFF if b < 32 else 0,
    "right_shift": lambda a, b: a >> b if b < 32 else 0,
}


@PROPERTY
@given(
    name=st.sampled_from(sorted(DEFINITIONS)),
    left=st.sampled_from(FLOATS),
    right=st.sampled_from(FLOATS),
    target=st.sampled_from(FLOATS),
    partitions=st.sampled_from([1, 31, 64, 128]),
    free=st.integers(1, 33),
    seed=st.integers(0, 2**16),
)
def test_tensor_tensor_computes_in_fp32_and_rounds_once(
    name: str, left: str, right: str, target: str, partitions: int, free: int, seed: int
) -> None:
    a = tile_values(seed, (partitions, free), left)
    b = tile_values(seed + 1, (partitions, free), right)
    got = run_instruction(
        lambda dst, x, y: nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=getattr(nl, name)),
        [a, b],
        (partitions, free),
        target,
    )
    with np.errstate(all="ignore"):
        result = DEFINITIONS[name](a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
        expected = nearest(result, target)
    if name in ("maximum", "minimum"):  # which of +0 and -0 is larger is not defined
        got, expected = got + np.float32(0).astype(got.dtype), expected + got.dtype.type(0)
    assert same(got, expected)


@PROPERTY
@given(
    name=st.sampled_from(sorted(BITS)),
    dtype=st.sampled_from(["uint8", "uint16", "uint32", "int32"]),
    free=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
def test_tensor_tensor_bit_operations_on_python_ints(
    name: str, dtype: str, free: int, seed: int
) -> None:
    a = tile_values(seed, (4, free), dtype)
    b = tile_values(seed + 1, (4, free), dtype)
    if name.endswith("shift"):
        b = (np.abs(b.astype(np.int64)) % 34).astype(b.dtype)
    got = run_instruction(
        lambda dst, x, y: nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=getattr(nl, name)),
        [a, b],
        (4, free),
        dtype,
    )
    width = 8 * a.dtype.itemsize
    for x, y, z in zip(a.flat, b.flat, got.flat, strict=True):
        wide = BITS[name](int(x) & 0xFFFFFFFF, int(y) & 0xFFFFFFFF)
        assert int(z) & (2**width - 1) == wide & (2**width - 1)


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_all_integer_operands_are_exact_on_gpsimd_beyond_2_to_24(dtype: str) -> None:
    a = np.array([[2**30 + 1, 2**24 + 1, 7]], dtype)
    b = np.array([[1, 2**24, 9]], dtype)
    got = run_instruction(
        lambda dst, x, y: nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=nl.add),
        [a, b],
        (1, 3),
        dtype,
    )
    assert got.tolist() == [[2**30 + 2, 2**25 + 1, 16]]


def test_integers_on_the_vector_engine_go_through_fp32() -> None:
    a = np.array([[2**24 + 1]], np.int32)
    b = np.array([[0]], np.int32)
    got = run_instruction(
        lambda dst, x, y: nisa.tensor_tensor(
            dst=dst, data1=x, data2=y, op=nl.add, engine=nisa.engine.vector
        ),
        [a, b],
        (1, 1),
        "int32",
    )
    assert got.tolist() == [[2**24]]


@PROPERTY
@given(
    left=st.sampled_from(INTEGERS),
    right=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**16),
)
def test_mixed_integer_and_float_operands(left: str, right: str, seed: int) -> None:
    a = tile_values(seed, (8, 9), left)
    b = tile_values(seed, (8, 9), right)
    got = run_instruction(
        lambda dst, x, y: nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=nl.multiply),
        [a, b],
        (8, 9),
        "float32",
    )
    with np.errstate(all="ignore"):
        expected = a.astype(np.float32).astype(np.float64) * b.astype(np.float64)
        assert same(got, expected.astype(np.float32))


def test_shapes_may_differ_when_the_free_sizes_agree() -> None:
    a = tile_values(1, (16, 12), "float32", special=False)
    b = tile_values(2, (16, 3, 4), "float32", special=False)
    got = run_instruction(
        lambda dst, x, y: nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=nl.add),
        [a, b],
        (16, 2, 6),
        "float32",
    )
    assert same(got, (a + b.reshape(16, 12)).reshape(16, 2, 6))


def test_a_destination_that_is_also_a_source_is_read_before_it_is_written() -> None:
    a = tile_values(3, (8, 10), "float32", special=False)

    def issue(dst: Any, x: Any) -> None:
        # Overlapping, shifted by one element.
        nisa.tensor_tensor(dst=x[:, 1:10], data1=x[:, 0:9], data2=x[:, 0:9], op=nl.add)
        nisa.tensor_copy(dst=dst, src=x)

    expected = a.copy()
    expected[:, 1:] = 2 * a[:, :-1]
    assert same(run_instruction(issue, [a], (8, 10), "float32"), expected)


@PROPERTY
@given(source=st.sampled_from(FLOATS), target=st.sampled_from(FLOATS), seed=st.integers(0, 2**16))
def test_reciprocal(source: str, target: str, seed: int) -> None:
    a = tile_values(seed, (32, 17), source)
    got = run_instruction(lambda dst, x: nisa.reciprocal(dst=dst, data=x), [a], (32, 17), target)
    with np.errstate(all="ignore"):
        expected = nearest((1.0 / a.astype(np.float64)).astype(np.float32), target)
    assert same(got, expected)


def test_zero_size_tiles_do_nothing() -> None:
    a = np.empty((4, 0), np.float32)
    got = run_instruction(
        lambda dst, x: nisa.tensor_tensor(dst=dst, data1=x, data2=x, op=nl.add),
        [a],
        (4, 0),
        "float32",
    )
    assert got.shape == (4, 0)
