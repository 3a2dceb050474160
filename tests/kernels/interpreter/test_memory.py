"""The written mask: exact for partial writes, any dtype, and views of other sizes."""

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
from kernels.interpreter.options import launch_options
from tests.kernels.interpreter.bench import PROPERTY


@PROPERTY
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(0, 9), st.integers(1, 10)),
        min_size=1,
        max_size=6,
    ),
    read=st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(0, 9), st.integers(1, 10)),
    dtype=st.sampled_from(["float32", "int32", "uint8", "bfloat16"]),
)
def test_a_read_is_refused_exactly_when_some_cell_was_never_written(
    writes: list[tuple[int, int, int, int]], read: tuple[int, int, int, int], dtype: str
) -> None:
    def region(box: tuple[int, int, int, int]) -> tuple[slice, slice]:
        p, np_, f, nf = box
        return slice(p, min(8, p + np_)), slice(f, min(10, f + nf))

    written = np.zeros((8, 10), bool)
    for box in writes:
        written[region(box)] = True

    @nki.jit
    def kernel(ones: Any) -> None:
        tile = nl.ndarray((8, 10), dtype=dtype, buffer=nl.sbuf)
        for box in writes:
            rows, columns = region(box)
            nisa.dma_copy(dst=tile[rows, columns], src=ones[rows, columns])
        out = nl.ndarray((8, 10), dtype=dtype, buffer=nl.hbm)
        nisa.dma_copy(dst=out[region(read)], src=tile[region(read)])

    ones = np.ones((8, 10), np.float32)
    missing = int((~written[region(read)]).sum())
    if missing == 0:
        kernel(ones)
        return
    with pytest.raises(NkiValidationError, match=f"with {missing} of .* never written"):
        kernel(ones)


def test_a_view_of_smaller_elements_has_a_mask_of_its_own_granularity() -> None:
    @nki.jit
    def kernel(read_high: bool) -> None:
        tile = nl.ndarray((4, 2), dtype=nl.uint32, buffer=nl.sbuf)
        halves = tile.view(nl.uint16)
        nisa.memset(dst=halves[:, 0:3], value=1)
        scrap = nl.ndarray((4, 4), dtype=nl.uint16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=scrap[:, 0:3], src=halves[:, 0:3])
        if read_high:
            wide = nl.ndarray((4, 2), dtype=nl.uint32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=wide[:, 0:1], src=tile[:, 0:1])
            nisa.tensor_copy(dst=wide[:, 1:2], src=tile[:, 1:2])

    kernel(False)
    with pytest.raises(NkiValidationError, match=r"4 of 4 elements never written"):
        kernel(True)


def test_a_reused_buffer_counts_as_unwritten() -> None:
    @nki.jit
    def kernel() -> None:
        for _ in range(3):
            tile = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=tile, value=1.0)
        fresh = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=fresh)

    with pytest.raises(NkiValidationError, match="256 of 256 elements never written"):
        kernel()


@nki.jit
def _half_written(x: Any) -> Any:
    out = nl.ndarray((4, 6), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0:2], src=x[0:2])
    nisa.dma_copy(dst=out[2:4, 0:5], src=x[2:4, 0:5])
    return out, x


@pytest.mark.parametrize(("poison", "expected"), [(np.nan, np.nan), (1e30, 1e30)])
def test_unwritten_output_cells_hold_the_poison_and_are_reported(
    poison: float, expected: float
) -> None:
    x = np.ones((4, 6), np.float32)
    with launch_options(poison=poison):
        out, returned = _half_written(x)
    assert returned is x
    np.testing.assert_array_equal(out[2:4, 5], np.float32([expected, expected]))
    summary = nki.last_launch()
    assert summary is not None
    (missing,) = summary.unwritten
    assert (missing.position, missing.shape) == ("result[0]", (4, 6))
    assert (missing.num_unwritten, missing.first) == (2, (2, 5))


def test_integer_outputs_hold_the_integer_poison() -> None:
    x = np.ones((4, 6), np.int32)
    out, _ = _half_written(x)
    assert out[2, 5] == 4
    with launch_options(integer_poison=-77):
        out, _ = _half_written(x)
    assert out[2, 5] == -77


def test_a_whole_output_is_not_reported() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((4, 6), dtype=x.dtype, buffer=nl.shared_hbm)
        for row in range(4):
            nisa.dma_copy(dst=out[row], src=x[row])
        return out

    kernel(np.ones((4, 6), np.float32))
    summary = nki.last_launch()
    assert summary is not None
    assert summary.unwritten == ()


def test_a_peak_above_the_safe_budget_is_a_warning_not_a_refusal() -> None:
    @nki.jit
    def kernel(columns: int) -> None:
        nl.zeros((128, columns), nl.float32)

    warnings = []
    for columns in (48 * 1024, 48 * 1024 + 1):
        kernel(columns)
        summary = nki.last_launch()
        assert summary is not None
        warnings.append(summary.warnings)
    assert warnings[0] == ()
    assert "196612 B a partition is above the safe budget of 196608 B" in warnings[1][0]


def test_peaks_count_tiles_from_first_to_last_use() -> None:
    @nki.jit
    def kernel(keep: bool) -> None:
        first = nl.ndarray((128, 1000), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=first, value=1.0)
        second = nl.ndarray((128, 500), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=second, value=1.0)
        if keep:
            nisa.tensor_copy(dst=second, src=first[:, 0:500])

    peaks = []
    for keep in (False, True):
        kernel(keep)
        summary = nki.last_launch()
        assert summary is not None
        peaks.append(summary.sbuf_peak_bytes)
    assert peaks == [4000, 6000]
