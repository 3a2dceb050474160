"""Gathers on chip, counting, segments and random bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import PROPERTY, run_instruction, same, tile_values


@PROPERTY
@given(free=st.integers(1, 30), wanted=st.integers(1, 12), seed=st.integers(0, 2**16))
def test_nc_n_gather_picks_per_partition(free: int, wanted: int, seed: int) -> None:
    data = tile_values(seed, (16, free), "bfloat16")
    index = np.random.default_rng(seed).integers(0, free, size=(16, wanted)).astype(np.uint32)
    got = run_instruction(
        lambda dst, x, i: nisa.nc_n_gather(dst=dst, data=x, indices=i),
        [data, index],
        (16, wanted),
        "bfloat16",
    )
    expected = np.array([[data[p, i] for i in index[p]] for p in range(16)], dtype=data.dtype)
    assert same(got, expected)


@PROPERTY
@given(
    cores=st.integers(1, 8),
    per_index=st.integers(1, 3),
    valid=st.integers(1, 32),
    seed=st.integers(0, 2**16),
)
def test_local_gather_shares_one_index_list_among_16_partitions(
    cores: int, per_index: int, valid: int, seed: int
) -> None:
    rows = 16 * cores if cores != 5 and cores != 3 and cores != 7 and cores != 6 else 16
    data = tile_values(seed, (rows, 10 * per_index), "float32")
    index = np.random.default_rng(seed).integers(0, 10, size=(rows, 2)).astype(np.uint16)
    got = run_instruction(
        lambda dst, x, i: nisa.local_gather(
            dst=dst, src_buffer=x, index=i, num_elem_per_idx=per_index, num_valid_indices=valid
        ),
        [data, index],
        (rows, valid * per_index),
        "float32",
    )
    for p in range(rows):
        core = p // 16 * 16
        listed = [int(index[core + k % 16, k // 16]) for k in range(32)][:valid]
        expected = np.concatenate([data[p, i * per_index : (i + 1) * per_index] for i in listed])
        assert same(got[p], expected)


def test_nonzero_with_count_writes_every_sixteenth_partition() -> None:
    data = np.random.default_rng(1).integers(0, 2, size=(32, 9)).astype(np.float32)
    data[16] = 0

    def issue(dst: Any, x: Any) -> None:
        nisa.memset(dst=dst, value=7)
        nisa.nonzero_with_count(dst=dst, src=x, index_offset=100, padding_val=-5)

    got = run_instruction(issue, [data], (32, 10), "int32")
    for p in range(32):
        if p % 16:
            assert got[p].tolist() == [7] * 10
            continue
        found = [100 + i for i in range(9) if data[p, i]]
        assert got[p].tolist() == found + [-5] * (9 - len(found)) + [len(found)]


def test_sequence_bounds() -> None:
    ids = np.array([[1, 1, 2, 2, 2, 0, 0, 3]], np.float32)
    got = run_instruction(
        lambda dst, x: nisa.sequence_bounds(dst=dst, segment_ids=x), [ids], (1, 2, 8), "int32"
    )
    assert got[0, 0].tolist() == [0, 0, 2, 2, 2, 8, 8, 7]
    assert got[0, 1].tolist() == [2, 2, 5, 5, 5, -1, -1, 8]


def test_random_bits_repeat_with_the_same_seed_and_differ_with_another() -> None:
    def draw(seed: int) -> np.ndarray:
        def issue(dst: Any, s: Any) -> None:
            nisa.set_rng_seed(src_seeds=s)
            nisa.rng(dst=dst)

        return run_instruction(issue, [np.array([[seed]], np.uint32)], (64, 64), "uint32")

    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))
    bits = np.unpackbits(draw(1).view(np.uint8)).mean()
    assert abs(bits - 0.5) < 0.01


def test_a_saved_state_continues_the_same_sequence() -> None:
    def issue(dst: Any) -> None:
        state = nl.ndarray((1, 6), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.rand_get_state(dst=state)
        for half in (0, 1):
            nisa.rand_set_state(src_seeds=state)
            nisa.rng(dst=dst[:, 8 * half : 8 * half + 8])

    got = run_instruction(issue, [], (4, 16), "uint32")
    assert np.array_equal(got[:, :8], got[:, 8:])


@pytest.mark.parametrize(("prob", "low", "high"), [(0.0, 0, 0), (1.0, 1, 1), (0.25, 0.2, 0.3)])
def test_dropout_zeroes_the_given_share(prob: float, low: float, high: float) -> None:
    data = np.ones((64, 64), np.float32)
    got = run_instruction(
        lambda dst, x: nisa.dropout(dst=dst, data=x, prob=prob), [data], (64, 64), "float32"
    )
    assert set(np.unique(got)) <= {0.0, 1.0}
    assert low <= float((got == 0).mean()) <= high
