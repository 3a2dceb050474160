"""max8, nc_find_index8 and nc_match_replace8: values, order of ties, missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import PROPERTY, run_instruction


def _with_ties(seed: int, rows: int, free: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, size=(rows, free)).astype(np.float32)


@PROPERTY
@given(rows=st.sampled_from([1, 20, 128]), free=st.integers(8, 60), seed=st.integers(0, 2**16))
def test_max8_is_the_head_of_the_sorted_row(rows: int, free: int, seed: int) -> None:
    data = _with_ties(seed, rows, free)
    got = run_instruction(lambda dst, x: nisa.max8(dst=dst, src=x), [data], (rows, 8), "float32")
    for row, eight in zip(data, got, strict=True):
        assert sorted(row.tolist(), reverse=True)[:8] == eight.tolist()


@PROPERTY
@given(
    rows=st.sampled_from([1, 20]),
    free=st.integers(8, 40),
    dtype=st.sampled_from(["uint16", "uint32"]),
    seed=st.integers(0, 2**16),
)
def test_find_index8_gives_successive_occurrences_to_equal_values(
    rows: int, free: int, dtype: str, seed: int
) -> None:
    data = _with_ties(seed, rows, free)
    values = _with_ties(seed + 1, rows, 8)
    values[:, 0] = 99.0  # never there
    got = run_instruction(
        lambda dst, x, v: nisa.nc_find_index8(dst=dst, data=x, vals=v),
        [data, values],
        (rows, 8),
        dtype,
    )
    missing = 0xFFFF if dtype == "uint16" else 0xFFFFFFFF
    for row, wanted, found in zip(data, values, got, strict=True):
        seen: dict[float, int] = {}
        for value, index in zip(wanted.tolist(), found.tolist(), strict=True):
            places = [i for i, item in enumerate(row.tolist()) if item == value]
            nth = seen.get(value, 0)
            seen[value] = nth + 1
            assert index == (places[nth] if nth < len(places) else missing)


@PROPERTY
@given(rows=st.sampled_from([1, 20]), free=st.integers(8, 40), seed=st.integers(0, 2**16))
def test_match_replace8_works_from_slot_seven_down(rows: int, free: int, seed: int) -> None:
    data = _with_ties(seed, rows, free)
    values = _with_ties(seed + 1, rows, 8)

    def issue(dst: Any, x: Any, v: Any) -> None:
        replaced, index = dst[:, 0:free], nl.ndarray((rows, 8), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.nc_match_replace8(dst=replaced, data=x, vals=v, imm=-100.0, dst_idx=index)
        nisa.tensor_copy(dst=dst[:, free : free + 8], src=index)

    got = run_instruction(issue, [data, values], (rows, free + 8), "float32")
    for row, wanted, result in zip(data, values, got, strict=True):
        left = row.tolist()
        used: set[int] = set()
        positions = [float(np.float32(0xFFFFFFFF))] * 8
        for slot in range(7, -1, -1):
            for i, item in enumerate(row.tolist()):
                if item == wanted[slot] and i not in used:
                    used.add(i)
                    left[i] = -100.0
                    positions[slot] = float(i)
                    break
        assert result[:free].tolist() == left
        assert result[free:].tolist() == positions


def test_of_equal_values_the_two_instructions_number_oppositely() -> None:
    data = np.array([[5, 5, 1, 0, 0, 0, 0, 0]], np.float32)
    values = np.array([[5, 5, 9, 9, 9, 9, 9, 9]], np.float32)
    found = run_instruction(
        lambda dst, x, v: nisa.nc_find_index8(dst=dst, data=x, vals=v),
        [data, values],
        (1, 8),
        "uint16",
    )

    def replace(dst: Any, x: Any, v: Any) -> None:
        out = nl.ndarray((1, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_match_replace8(dst=out, data=x, vals=v, imm=0.0, dst_idx=dst)

    replaced = run_instruction(replace, [data, values], (1, 8), "uint16")
    assert found[0, :2].tolist() == [0, 1]
    assert replaced[0, :2].tolist() == [1, 0]


@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_of_max8_and_match_replace8_are_a_top_k(rounds: int) -> None:
    data = np.random.default_rng(1).standard_normal((16, 100)).astype(np.float32)

    def issue(dst: Any, x: Any) -> None:
        for i in range(rounds):
            eight = dst[:, 8 * i : 8 * i + 8]
            nisa.max8(dst=eight, src=x)
            nisa.nc_match_replace8(dst=x, data=x, vals=eight, imm=-3e38)

    got = run_instruction(issue, [data], (16, 8 * rounds), "float32")
    assert np.array_equal(got, -np.sort(-data, axis=1)[:, : 8 * rounds])
