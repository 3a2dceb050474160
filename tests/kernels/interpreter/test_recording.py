"""Replayed launches give the same bits, and everything that depends on values still happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.options import launch_options


class _Runs:
    """Changed by a kernel: what a replay cannot see, so that the test can."""

    count = 0


_FACTOR = 2.0


def _factor() -> float:
    return _FACTOR


@nki.jit
def counted(x: Any, bias: float) -> Any:
    """tanh(x.T @ x) + bias, through every memory; counts how often its Python runs."""
    _Runs.count += 1
    rows, columns = x.shape
    out = nl.ndarray((columns, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    psum = nl.ndarray((columns, columns), dtype=nl.float32, buffer=nl.psum)
    for start in range(0, rows, 128):
        part = nl.ndarray((min(128, rows - start), columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=part, src=x[start : start + part.shape[0]])
        nisa.nc_matmul(dst=psum, stationary=part, moving=part)
    tile = nl.ndarray((columns, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=tile, op=nl.tanh, data=psum, scale=0.01)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=bias)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def by_global(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=_factor())
    nl.store(out, tile)
    return out


@nki.jit
def gather(table: Any, index: Any) -> Any:
    out = nl.ndarray((index.shape[0], table.shape[1]), dtype=table.dtype, buffer=nl.shared_hbm)
    idx = nl.load(index)
    rows = table.ap(
        pattern=[[table.shape[1], index.shape[0]], [1, table.shape[1]]], vector_offset=idx
    )
    nisa.dma_copy(dst=out, src=rows, oob_mode=nisa.oob_mode.error)
    return out


@nki.jit
def scatter(table: Any, index: Any) -> Any:
    out = nl.ndarray(table.shape, dtype=table.dtype, buffer=nl.shared_hbm)
    idx = nl.load(index)
    view = out.ap(
        pattern=[[table.shape[1], index.shape[0]], [1, table.shape[1]]], vector_offset=idx
    )
    nisa.dma_copy(dst=view, src=table[0 : index.shape[0]])
    return out


@nki.jit
def increment(x: Any) -> Any:
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nl.store(x, tile)
    return x


@nki.jit
def halves(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    start = nl.program_id(0) * rows
    tile = nl.load(x[start : start + rows])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=float(1 + nl.program_id(0)))
    nl.store(out[start : start + rows], tile)
    return out


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_third_run_of_a_kind_replays_with_the_same_bits() -> None:
    before = _Runs.count
    inputs = [_random(seed, 200, 24) for seed in range(5)]
    with launch_options(replay=False):
        expected = [counted(x, 0.5) for x in inputs]
    assert _Runs.count == before + 5
    results, summaries = [], []
    for x in inputs:
        results.append(counted(x, 0.5))
        summaries.append(nki.last_launch())
    assert _Runs.count == before + 7
    for got, wanted in zip(results, expected, strict=True):
        assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))
    assert all(summary == summaries[0] for summary in summaries)
    # Results of earlier launches are not overwritten by later ones.
    assert not np.shares_memory(results[3], results[4])


def test_other_shapes_dtypes_and_constants_are_other_kinds() -> None:
    import ml_dtypes

    for x in (_random(1, 10, 8), _random(2, 12, 8), _random(3, 10, 8).astype(ml_dtypes.bfloat16)):
        for bias in (1, 1.0, 2.0):
            with launch_options(replay=False):
                wanted = counted(x, bias)
            for _ in range(3):
                assert np.array_equal(counted(x, bias), wanted)


def test_a_changed_global_ends_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _random(4, 4, 4)
    for _ in range(3):
        assert np.array_equal(by_global(x), 2 * x)
    monkeypatch.setattr(f"{__name__}._FACTOR", 4.0)
    assert np.array_equal(by_global(x), 4 * x)
    monkeypatch.setattr(f"{__name__}._factor", lambda: 8.0)
    assert np.array_equal(by_global(x), 8 * x)


def test_an_index_out_of_bounds_is_refused_at_the_kernels_line_in_a_replay() -> None:
    table = _random(5, 6, 4)
    for seed in range(3):
        index = np.random.default_rng(seed).integers(0, 6, (3, 1)).astype(np.uint32)
        assert np.array_equal(gather(table, index), table[index[:, 0]])
    with pytest.raises(NkiValidationError, match="src is index 6 in row 1") as refusal:
        gather(table, np.array([[0], [6], [1]], np.uint32))
    line = gather.function.__code__.co_firstlineno + 7
    assert refusal.value.location == f"{__file__}:{line}"
    assert refusal.value.instruction == "nisa.dma_copy"
    assert np.array_equal(gather(table, np.array([[5], [0], [1]], np.uint32)), table[[5, 0, 1]])


def test_unwritten_outputs_are_found_in_every_replay() -> None:
    table = _random(6, 4, 3)
    for missing in (0, 3, 1, 2):
        index = np.array([[i] for i in range(4) if i != missing], np.int32)
        with launch_options(poison=float(missing)):
            out = scatter(table, index)
        summary = nki.last_launch()
        assert summary is not None
        (found,) = summary.unwritten
        assert (found.first, found.num_unwritten) == ((missing, 0), 3)
        assert (out[missing] == missing).all()


def test_inputs_are_mutated_in_place_also_where_they_had_to_be_copied() -> None:
    for run in range(4):
        x = np.full((4, 6), float(run), np.float32)
        assert increment(x) is x
        assert (x == run + 1).all()
        strided = np.zeros((4, 12), np.float32)[:, ::2]
        increment(strided)
        assert (strided == 1).all()


def test_two_programs_replay_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _random(7, 8, 4)
    expected[4:] *= 2
    for _ in range(2):
        assert np.array_equal(halves[2](_random(7, 8, 4)), expected)

    def no_threads(*_: Any, **__: Any) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr("threading.Thread.start", no_threads)
    for seed in (7, 8):
        wanted = _random(seed, 8, 4)
        wanted[4:] *= 2
        assert np.array_equal(halves[2](_random(seed, 8, 4)), wanted)


def test_torch_tensors_replay() -> None:
    torch = pytest.importorskip("torch")
    for seed in range(4):
        x = torch.from_numpy(_random(seed, 4, 4)).to(torch.bfloat16)
        got = increment(x)
        assert got is x
        expected = torch.from_numpy(_random(seed, 4, 4)).to(torch.bfloat16) + 1
        assert torch.equal(got, expected)


def test_kernels_with_run_time_loops_run_each_time() -> None:
    for count in (1, 3, 2, 4):
        x = np.array([[count]], np.int32)
        assert looped(x)[0, 0] == count


@nki.jit
def looped(x: Any) -> Any:
    """Counts to the value of x."""
    out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    limit = nisa.register_alloc(nl.load(x))
    total = nl.zeros((1, 1), nl.float32)

    def body(_: Any) -> None:
        nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, limit, body)
    nl.store(out, total)
    return out


def test_kept_tiles_stay_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.interpreter import recordings

    monkeypatch.setattr(recordings, "_MAX_KEPT_BYTES", 0)
    before = _Runs.count
    x = _random(9, 30, 7)
    first = counted(x, 0.25)
    for _ in range(3):
        assert np.array_equal(counted(x, 0.25), first)
    assert _Runs.count == before + 4


def test_a_refused_run_leaves_no_recording() -> None:
    with pytest.raises(NkiValidationError):
        gather(_random(1, 300, 2), np.zeros((129, 1), np.uint32))
    with pytest.raises(NkiValidationError):
        gather(_random(1, 300, 2), np.zeros((129, 1), np.uint32))
    with pytest.raises(NkiValidationError, match="129 partitions"):
        gather(_random(1, 300, 2), np.zeros((129, 1), np.uint32))
