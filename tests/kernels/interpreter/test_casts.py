"""Conversions between dtypes: to nearest even, integers saturate, NaN becomes 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
from tests.kernels.interpreter.bench import (
    CARRIERS,
    PROPERTY,
    nearest,
    run_instruction,
    same,
    tile_values,
)


def _copied(values: np.ndarray, name: str) -> np.ndarray:
    return run_instruction(
        lambda dst, src: nisa.tensor_copy(dst=dst, src=src), [values], values.shape, name
    )


@PROPERTY
@given(
    source=st.sampled_from(sorted(CARRIERS)),
    target=st.sampled_from(sorted(CARRIERS)),
    partitions=st.sampled_from([1, 5, 32, 128]),
    free=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_copy_converts_through_fp32_to_the_nearest_member(
    source: str, target: str, partitions: int, free: int, seed: int
) -> None:
    values = tile_values(seed, (partitions, free), source)
    with np.errstate(all="ignore"):
        expected = values if source == target else nearest(values.astype(np.float32), target)
    assert same(_copied(values, target), expected)


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2", "bfloat16", "float16"])
def test_every_member_and_every_midpoint_of_a_float_format(name: str) -> None:
    carrier = np.dtype(CARRIERS[name])
    bits = np.uint8 if carrier.itemsize == 1 else np.uint16
    members = np.arange(2 ** (8 * carrier.itemsize)).astype(bits).view(carrier)
    with np.errstate(all="ignore"):
        wide = members.astype(np.float64)
    finite = np.unique(wide[np.isfinite(wide)])
    middles = (finite[:-1] + finite[1:]) / 2
    inputs = np.concatenate([finite, middles]).astype(np.float32)
    inputs = inputs[: len(inputs) // 32 * 32].reshape(32, -1)
    with np.errstate(all="ignore"):
        expected = nearest(inputs, name)
    assert same(_copied(inputs, name), expected)


def test_integers_saturate_and_round_to_even() -> None:
    values = np.array([[0.5, 1.5, 2.5, -0.5, 300.0, -300.0, 1e12, np.nan]], np.float32)
    assert _copied(values, "int8").tolist() == [[0, 2, 2, 0, 127, -128, 127, 0]]
    assert _copied(values, "uint8").tolist() == [[0, 2, 2, 0, 255, 0, 255, 0]]
    assert _copied(values, "int32")[0, 6] == 2**31 - 1


def test_equal_dtypes_keep_every_bit_of_a_nan() -> None:
    values = np.array([[0x7F800001, 0xFFC12345]], np.uint32).view(np.float32)
    assert _copied(values, "float32").view(np.uint32).tolist() == [[0x7F800001, 0xFFC12345]]


def test_e4m3_overflows_above_240_to_infinity() -> None:
    values = np.array([[240.0, 247.9, 248.0, -1000.0]], np.float32)
    got = _copied(values, "float8_e4m3").astype(np.float32)
    assert got.tolist() == [[240.0, 240.0, np.inf, -np.inf]]
