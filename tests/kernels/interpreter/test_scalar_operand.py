"""tensor_scalar and scalar_tensor_tensor: two stages, each rounded to fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import (
    FLOATS,
    PROPERTY,
    nearest,
    run_instruction,
    same,
    tile_values,
)
from tests.kernels.interpreter.test_elementwise import DEFINITIONS

_ORDERED = [name for name in sorted(DEFINITIONS) if name not in ("maximum", "minimum")]


def _stage(name: str, a: Any, b: Any, reverse: bool) -> Any:
    left, right = (b, a) if reverse else (a, b)
    return DEFINITIONS[name](np.asarray(left, np.float64), np.asarray(right, np.float64)).astype(
        np.float32
    )


@PROPERTY
@given(
    op0=st.sampled_from(_ORDERED),
    op1=st.sampled_from(_ORDERED),
    reverse0=st.booleans(),
    reverse1=st.booleans(),
    tile0=st.booleans(),
    tile1=st.booleans(),
    source=st.sampled_from(FLOATS),
    target=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**16),
)
def test_tensor_scalar_two_stages(
    op0: str,
    op1: str,
    reverse0: bool,
    reverse1: bool,
    tile0: bool,
    tile1: bool,
    source: str,
    target: str,
    seed: int,
) -> None:
    data = tile_values(seed, (64, 11), source)
    columns = tile_values(seed + 1, (64, 2), "float32")
    number0, number1 = 1.5, -0.3

    def issue(dst: Any, x: Any, c: Any) -> None:
        nisa.tensor_scalar(
            dst=dst,
            data=x,
            op0=getattr(nl, op0),
            operand0=c[:, 0:1] if tile0 else number0,
            reverse0=reverse0,
            op1=getattr(nl, op1),
            operand1=c[:, 1:2] if tile1 else number1,
            reverse1=reverse1,
        )

    got = run_instruction(issue, [data, columns], (64, 11), target)
    with np.errstate(all="ignore"):
        first = _stage(op0, data, columns[:, 0:1] if tile0 else np.float32(number0), reverse0)
        second = _stage(op1, first, columns[:, 1:2] if tile1 else np.float32(number1), reverse1)
        expected = nearest(second, target)
    assert same(got, expected)


@PROPERTY
@given(
    op0=st.sampled_from(_ORDERED),
    op1=st.sampled_from(_ORDERED),
    reverse0=st.booleans(),
    reverse1=st.booleans(),
    target=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**16),
)
def test_scalar_tensor_tensor(
    op0: str, op1: str, reverse0: bool, reverse1: bool, target: str, seed: int
) -> None:
    data = tile_values(seed, (32, 3, 5), "bfloat16")
    tile = tile_values(seed + 1, (32, 15), "float32")
    column = tile_values(seed + 2, (32, 1), "float32")

    def issue(dst: Any, x: Any, t: Any, c: Any) -> None:
        nisa.scalar_tensor_tensor(
            dst=dst,
            data=x,
            op0=getattr(nl, op0),
            operand0=c,
            op1=getattr(nl, op1),
            operand1=t,
            reverse0=reverse0,
            reverse1=reverse1,
        )

    got = run_instruction(issue, [data, tile, column], (32, 15), target)
    with np.errstate(all="ignore"):
        first = _stage(op0, data.reshape(32, 15), column, reverse0)
        expected = nearest(_stage(op1, first, tile, reverse1), target)
    assert same(got, expected)


def test_in_place_with_the_operand_tile_taken_from_the_destination() -> None:
    data = tile_values(5, (8, 4), "float32", special=False)

    def issue(dst: Any, x: Any) -> None:
        nisa.tensor_copy(dst=dst, src=x)
        # operand1 is a column of dst itself: its old value counts.
        nisa.tensor_scalar(
            dst=dst,
            data=dst,
            op0=nl.multiply,
            operand0=2.0,
            op1=nl.add,
            operand1=dst[:, 0:1],
        )

    got = run_instruction(issue, [data], (8, 4), "float32")
    assert same(got, 2 * data + data[:, 0:1])


@pytest.mark.parametrize("engine", ["vector", "gpsimd", "scalar"])
def test_engines_that_compute_the_same(engine: str) -> None:
    data = tile_values(6, (8, 4), "float32", special=False)
    got = run_instruction(
        lambda dst, x: nisa.tensor_scalar(
            dst=dst,
            data=x,
            op0=nl.multiply,
            operand0=3.0,
            engine=getattr(nisa.engine, engine),
        ),
        [data],
        (8, 4),
        "float32",
    )
    assert same(got, data * np.float32(3))


def test_ue8m0_exponents_become_powers_of_two_by_a_shift() -> None:
    exponents = np.arange(255, dtype=np.uint8).reshape(1, 255)

    def issue(dst: Any, x: Any) -> None:
        wide = nl.ndarray((1, 255), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=wide, src=x)
        nisa.tensor_scalar(dst=wide, data=wide, op0=nl.left_shift, operand0=23)
        nisa.tensor_copy(dst=dst, src=wide.view(nl.float32))

    got = run_instruction(issue, [exponents], (1, 255), "float32")
    assert got[0, 0] == 0.0
    assert np.array_equal(got[0, 1:], 2.0 ** np.arange(-126.0, 128.0))


def test_fp4_codes_unpack_and_decode_exactly() -> None:
    packed = np.arange(256, dtype=np.uint8).reshape(2, 128)

    def issue(dst: Any, x: Any) -> None:
        codes = nl.ndarray((2, 128, 2), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=codes[:, :, 0], data=x, op0=nl.bitwise_and, operand0=15)
        nisa.tensor_scalar(dst=codes[:, :, 1], data=x, op0=nl.right_shift, operand0=4)
        nisa.tensor_copy(dst=dst, src=codes.reshape((2, 256)))

    got = run_instruction(issue, [packed], (2, 256), "uint8")
    assert np.array_equal(got.reshape(-1)[0::2], np.arange(256) & 15)
    assert np.array_equal(got.reshape(-1)[1::2], np.arange(256) >> 4)


def test_gpsimd_rsqrt_is_correctly_rounded_to_two_ulps() -> None:
    data = np.abs(tile_values(7, (32, 50), "float32", special=False)) + np.float32(1e-3)
    got = run_instruction(
        lambda dst, x: nisa.tensor_scalar(dst=dst, data=x, op0=nl.rsqrt, operand0=0.0),
        [data],
        (32, 50),
        "float32",
    )
    exact = 1.0 / np.sqrt(data.astype(np.float64))
    assert np.max(np.abs(got - exact) / np.spacing(exact.astype(np.float32))) <= 2.0
