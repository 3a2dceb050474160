"""Small kernels in the manner of public examples, against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@nki.jit
def matmul_one_tile(lhs_t: Any, rhs: Any) -> Any:
    """One [64, 128] x [128, 512] product."""
    out = nl.ndarray((64, 512), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    lhs_sb, rhs_sb = nl.load(lhs_t), nl.load(rhs)
    psum = nl.ndarray((64, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=lhs_sb, moving=rhs_sb)
    out_sb = nl.ndarray((64, 512), dtype=lhs_t.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out_sb, src=psum)
    nl.store(out, out_sb)
    return out


@nki.jit
def matmul_tiled(lhs_t: Any, rhs: Any) -> Any:
    """Tiles loaded inside the innermost loop."""
    k_size, m_size = lhs_t.shape
    n_size = rhs.shape[1]
    out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in range(0, m_size, 128):
        for n in range(0, n_size, 512):
            rows, columns = min(128, m_size - m), min(512, n_size - n)
            psum = nl.zeros((rows, columns), nl.float32, buffer=nl.psum)
            for k in range(0, k_size, 128):
                depth = min(128, k_size - k)
                a = nl.ndarray((depth, rows), dtype=lhs_t.dtype, buffer=nl.sbuf)
                b = nl.ndarray((depth, columns), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=a, src=lhs_t[k : k + depth, m : m + rows])
                nisa.dma_copy(dst=b, src=rhs[k : k + depth, n : n + columns])
                nisa.nc_matmul(dst=psum, stationary=a, moving=b, accumulate=True)
            staged = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=staged, src=psum)
            nisa.dma_copy(dst=out[m : m + rows, n : n + columns], src=staged)
    return out


@nki.jit
def matmul_hoisted(lhs_t: Any, rhs: Any) -> Any:
    """The stationary tiles of a row block are loaded once."""
    k_size, m_size = lhs_t.shape
    n_size = rhs.shape[1]
    depth = k_size // 128
    out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in range(0, m_size, 128):
        a = nl.ndarray((128, depth, 128), dtype=lhs_t.dtype, buffer=nl.sbuf)
        source = lhs_t.reshape((depth, 128, m_size)).permute((1, 0, 2))
        nisa.dma_copy(dst=a, src=source[:, :, m : m + 128])
        for n in range(0, n_size, 512):
            psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth):
                b = nl.load(rhs[k * 128 : k * 128 + 128, n : n + 512])
                nisa.nc_matmul(dst=psum, stationary=a[:, k, :], moving=b, accumulate=k > 0)
            staged = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=staged, op=nl.copy, data=psum)
            nisa.dma_copy(dst=out[m : m + 128, n : n + 512], src=staged)
    return out


@nki.jit
def matmul_split_over_cores(lhs_t: Any, rhs: Any) -> Any:
    """Each core computes half of the columns; K in blocks added in SBUF."""
    k_size, m_size = lhs_t.shape
    columns = rhs.shape[1] // nl.num_programs(0)
    first = nl.program_id(0) * columns
    out = nl.ndarray((m_size, rhs.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in range(0, m_size, 128):
        total = nl.zeros((128, columns), nl.float32)
        for k in range(0, k_size, 128):
            psum = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=psum,
                stationary=nl.load(lhs_t[k : k + 128, m : m + 128]),
                moving=nl.load(rhs[k : k + 128, first : first + columns]),
            )
            nisa.tensor_tensor(dst=total, data1=psum, data2=total, op=nl.add)
        nisa.dma_copy(dst=out[m : m + 128, first : first + columns], src=total)
    return out


def test_matmul_of_one_tile() -> None:
    a, b = (_random(s, 128, n).astype(ml_dtypes.bfloat16) for s, n in ((1, 64), (2, 512)))
    got = matmul_one_tile(a, b)
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2**-7, atol=0.05)


@pytest.mark.parametrize(
    ("kernel", "lnc"),
    [
        (matmul_tiled, 1),
        (matmul_hoisted, 1),
        (matmul_split_over_cores, 1),
        (matmul_split_over_cores, 2),
    ],
    ids=["tiled", "hoisted", "split at LNC1", "split at LNC2"],
)
def test_matmul_in_tiles(kernel: Any, lnc: int) -> None:
    # Small integers: exact in fp32 whatever the order of the sums.
    rng = np.random.default_rng(3)
    columns = 512 if lnc == 1 else 1024
    a = rng.integers(-4, 5, (384, 256)).astype(np.float32)
    b = rng.integers(-4, 5, (384, columns)).astype(np.float32)
    assert np.array_equal(kernel[lnc](a, b), a.T @ b)


def test_matmul_with_tails() -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(-4, 5, (200, 150)).astype(np.float32)
    b = rng.integers(-4, 5, (200, 700)).astype(np.float32)
    assert np.array_equal(matmul_tiled(a, b), a.T @ b)


@nki.jit
def transpose_2d(x: Any, rows: int, columns: int) -> Any:
    """[P, rows * columns] seen as matrices, transposed by a strided view."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    turned = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    view = tile.ap(pattern=[[rows * columns, x.shape[0]], [1, columns], [columns, rows]])
    nisa.tensor_copy(dst=turned, src=view)
    nl.store(out, turned)
    return out


def test_transpose_of_the_free_dimensions() -> None:
    x = _random(5, 16, 12)
    expected = x.reshape(16, 3, 4).transpose(0, 2, 1).reshape(16, 12)
    assert np.array_equal(transpose_2d(x, 3, 4), expected)


@nki.jit
def average_pool(x: Any, pool: int) -> Any:
    """Windows by a five-dimensional access pattern, reduced over the last two axes."""
    channels, height, width = x.shape
    out_h, out_w = height // pool, width // pool
    out = nl.ndarray((channels, out_h, out_w), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    windows = tile.ap(
        pattern=[
            [height * width, channels],
            [pool * width, out_h],
            [pool, out_w],
            [width, pool],
            [1, pool],
        ]
    )
    total = nl.ndarray((channels, out_h, out_w), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=windows, axis=(3, 4))
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=1.0 / (pool * pool))
    nl.store(out, total)
    return out


@pytest.mark.parametrize("pool", [2, 3])
def test_average_pooling(pool: int) -> None:
    x = _random(6, 32, 6 * pool, 4 * pool)
    expected = x.reshape(32, 6, pool, 4, pool).mean(axis=(2, 4))
    np.testing.assert_allclose(average_pool(x, pool), expected, rtol=1e-5, atol=1e-6)


@nki.jit
def selective_scan(a: Any, b: Any) -> Any:
    """h_t = a_t h_{t-1} + b_t along the free axis, in chunks that hand the state on."""
    channels, length = a.shape
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    state = nl.zeros((channels, 1), nl.float32)
    chunk = 8
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        h = nl.ndarray((channels, stop - start), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(
            dst=h,
            data0=nl.load(a[:, start:stop]),
            data1=nl.load(b[:, start:stop]),
            initial=state,
            op0=nl.multiply,
            op1=nl.add,
        )
        nisa.tensor_copy(dst=state, src=h[:, stop - start - 1 : stop - start])
        nisa.dma_copy(dst=out[:, start:stop], src=h)
    return out


def test_selective_scan() -> None:
    a, b = np.tanh(_random(7, 64, 21)), _random(8, 64, 21)
    state, expected = np.zeros(64), np.empty((64, 21))
    for t in range(21):
        state = a[:, t].astype(np.float64) * state + b[:, t]
        expected[:, t] = state
    np.testing.assert_allclose(selective_scan(a, b), expected, rtol=1e-4, atol=1e-5)


@nki.jit
def softmax(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[0], nl.tile_size.pmax):
        stop = min(start + nl.tile_size.pmax, x.shape[0])
        tile = nl.load(x[start:stop])
        peak = nl.ndarray((stop - start, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=peak, op=nl.maximum, data=tile, axis=1, negate=True)
        total = nl.ndarray((stop - start, 1), dtype=nl.float32, buffer=nl.sbuf)
        powers = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=powers,
            op=nl.exp,
            data=tile,
            bias=peak,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=powers, data=powers, op0=nl.multiply, operand0=total)
        nl.store(out[start:stop], powers)
    return out


def test_softmax() -> None:
    x = 5 * _random(9, 200, 77)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax(x), expected, rtol=1e-5, atol=1e-8)


@nki.jit
def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Mean and variance by bn_stats in pieces of 512; weights replicated by DMA."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scale = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    shift = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale, src=gamma.ap(pattern=[[0, rows], [1, width]]))
    nisa.dma_copy(dst=shift, src=beta.ap(pattern=[[0, rows], [1, width]]))
    tile = nl.load(x)
    pieces = [(s, min(s + 512, width)) for s in range(0, width, 512)]
    stats = nl.ndarray((rows, len(pieces), 6), dtype=nl.float32, buffer=nl.sbuf)
    for i, (start, stop) in enumerate(pieces):
        nisa.bn_stats(dst=stats[:, i], data=tile[:, start:stop])
    moments = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=moments, data=stats)
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=inverse,
        data=moments[:, 1:2],
        op0=nl.add,
        operand0=epsilon,
        op1=nl.rsqrt,
        operand1=0.0,
    )
    nisa.tensor_scalar(
        dst=tile,
        data=tile,
        op0=nl.subtract,
        operand0=moments[:, 0:1],
        op1=nl.multiply,
        operand1=inverse,
    )
    nisa.tensor_tensor(dst=tile, data1=tile, data2=scale, op=nl.multiply)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=shift, op=nl.add)
    nl.store(out, tile)
    return out


def test_layer_norm() -> None:
    x, gamma, beta = _random(10, 100, 700), _random(11, 700), _random(12, 700)
    wide = x.astype(np.float64)
    mean, variance = wide.mean(axis=1, keepdims=True), wide.var(axis=1, keepdims=True)
    expected = (wide - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    np.testing.assert_allclose(layer_norm(x, gamma, beta, 1e-5), expected, rtol=1e-4, atol=1e-4)


class _Shape(nl.NKIObject):
    rows: int
    columns: int = 4
    factor = 3.0


@nki.jit
def scaled(x: Any, shape: Any) -> Any:
    out = nl.ndarray((shape.rows, shape.columns), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=shape.factor)
    nl.store(out, tile)
    return out


@nki.jit
def outer(x: Any) -> Any:
    """A jitted kernel called inside another runs inline."""
    return scaled(x, _Shape(rows=x.shape[0], factor=2.0)), x


def test_nki_objects_and_nested_kernels_and_tuples() -> None:
    x = _random(13, 8, 4)
    assert np.array_equal(scaled(x, _Shape(rows=8)), 3 * x)
    doubled, same = outer(x)
    assert np.array_equal(doubled, 2 * x)
    assert same is x
    with pytest.raises(TypeError, match="no field height"):
        _Shape(height=1)
