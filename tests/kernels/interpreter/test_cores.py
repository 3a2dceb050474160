"""LNC2: turns, barrier, exchange, and races on shared HBM."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.options import launch_options

_X = np.arange(32, dtype=np.float32).reshape(8, 4)


def _load(x: Any) -> Any:
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


@nki.jit
def _halves(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me, rows = nl.program_id(0), x.shape[0] // nl.num_programs(0)
    part = _load(x[me * rows : me * rows + rows])
    nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=float(me + 1))
    nisa.dma_copy(dst=out[me * rows : me * rows + rows], src=part)
    return out


def test_two_programs_share_their_shared_hbm_by_order_of_allocation() -> None:
    expected = _X.copy()
    expected[4:] *= 2
    assert np.array_equal(_halves[2](_X), expected)
    assert np.array_equal(_halves(_X), _X)
    assert np.array_equal(nki.simulate(_halves[2])(_X), expected)


def test_program_ndim_is_zero_at_lnc1() -> None:
    seen = []

    @nki.jit
    def kernel() -> None:
        seen.append((nl.program_id(0), nl.num_programs(0), nl.program_ndim()))

    kernel()
    kernel[2]()
    assert seen == [(0, 1, 0), (0, 2, 1), (1, 2, 1)]


def test_programs_alternate_instruction_by_instruction() -> None:
    order = []

    @nki.jit
    def kernel() -> None:
        tile = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.sbuf)
        for step in range(3):
            nisa.memset(dst=tile, value=0.0)
            order.append((nl.program_id(0), step))

    for _ in range(2):
        order.clear()
        kernel[2]()
        assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


@nki.jit
def _exchange(x: Any) -> Any:
    me = nl.program_id(0)
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    mine = _load(x)
    nisa.tensor_scalar(dst=mine, data=mine, op0=nl.add, operand0=float(100 * me))
    theirs = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.dma_copy(dst=out[me], src=theirs)
    return out


def test_sendrecv_swaps_tiles() -> None:
    assert np.array_equal(_exchange[2](_X), np.stack([_X + 100, _X]))


@pytest.mark.parametrize("with_barrier", [True, False])
def test_reading_what_the_other_core_wrote_needs_a_barrier(with_barrier: bool) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        me = nl.program_id(0)
        middle = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=middle[me], src=_load(x))
        if with_barrier:
            nisa.core_barrier(middle, (0, 1))
        nisa.dma_copy(dst=out[me], src=_load(middle[1 - me]))
        return out

    if with_barrier:
        assert np.array_equal(kernel[2](_X), np.stack([_X, _X]))
        return
    with pytest.raises(
        NkiValidationError, match=r"program \d reads what program \d wrote.*barrier"
    ):
        kernel[2](_X)


def test_writing_what_the_other_core_read_is_a_race() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        tile = _load(x)
        if nl.program_id(0) == 1:
            nisa.dma_copy(dst=x[0:1], src=tile[0:1])
        return x

    with pytest.raises(NkiValidationError, match="program 1 writes what program 0 read"):
        kernel[2](_X.copy())


@nki.jit
def _both_write(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=_load(x))
    return out


def test_two_writes_of_one_cell_are_a_race_unless_the_option_is_off() -> None:
    with pytest.raises(NkiValidationError, match="programs 0 and 1 write the same cells"):
        _both_write[2](_X)
    with launch_options(races=False):
        assert np.array_equal(_both_write[2](_X), _X)
    assert np.array_equal(_both_write(_X), _X)


def test_a_barrier_that_only_one_core_reaches_is_refused_not_waited_for() -> None:
    @nki.jit
    def kernel(x: Any) -> None:
        if nl.program_id(0) == 0:
            nisa.core_barrier(_load(x), (0, 1))

    with pytest.raises(
        NkiValidationError, match="program 0 waits for core_barrier 1: control flow"
    ):
        kernel[2](_X)


def test_two_cores_that_wait_for_different_things_are_refused() -> None:
    @nki.jit
    def kernel(x: Any) -> None:
        tile = _load(x)
        if nl.program_id(0) == 0:
            nisa.core_barrier(tile, (0, 1))
        else:
            nisa.sendrecv(src=tile, dst=tile, send_to_rank=0, recv_from_rank=0, pipe_id=0)

    with pytest.raises(NkiValidationError, match="control flow must match"):
        kernel[2](_X)


def test_shared_allocations_must_agree() -> None:
    @nki.jit
    def kernel() -> None:
        nl.ndarray((4 + nl.program_id(0), 4), dtype=nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(NkiValidationError, match=r"float32 \[5, 4\] in program 1: the same"):
        kernel[2]()


def test_a_failing_program_ends_the_other_and_leaves_no_thread() -> None:
    @nki.jit
    def kernel(x: Any) -> None:
        tile = _load(x)
        for step in range(1000):
            nisa.tensor_copy(dst=tile, src=tile)
            if nl.program_id(0) == 1 and step == 5:
                raise ValueError("program 1 fails")

    with pytest.raises(ValueError, match="program 1 fails"):
        kernel[2](_X)
    assert not [t for t in threading.enumerate() if t.name.startswith("nki program")]


@pytest.mark.parametrize("grid", [0, 3, (2, 2), "2"])
def test_other_grids_are_refused(grid: Any) -> None:
    with pytest.raises(NkiValidationError, match="1 or 2 programs"):
        _halves[grid]
