"""nc_matmul and nc_transpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import PROPERTY, run_instruction, same, tile_values


def _integers(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers: every sum below is exact in fp32, in whatever order."""
    import tests.kernels.interpreter.bench as bench

    values = np.random.default_rng(seed).integers(-8, 9, size=shape)
    return values.astype(np.float32).astype(bench.CARRIERS[dtype])


@PROPERTY
@given(
    dtype=st.sampled_from(["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"]),
    contraction=st.sampled_from([1, 7, 32, 96, 128]),
    rows=st.integers(1, 128),
    columns=st.integers(1, 512),
    seed=st.integers(0, 2**16),
)
def test_product_of_integers_is_exact(
    dtype: str, contraction: int, rows: int, columns: int, seed: int
) -> None:
    left = _integers(seed, (contraction, rows), dtype)
    right = _integers(seed + 1, (contraction, columns), dtype)
    got = run_instruction(
        lambda dst, a, b: nisa.nc_matmul(dst=dst, stationary=a, moving=b),
        [left, right],
        (rows, columns),
        "float32",
        buffer=nl.psum,
    )
    wide = left.astype(np.int64) if dtype == "float32" else left.astype(np.float32).astype(np.int64)
    expected = np.einsum("km,kn->mn", wide, right.astype(np.float32).astype(np.int64))
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("second", "factor"), [(None, 2), (True, 2), (False, 1)], ids=["none", "true", "false"]
)
def test_accumulate(second: bool | None, factor: int) -> None:
    left, right = _integers(1, (16, 8), "bfloat16"), _integers(2, (16, 24), "bfloat16")

    def issue(dst: Any, a: Any, b: Any) -> None:
        nisa.nc_matmul(dst=dst, stationary=a, moving=b)
        nisa.nc_matmul(dst=dst, stationary=a, moving=b, accumulate=second)

    got = run_instruction(issue, [left, right], (8, 24), "float32", buffer=nl.psum)
    assert np.array_equal(got, factor * (left.astype(np.float32).T @ right.astype(np.float32)))


def test_accumulate_none_overwrites_fresh_cells_and_adds_to_the_others() -> None:
    left, right = _integers(3, (16, 8), "bfloat16"), _integers(4, (16, 24), "bfloat16")

    def issue(dst: Any, a: Any, b: Any) -> None:
        nisa.nc_matmul(dst=dst[:, 0:10], stationary=a, moving=b[:, 0:10])
        nisa.nc_matmul(dst=dst, stationary=a, moving=b)

    got = run_instruction(issue, [left, right], (8, 24), "float32", buffer=nl.psum)
    product = left.astype(np.float32).T @ right.astype(np.float32)
    product[:, :10] *= 2
    assert np.array_equal(got, product)


def test_accumulate_true_adds_to_memset_zeros() -> None:
    left, right = _integers(5, (16, 8), "bfloat16"), _integers(6, (16, 24), "bfloat16")

    def issue(dst: Any, a: Any, b: Any) -> None:
        nisa.memset(dst=dst, value=1.0)
        nisa.nc_matmul(dst=dst, stationary=a, moving=b, accumulate=True)

    got = run_instruction(issue, [left, right], (8, 24), "float32", buffer=nl.psum)
    assert np.array_equal(got, left.astype(np.float32).T @ right.astype(np.float32) + 1)


def test_double_row_contracts_over_both_rows_of_a_partition() -> None:
    left = _integers(7, (128, 2, 16), "float8_e4m3")
    right = _integers(8, (128, 2, 32), "float8_e4m3")
    got = run_instruction(
        lambda dst, a, b: nisa.nc_matmul(
            dst=dst, stationary=a, moving=b, perf_mode=nisa.matmul_perf_mode.double_row
        ),
        [left, right],
        (16, 32),
        "float32",
        buffer=nl.psum,
    )
    expected = np.einsum("pjm,pjn->mn", left.astype(np.float32), right.astype(np.float32))
    assert np.array_equal(got, expected)


def test_a_rewritten_tile_is_multiplied_with_its_new_values() -> None:
    left, right = _integers(9, (16, 8), "bfloat16"), _integers(10, (16, 24), "bfloat16")

    def issue(dst: Any, a: Any, b: Any) -> None:
        nisa.nc_matmul(dst=dst, stationary=a, moving=b)
        nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)
        nisa.nc_matmul(dst=dst, stationary=a, moving=b, accumulate=True)

    got = run_instruction(issue, [left, right], (8, 24), "float32", buffer=nl.psum)
    assert np.array_equal(got, 3 * (left.astype(np.float32).T @ right.astype(np.float32)))


def test_strided_operands_and_a_three_dimensional_destination() -> None:
    left, right = _integers(11, (32, 2, 8), "bfloat16"), _integers(12, (32, 4, 6), "bfloat16")
    got = run_instruction(
        lambda dst, a, b: nisa.nc_matmul(
            dst=dst, stationary=a[:, 1, :], moving=b.permute((0, 2, 1))
        ),
        [left, right],
        (8, 6, 4),
        "float32",
        buffer=nl.psum,
    )
    wide = right.astype(np.float32).transpose(0, 2, 1).reshape(32, 24)
    expected = (left[:, 1].astype(np.float32).T @ wide).reshape(8, 6, 4)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (1, 128), (100, 3), (32, 32)])
def test_tensor_engine_transpose_keeps_bits(dtype: str, rows: int, columns: int) -> None:
    data = tile_values(13, (rows, columns), dtype)
    got = run_instruction(
        lambda dst, x: nisa.nc_transpose(dst=dst, data=x),
        [data],
        (columns, rows),
        dtype,
        buffer=nl.psum,
    )
    assert same(got, np.ascontiguousarray(data.T))


def test_vector_engine_transposes_32_by_32_in_sbuf() -> None:
    data = tile_values(14, (32, 20), "uint8")
    got = run_instruction(
        lambda dst, x: nisa.nc_transpose(dst=dst, data=x, engine=nisa.engine.vector),
        [data],
        (20, 32),
        "uint8",
    )
    assert np.array_equal(got, data.T)
