"""The eager helpers of nki.language against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError

_X = np.random.default_rng(0).uniform(-3, 3, (32, 24)).astype(np.float32)
_Y = np.random.default_rng(1).uniform(0.5, 3, (32, 24)).astype(np.float32)


def _evaluated(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    @nki.jit
    def kernel(inputs: tuple[Any, ...]) -> Any:
        result = function(*[nl.load(array) for array in inputs])
        if result.buffer == nl.psum:
            staged = nl.ndarray(result.shape, dtype=result.dtype)
            nisa.tensor_copy(dst=staged, src=result)
            result = staged
        out = nl.ndarray(result.shape, dtype=result.dtype, buffer=nl.shared_hbm)
        nl.store(out, result)
        return out

    found: np.ndarray = kernel(tuple(arrays))
    return found


_UNARY: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "cos": np.cos,
    "tan": np.tan,
    "negative": np.negative,
    "reciprocal": np.reciprocal,
    "square": np.square,
    "exp": np.exp,
    "abs": np.abs,
    "sign": np.sign,
}


@pytest.mark.parametrize("name", sorted(_UNARY))
def test_unary(name: str) -> None:
    got = _evaluated(getattr(nl, name), _X)
    np.testing.assert_allclose(got, _UNARY[name](_X.astype(np.float64)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
def test_rounding_of_integers_halves_and_large_numbers(name: str) -> None:
    x = np.array([[0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 1e9, -1e20, 8388607.5]], np.float32)
    assert np.array_equal(_evaluated(getattr(nl, name), x), _UNARY[name](x))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_binary_of_tiles_and_of_a_tile_and_a_number(name: str) -> None:
    function, numpy_function = getattr(nl, name), getattr(np, name)
    assert np.array_equal(_evaluated(function, _X, _Y), numpy_function(_X, _Y))
    half = np.float32(0.5)
    assert np.array_equal(_evaluated(lambda x: function(x, 0.5), _X), numpy_function(_X, half))
    assert np.array_equal(_evaluated(lambda x: function(0.5, x), _X), numpy_function(half, _X))


def test_comparisons_give_uint8_and_where_selects() -> None:
    assert _evaluated(nl.less, _X, _Y).dtype == np.uint8
    got = _evaluated(lambda x, y: nl.where(nl.less(x, y), x, y), _X, _Y)
    assert np.array_equal(got, np.where(_X < _Y, _X, _Y))
    got = _evaluated(lambda x: nl.where(nl.greater(x, 0.0), x, -1.0), _X)
    assert np.array_equal(got, np.where(_X > 0, _X, np.float32(-1)))


def test_logical_and_bitwise_helpers() -> None:
    flags = np.array([[0, 1, 2, 255]], np.uint8)
    assert _evaluated(nl.logical_not, flags).tolist() == [[1, 0, 0, 0]]
    assert _evaluated(nl.invert, flags).tolist() == [[255, 254, 253, 0]]
    assert _evaluated(lambda x: nl.bitwise_and(x, 3), flags).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "var"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name: str, keepdims: bool) -> None:
    got = _evaluated(lambda x: getattr(nl, name)(x, axis=1, keepdims=keepdims), _X)
    expected = getattr(np, name)(_X.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_product_and_all() -> None:
    small = np.array([[1, 2, 3], [1, 0, 5]], np.float32)
    assert _evaluated(lambda x: nl.prod(x, axis=1), small).tolist() == [[6.0], [0.0]]
    assert _evaluated(lambda x: nl.all(x, axis=1), small).tolist() == [[1], [0]]


def test_softmax_and_rms_norm() -> None:
    powers = np.exp(_X.astype(np.float64))
    np.testing.assert_allclose(
        _evaluated(nl.softmax, _X), powers / powers.sum(axis=1, keepdims=True), rtol=1e-5
    )
    got = _evaluated(lambda x, w: nl.rms_norm(x, w, axis=1, n=24), _X, _Y)
    wide = _X.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * _Y
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_transpose_matmul_and_load_transpose() -> None:
    assert np.array_equal(_evaluated(nl.transpose, _X), _X.T)
    got = _evaluated(lambda x, y: nl.matmul(x, y, transpose_x=True), _X, _Y)
    np.testing.assert_allclose(got, _X.T.astype(np.float64) @ _Y, rtol=1e-4, atol=1e-4)

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load_transpose2d(x))
        return out

    for dtype in (np.float32, np.float16):
        assert np.array_equal(kernel(_X.astype(dtype)), _X.astype(dtype).T)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.shared_hbm])
@pytest.mark.parametrize(("name", "value"), [("zeros", 0), ("ones", 1), ("full", 7)])
def test_creation(name: str, value: int, buffer: Any) -> None:
    @nki.jit
    def kernel() -> Any:
        options = {"fill_value": value} if name == "full" else {}
        made = getattr(nl, name)(shape=(3, 5000), dtype=nl.int32, buffer=buffer, **options)
        if buffer == nl.shared_hbm:
            return made
        out = nl.empty_like(made, buffer=nl.shared_hbm)
        nl.store(out, made)
        return out

    got = kernel()
    assert got.dtype == np.int32
    assert (got == value).all()


def test_views_by_helpers() -> None:
    got = _evaluated(
        lambda x: nl.broadcast_to(nl.expand_dims(x, 2), (32, 24, 3), dtype=nl.float16), _X
    )
    assert np.array_equal(got, np.repeat(_X[:, :, None], 3, axis=2).astype(np.float16))


def test_constants_and_gather() -> None:
    @nki.jit
    def kernel(index: Any) -> Any:
        table = nl.load(nl.shared_constant(np.arange(12, dtype=np.float32).reshape(2, 6)))
        identity = nl.load(nl.shared_identity_matrix(2, dtype=nl.float32))
        out = nl.ndarray((2, 3), dtype=nl.float32, buffer=nl.shared_hbm)
        got = nl.gather_flattened(table, nl.load(index))
        nl.store(out, nl.add(got[:, 0:2], identity) if index.shape[1] == 2 else got)
        return out

    index = np.array([[5, 0, 2], [1, 1, 3]], np.uint32)
    assert kernel(index).tolist() == [[5.0, 0.0, 2.0], [7.0, 7.0, 9.0]]


def test_random_numbers_are_uniform_and_repeatable() -> None:
    def draw() -> np.ndarray:
        def make() -> Any:
            nl.random_seed(3)
            return nl.rand((64, 64), nl.float32)

        return _evaluated(make)

    first = draw()
    assert np.array_equal(first, draw())
    assert first.min() >= 0
    assert first.max() < 1
    assert abs(float(first.mean()) - 0.5) < 0.02


def test_memory_predicates_and_tile_sizes() -> None:
    assert [nl.is_hbm(b) for b in (nl.hbm, nl.shared_hbm, nl.sbuf)] == [True, True, False]
    assert nl.is_on_chip(nl.psum)
    assert nl.is_psum(nl.psum)
    assert nl.is_sbuf(nl.sbuf)
    size = nl.tile_size
    assert (size.pmax, size.psum_fmax, size.gemm_moving_fmax) == (128, 512, 512)
    assert (size.gemm_stationary_fmax, size.psum_num_banks()) == (128, 8)
    assert size.sbuf_fmax_bytes() == 224 * 1024 - 16 * 1024 - 528


def test_ranges_are_ranges() -> None:
    for function in (nl.affine_range, nl.sequential_range, nl.static_range):
        assert list(function(3)) == [0, 1, 2]
        assert list(function(1, 7, 2)) == [1, 3, 5]


def test_while_loop_runs_until_its_register_is_zero() -> None:
    @nki.jit
    def kernel(start: Any) -> Any:
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        counter, left = nl.zeros((1, 1), nl.int32), nl.load(start)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(_: Any) -> None:
            nisa.tensor_scalar(dst=counter, data=counter, op0=nl.add, operand0=2)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(register, left)

        nl.while_loop(register, body)
        nl.store(out, counter)
        return out

    assert kernel(np.array([[5]], np.int32)).tolist() == [[10]]
    assert kernel(np.array([[0]], np.int32)).tolist() == [[0]]


def test_registers_store_back_to_tiles() -> None:
    @nki.jit
    def kernel() -> Any:
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        first, second = nisa.register_alloc(41), nisa.register_alloc()
        nisa.register_move(second, first)
        nisa.register_store(tile, second)
        nl.store(out, tile)
        return out

    assert kernel().tolist() == [[41]]


def test_store_from_psum_is_refused() -> None:
    @nki.jit
    def kernel() -> Any:
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.zeros((4, 4), nl.float32, buffer=nl.psum))
        return out

    with pytest.raises(NkiValidationError, match=r"nl\.store: value is in psum"):
        kernel()


def test_device_print(capsys: pytest.CaptureFixture[str]) -> None:
    _evaluated(lambda x: nl.device_print("x =", x) or x, np.array([[1.5]], np.float32))
    assert "[core 0] x = [[1.5]]" in capsys.readouterr().out
