"""memset, tensor_copy_predicated, iota, affine_select, nc_stream_shuffle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import (
    CARRIERS,
    PROPERTY,
    nearest,
    run_instruction,
    same,
    tile_values,
)


@pytest.mark.parametrize("name", sorted(CARRIERS))
def test_memset_fills_every_dtype(name: str) -> None:
    got = run_instruction(lambda dst: nisa.memset(dst=dst, value=3), [], (7, 5), name)
    assert same(got, np.full((7, 5), 3, np.float32).astype(CARRIERS[name]))


def test_memset_rounds_a_float_to_the_dtype() -> None:
    got = run_instruction(lambda dst: nisa.memset(dst=dst, value=1.01), [], (1, 1), "bfloat16")
    assert same(got, nearest(np.array([[1.01]]), "bfloat16"))


@PROPERTY
@given(
    predicate_dtype=st.sampled_from(["uint8", "uint16", "uint32"]),
    source_kind=st.sampled_from(["tile", "column", "number"]),
    reverse=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_predicated_copy_keeps_the_rest(
    predicate_dtype: str, source_kind: str, reverse: bool, seed: int
) -> None:
    before = tile_values(seed, (32, 2, 6), "bfloat16")
    source = tile_values(seed + 1, (32, 12), "bfloat16")
    predicate = np.random.default_rng(seed).integers(0, 3, size=(32, 12)).astype(predicate_dtype)

    def issue(dst: Any, old: Any, new: Any, mask: Any) -> None:
        nisa.tensor_copy(dst=dst, src=old)
        src = {"tile": new, "column": new[:, 0:1], "number": 2.5}[source_kind]
        nisa.tensor_copy_predicated(dst=dst, src=src, predicate=mask, reverse_pred=reverse)

    got = run_instruction(issue, [before, source, predicate], (32, 2, 6), "bfloat16")
    chosen = (predicate == 0 if reverse else predicate != 0).reshape(32, 2, 6)
    value = {
        "tile": source.reshape(32, 2, 6),
        "column": source[:, :1].reshape(32, 1, 1),
        "number": np.float32(2.5).astype(source.dtype),
    }[source_kind]
    assert same(got, np.where(chosen, value, before))


@PROPERTY
@given(
    pattern=st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 5)), min_size=1, max_size=4),
    offset=st.integers(-100, 100),
    multiplier=st.integers(-7, 7),
    target=st.sampled_from(["int32", "float32", "uint8", "bfloat16"]),
)
def test_iota_counts_along_its_pattern(
    pattern: list[tuple[int, int]], offset: int, multiplier: int, target: str
) -> None:
    counts = tuple(count for _, count in pattern)
    got = run_instruction(
        lambda dst: nisa.iota(
            dst=dst,
            pattern=[list(pair) for pair in pattern],
            offset=offset,
            channel_multiplier=multiplier,
        ),
        [],
        (6, *counts),
        target,
    )
    expected = np.empty((6, *counts), np.int64)
    for index in np.ndindex(6, *counts):
        steps = sum(s * i for (s, _), i in zip(pattern, index[1:], strict=True))
        expected[index] = offset + multiplier * index[0] + steps
    assert (got == nearest(expected, target)).all()


@pytest.mark.parametrize("compare", ["equal", "greater_equal", "less", "not_equal"])
def test_affine_select_compares_the_affine_value_with_zero(compare: str) -> None:
    data = tile_values(1, (16, 10), "float32")
    got = run_instruction(
        lambda dst, x: nisa.affine_select(
            dst=dst,
            pattern=[[-1, 10]],
            channel_multiplier=1,
            on_true_tile=x,
            on_false_value=-7.0,
            cmp_op=getattr(nl, compare),
            offset=2,
        ),
        [data],
        (16, 10),
        "float32",
    )
    tests = {
        "equal": lambda v: v == 0,
        "greater_equal": lambda v: v >= 0,
        "less": lambda v: v < 0,
        "not_equal": lambda v: v != 0,
    }
    for p in range(16):
        for i in range(10):
            wanted = data[p, i] if tests[compare](2 + p - i) else np.float32(-7.0)
            assert got[p, i] == wanted or (np.isnan(got[p, i]) and np.isnan(wanted))


@PROPERTY
@given(
    partitions=st.sampled_from([32, 64, 128]),
    mask=st.lists(st.one_of(st.integers(0, 31), st.just(255)), min_size=32, max_size=32),
    seed=st.integers(0, 2**16),
)
def test_stream_shuffle_moves_partitions_within_each_group_of_32(
    partitions: int, mask: list[int], seed: int
) -> None:
    data = tile_values(seed, (partitions, 6), "float32")
    before = tile_values(seed + 1, (partitions, 6), "float32")

    def issue(dst: Any, x: Any, old: Any) -> None:
        nisa.tensor_copy(dst=dst, src=old)
        nisa.nc_stream_shuffle(dst=dst, src=x, shuffle_mask=mask)

    got = run_instruction(issue, [data, before], (partitions, 6), "float32")
    for row in range(partitions):
        item = mask[row % 32]
        origin = before[row] if item == 255 else data[row // 32 * 32 + item]
        assert same(got[row], origin)


def test_stream_shuffle_replicates_one_partition() -> None:
    data = tile_values(2, (1, 6), "bfloat16")
    got = run_instruction(
        lambda dst, x: nisa.nc_stream_shuffle(dst=dst, src=x, shuffle_mask=[0] * 32),
        [data],
        (32, 6),
        "bfloat16",
    )
    assert same(got, np.repeat(data, 32, axis=0))
