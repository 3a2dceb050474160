"""Scans, running reductions, selections and statistics against loops over Python floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import PROPERTY, run_instruction, same

_OPS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}


def _small(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, size=shape).astype(np.float32)


@PROPERTY
@given(
    op0=st.sampled_from(["multiply", "add", "maximum"]),
    op1=st.sampled_from(["add", "subtract", "minimum"]),
    reverse1=st.booleans(),
    tile_start=st.booleans(),
    free=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_tensor_tensor_scan(
    op0: str, op1: str, reverse1: bool, tile_start: bool, free: int, seed: int
) -> None:
    a, b = _small(seed, (8, free)), _small(seed + 1, (8, free))
    start = _small(seed + 2, (8, 1))
    got = run_instruction(
        lambda dst, x, y, s: nisa.tensor_tensor_scan(
            dst=dst,
            data0=x,
            data1=y,
            initial=s if tile_start else 1.0,
            op0=getattr(nl, op0),
            op1=getattr(nl, op1),
            reverse1=reverse1,
        ),
        [a, b, start],
        (8, free),
        "float32",
    )
    for row in range(8):
        carry = float(start[row, 0]) if tile_start else 1.0
        for i in range(free):
            inner = _OPS[op0](float(a[row, i]), carry)
            other = float(b[row, i])
            carry = _OPS[op1](other, inner) if reverse1 else _OPS[op1](inner, other)
            assert got[row, i] == np.float32(carry)


@pytest.mark.parametrize("op1", ["add", "multiply", "maximum", "minimum"])
def test_cumulative_chains_tiles_through_the_accumulator(op1: str) -> None:
    data = _small(1, (4, 10))

    def issue(dst: Any, x: Any) -> None:
        for part, command in ((slice(0, 6), "reset_reduce"), (slice(6, 10), "reduce")):
            nisa.tensor_scalar_cumulative(
                dst=dst[:, part],
                src=x[:, part],
                op0=nl.multiply,
                op1=getattr(nl, op1),
                imm0=0.5,
                reduce_cmd=getattr(nisa.reduce_cmd, command),
            )

    got = run_instruction(issue, [data], (4, 10), "float32")
    accumulate = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum}
    expected = accumulate.get(op1, np.minimum).accumulate(data * np.float32(0.5), axis=1)
    assert same(got + 0.0, expected + np.float32(0))


def test_cumulative_load_reduce_starts_from_imm1() -> None:
    data = _small(2, (4, 5))
    got = run_instruction(
        lambda dst, x: nisa.tensor_scalar_cumulative(
            dst=dst,
            src=x,
            op0=nl.add,
            op1=nl.add,
            imm0=0.0,
            imm1=100.0,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
        ),
        [data],
        (4, 5),
        "float32",
    )
    assert np.array_equal(got, 100 + np.cumsum(data, axis=1))


def test_tensor_scalar_reduce_chains_and_negates() -> None:
    data = _small(3, (16, 9))

    def issue(dst: Any, x: Any) -> None:
        scrap = nl.ndarray((16, 9), dtype=nl.float32, buffer=nl.sbuf)
        for column, (command, negate) in enumerate(
            (("reset_reduce", False), ("reduce", False), ("reduce", True))
        ):
            nisa.tensor_scalar_reduce(
                dst=scrap,
                data=x,
                op0=nl.multiply,
                operand0=2.0,
                reduce_op=nl.add,
                reduce_res=dst[:, column : column + 1],
                reduce_cmd=getattr(nisa.reduce_cmd, command),
                reduce_res_negate=negate,
            )

    got = run_instruction(issue, [data], (16, 3), "float32")
    total = 2 * data.sum(axis=1)
    assert np.array_equal(got + 0.0, np.stack([total, 2 * total, -3 * total], axis=1) + 0.0)


def test_tensor_scalar_reduce_init_joins_the_reduction() -> None:
    data = _small(4, (16, 9))

    def issue(dst: Any, x: Any) -> None:
        scrap = nl.ndarray((16, 9), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=scrap,
            data=x,
            op0=nl.add,
            operand0=0.0,
            reduce_op=nl.maximum,
            reduce_res=dst,
            reduce_init=1.5,
        )

    got = run_instruction(issue, [data], (16, 1), "float32")
    assert np.array_equal(got[:, 0], np.maximum(data.max(axis=1), 1.5))


def test_range_select_masks_by_position_and_takes_the_maximum() -> None:
    data = np.random.default_rng(5).standard_normal((4, 12)).astype(np.float32)
    low = np.array([[100], [103], [110], [200]], np.float32)
    high = np.array([[105], [112], [111], [300]], np.float32)

    def issue(dst: Any, x: Any, a: Any, b: Any) -> None:
        nisa.range_select(
            dst=dst[:, 0:12],
            on_true_tile=x,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=a,
            bound1=b,
            reduce_res=dst[:, 12:13],
            range_start=100,
        )

    got = run_instruction(issue, [data, low, high], (4, 13), "float32")
    smallest = np.finfo(np.float32).min
    for row in range(4):
        kept = [i for i in range(12) if low[row, 0] <= 100 + i < high[row, 0]]
        for i in range(12):
            assert got[row, i] == (data[row, i] if i in kept else smallest)
        assert got[row, 12] == max([float(data[row, i]) for i in kept], default=smallest)


@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce(reverse: bool) -> None:
    data = np.random.default_rng(6).standard_normal((4, 7)).astype(np.float32)
    mask = np.random.default_rng(7).integers(0, 2, size=(4, 7)).astype(np.uint8)
    other = np.array([[0.5], [-9], [9], [0]], np.float32)

    def issue(dst: Any, x: Any, m: Any, o: Any) -> None:
        nisa.select_reduce(
            dst=dst[:, 0:7],
            predicate=m,
            on_true=x,
            on_false=o,
            reduce_res=dst[:, 7:8],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reverse_pred=reverse,
        )

    got = run_instruction(issue, [data, mask, other], (4, 8), "float32")
    expected = np.where((mask == 0) if reverse else (mask != 0), data, other)
    assert np.array_equal(got[:, :7], expected)
    assert np.array_equal(got[:, 7], expected.max(axis=1))


@PROPERTY
@given(free=st.integers(1, 512), parts=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_bn_stats_and_bn_aggr_give_mean_and_variance(free: int, parts: int, seed: int) -> None:
    data = np.random.default_rng(seed).standard_normal((8, parts * free)).astype(np.float32)

    def issue(dst: Any, x: Any) -> None:
        stats = nl.ndarray((8, parts * 6), dtype=nl.float32, buffer=nl.sbuf)
        for part in range(parts):
            nisa.bn_stats(
                dst=stats[:, 6 * part : 6 * part + 6],
                data=x[:, part * free : (part + 1) * free],
            )
        nisa.bn_aggr(dst=dst, data=stats)

    got = run_instruction(issue, [data], (8, 2), "float32")
    wide = data.astype(np.float64)
    np.testing.assert_allclose(got[:, 0], wide.mean(axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got[:, 1], wide.var(axis=1), rtol=1e-4, atol=1e-6)
