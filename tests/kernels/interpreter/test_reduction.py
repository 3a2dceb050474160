"""tensor_reduce and tensor_partition_reduce."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import PROPERTY, nearest, run_instruction, same, tile_values

_OPS = {"add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod}


def _small(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, size=shape).astype(np.float32)


@PROPERTY
@given(
    op=st.sampled_from(sorted(_OPS)),
    extents=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    num_axes=st.integers(1, 4),
    negate=st.booleans(),
    target=st.sampled_from(["float32", "bfloat16", "int32"]),
    seed=st.integers(0, 2**16),
)
def test_trailing_axes_are_reduced(
    op: str, extents: list[int], num_axes: int, negate: bool, target: str, seed: int
) -> None:
    data = _small(seed, (32, *extents))
    count = min(num_axes, len(extents))
    axes = tuple(range(1 + len(extents) - count, 1 + len(extents)))
    kept = (32, *extents[: len(extents) - count])
    shape = kept if len(kept) > 1 else (32, 1)
    got = run_instruction(
        lambda dst, x: nisa.tensor_reduce(
            dst=dst, op=getattr(nl, op), data=x, axis=axes, negate=negate
        ),
        [data],
        shape,
        target,
    )
    expected = _OPS[op](data.astype(np.float64), axis=axes).reshape(shape)
    assert (got == nearest(-expected if negate else expected, target)).all()


def test_columns_are_reduced_through_a_permuted_view() -> None:
    data = _small(3, (8, 4, 6))
    got = run_instruction(
        lambda dst, x: nisa.tensor_reduce(dst=dst, op=nl.add, data=x.permute((0, 2, 1)), axis=2),
        [data],
        (8, 6),
        "float32",
    )
    assert np.array_equal(got, data.sum(axis=1))


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_special_values_reach_the_sum(special: float) -> None:
    data = np.ones((2, 5), np.float32)
    data[1, 3] = special
    got = run_instruction(
        lambda dst, x: nisa.tensor_reduce(dst=dst, op=nl.add, data=x, axis=1),
        [data],
        (2, 1),
        "float32",
    )
    assert got[0, 0] == 5
    assert np.isnan(got[1, 0]) if np.isnan(special) else got[1, 0] == np.inf


def test_bitwise_reduction() -> None:
    data = tile_values(5, (4, 9), "uint16")
    got = run_instruction(
        lambda dst, x: nisa.tensor_reduce(dst=dst, op=nl.bitwise_xor, data=x, axis=1),
        [data],
        (4, 1),
        "uint16",
    )
    for row, value in zip(data, got[:, 0], strict=True):
        folded = 0
        for item in row:
            folded ^= int(item)
        assert folded == int(value)


@pytest.mark.parametrize("op", ["add", "maximum"])
def test_partition_reduce(op: str) -> None:
    data = _small(6, (77, 3, 4))
    got = run_instruction(
        lambda dst, x: nisa.tensor_partition_reduce(dst=dst, op=getattr(nl, op), data=x),
        [data],
        (1, 12),
        "float32",
    )
    assert same(got, _OPS[op](data, axis=0).reshape(1, 12).astype(np.float32))


def test_partition_reduce_of_bits() -> None:
    data = tile_values(8, (20, 6), "uint8")

    def issue(dst: Any, x: Any) -> None:
        nisa.tensor_partition_reduce(dst=dst, op=nl.bitwise_or, data=x)

    got = run_instruction(issue, [data], (1, 6), "uint8")
    for column in range(6):
        folded = 0
        for item in data[:, column]:
            folded |= int(item)
        assert folded == int(got[0, column])
