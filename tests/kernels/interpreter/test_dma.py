"""dma_copy, dma_transpose and dma_compute, with and without run-time indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from tests.kernels.interpreter.bench import CARRIERS, PROPERTY, nearest, same, tile_values


def _through_sbuf(source: Any, tile_shape: tuple[int, ...], issue_out: Any) -> Any:
    tile = nl.ndarray(tile_shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return issue_out(tile)


@PROPERTY
@given(
    source=st.sampled_from(sorted(CARRIERS)),
    target=st.sampled_from(sorted(CARRIERS)),
    seed=st.integers(0, 2**16),
)
def test_copy_flattens_in_c_order_and_converts(source: str, target: str, seed: int) -> None:
    values = tile_values(seed, (6, 20), source)

    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((4, 5, 6), dtype=target, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        out = nl.ndarray((120,), dtype=target, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    with np.errstate(all="ignore"):
        expected = values if source == target else nearest(values.astype(np.float32), target)
    assert same(kernel(values), expected.reshape(-1))


def test_stride_zero_replicates_a_row_to_every_partition() -> None:
    row = tile_values(1, (40,), "bfloat16")

    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((128, 40), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.ap(pattern=[[0, 128], [1, 40]]))
        out = nl.ndarray((128, 40), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert same(kernel(row), np.repeat(row[None], 128, axis=0))


@nki.jit
def _gather(table: Any, index: Any, start: Any, mode: Any) -> Any:
    rows, width = index.shape[0], table.shape[1]
    idx = nl.ndarray((rows, 1), dtype=index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=idx, src=index)
    tile = nl.ndarray((rows, width), dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=start)
    source = table.ap(pattern=[[width, rows], [1, width]], vector_offset=idx, indirect_dim=0)
    nisa.dma_copy(dst=tile, src=source, oob_mode=mode)
    out = nl.ndarray((rows, width), dtype=table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@PROPERTY
@given(
    rows=st.integers(1, 128),
    table_rows=st.integers(1, 50),
    index_dtype=st.sampled_from(["int32", "uint32"]),
    seed=st.integers(0, 2**16),
)
def test_gather_and_skip_of_rows_out_of_bounds(
    rows: int, table_rows: int, index_dtype: str, seed: int
) -> None:
    table = tile_values(seed, (table_rows, 6), "bfloat16")
    start = tile_values(seed + 1, (rows, 6), "bfloat16")
    index = np.random.default_rng(seed).integers(0, table_rows + 3, size=(rows, 1))
    index = index.astype(index_dtype)
    expected = start.copy()
    for i, wanted in enumerate(index[:, 0]):
        if wanted < table_rows:
            expected[i] = table[wanted]
    assert same(_gather(table, index, start, nisa.oob_mode.skip), expected)


def test_gather_of_an_index_out_of_bounds_is_refused_by_default() -> None:
    table, start = np.zeros((4, 6), np.float32), np.zeros((3, 6), np.float32)
    index = np.array([[0], [4], [1]], np.uint32)
    with pytest.raises(NkiValidationError, match=r"src is index 4 in row 1: 0\.\.3"):
        _gather(table, index, start, nisa.oob_mode.error)


def test_a_negative_index_is_out_of_bounds() -> None:
    table, start = np.zeros((4, 6), np.float32), np.ones((1, 6), np.float32)
    index = np.array([[-1]], np.int32)
    with pytest.raises(NkiValidationError, match="index -1 in row 0"):
        _gather(table, index, start, nisa.oob_mode.error)
    assert same(_gather(table, index, start, nisa.oob_mode.skip), start)


def test_scatter_writes_the_indexed_rows_of_an_input_in_place() -> None:
    cache = np.zeros((10, 4), np.float32)
    new = np.arange(12, dtype=np.float32).reshape(3, 4)
    index = np.array([[7], [0], [4]], np.int32)

    @nki.jit
    def kernel(cache: Any, new: Any, index: Any) -> Any:
        idx = nl.ndarray((3, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=index)
        tile = nl.ndarray((3, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=new)
        nisa.dma_copy(
            dst=cache.ap(pattern=[[4, 3], [1, 4]], vector_offset=idx, indirect_dim=0), src=tile
        )
        return cache

    returned = kernel(cache, new, index)
    assert returned is cache
    expected = np.zeros((10, 4), np.float32)
    expected[[7, 0, 4]] = new
    assert np.array_equal(cache, expected)


def test_skipped_rows_of_an_integer_destination_keep_their_bits() -> None:
    table, start = np.ones((2, 4), np.int32), np.full((2, 4), 2**30 + 1, np.int32)
    index = np.array([[1], [9]], np.uint32)
    got = _gather(table, index, start, nisa.oob_mode.skip)
    assert got.tolist() == [[1] * 4, [2**30 + 1] * 4]


@pytest.mark.parametrize("from_register", [True, False])
def test_scalar_offset_is_scaled_by_the_row_stride(from_register: bool) -> None:
    table = np.arange(60, dtype=np.float32).reshape(10, 6)
    where = np.array([[7]], np.uint32)

    @nki.jit
    def kernel(table: Any, where: Any) -> Any:
        idx = nl.ndarray((1, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=where)
        offset = idx
        if from_register:
            offset = nisa.register_alloc()
            nisa.register_load(offset, idx)
        out = nl.ndarray((1, 6), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 6), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=tile,
            src=table.ap(pattern=[[6, 1], [1, 6]], scalar_offset=offset, indirect_dim=0),
        )
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert kernel(table, where).tolist() == [table[7].tolist()]


def test_a_register_is_read_when_the_instruction_runs_not_when_the_view_is_made() -> None:
    table = np.arange(60, dtype=np.float32).reshape(10, 6)

    @nki.jit
    def kernel(table: Any) -> Any:
        register = nisa.register_alloc(2)
        view = table.ap(pattern=[[6, 1], [1, 6]], scalar_offset=register, indirect_dim=0)
        nisa.register_move(register, 5)
        out = nl.ndarray((1, 6), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=view)
        return out

    assert kernel(table).tolist() == [table[5].tolist()]


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 7), (1, 0)), ((4, 5, 6), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))]
)
def test_dma_transpose(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    values = tile_values(2, shape, "bfloat16")
    turned = tuple(shape[axis] for axis in axes)

    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray(turned, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=tile, src=x, axes=axes)
        out = nl.ndarray(turned, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert same(kernel(values), np.ascontiguousarray(values.transpose(axes)))


def test_indirect_dma_transpose_gathers_rows_into_columns() -> None:
    table = tile_values(3, (30, 8), "bfloat16")
    index = np.random.default_rng(3).integers(0, 30, size=(16, 1)).astype(np.uint32)

    @nki.jit
    def kernel(table: Any, index: Any) -> Any:
        idx = nl.ndarray((16, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=index)
        tile = nl.ndarray((8, 16), dtype=table.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(
            dst=tile, src=table.ap(pattern=[[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0)
        )
        out = nl.ndarray((8, 16), dtype=table.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    flat = index.T.flatten()
    assert same(kernel(table, index), np.ascontiguousarray(table[flat].T))


def test_dma_compute_adds_scaled_sources_in_fp32() -> None:
    a, b = tile_values(4, (8, 9), "bfloat16", special=False), tile_values(5, (8, 9), "float32")

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((8, 9), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_compute(dst=out, srcs=[a, b], reduce_op=nl.add, scales=[2.0, -1.0])
        return out

    with np.errstate(all="ignore"):
        expected = a.astype(np.float32) * np.float32(2) + b * np.float32(-1)
    assert same(kernel(a, b), expected)


def test_dma_compute_scatter_adds_to_unique_rows() -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    before = table.copy()
    update = np.ones((3, 4), np.float32)
    index = np.array([[2], [9], [0]], np.int32)

    @nki.jit
    def kernel(table: Any, update: Any, index: Any) -> Any:
        idx = nl.ndarray((3, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=index)
        rows = table.ap(pattern=[[4, 3], [1, 4]], vector_offset=idx, indirect_dim=0)
        nisa.dma_compute(dst=rows, srcs=[rows, update], reduce_op=nl.add)
        return table

    kernel(table, update, index)
    expected = before.copy()
    expected[[2, 9, 0]] += 1
    assert np.array_equal(table, expected)
