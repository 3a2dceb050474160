"""Views of tensors against numpy's views of the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.strides import contiguous_strides, is_dense, reshaped_strides
from tests.kernels.interpreter.bench import PROPERTY


def _seen(shape: tuple[int, ...], view: Callable[[Any], Any], buffer: Any = nl.sbuf) -> Any:
    """Values of view(tensor) for a tensor holding 0, 1, 2, …; int32, exact."""
    found = []

    @nki.jit
    def kernel(x: Any) -> None:
        tensor = x
        if buffer != nl.shared_hbm:
            tensor = nl.ndarray(shape, dtype=nl.int32, buffer=buffer)
            nisa.dma_copy(dst=tensor, src=x)
        found.append(np.array(view(tensor).array))

    kernel(np.arange(np.prod(shape), dtype=np.int32).reshape(shape))
    return found[0]


def _numbers(shape: tuple[int, ...]) -> Any:
    return np.arange(np.prod(shape)).reshape(shape)


@PROPERTY
@given(data=st.data())
def test_hbm_slicing_is_numpy_slicing(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    keys: list[Any] = []
    for extent in shape:
        kind = data.draw(st.sampled_from(["slice", "step", "int", "ds", "all"]))
        start = data.draw(st.integers(0, extent - 1))
        stop = data.draw(st.integers(start, extent))
        choices = {
            "slice": slice(start, stop),
            "step": slice(start, stop, data.draw(st.integers(1, 3))),
            "int": start - extent if data.draw(st.booleans()) else start,
            "ds": (start, stop - start),
            "all": slice(None),
        }
        keys.append(choices[kind])
    ours = tuple(nl.ds(*key) if isinstance(key, tuple) else key for key in keys)
    theirs = tuple(slice(k[0], k[0] + k[1]) if isinstance(k, tuple) else k for k in keys)
    got = _seen(shape, lambda tensor: tensor[ours], nl.shared_hbm)
    assert np.array_equal(got, _numbers(shape)[theirs])


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ((5,), (1, 4, 6)),
        ((slice(0, 8), 2), (8, 6)),
        ((slice(None), 2, 3), (8, 1)),
        ((3, 2, 3), (1, 1)),
        ((Ellipsis, 1), (8, 4)),
    ],
)
def test_on_chip_the_partition_dimension_stays(key: Any, shape: tuple[int, ...]) -> None:
    got = _seen((8, 4, 6), lambda tensor: tensor[key])
    assert got.shape == shape
    assert np.array_equal(got.reshape(-1), _numbers((8, 4, 6))[key].reshape(-1))


@PROPERTY
@given(
    extents=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_permute_of_free_dimensions(extents: list[int], order: Any) -> None:
    shape = (3, *extents)
    free = list(range(1, len(shape)))
    order.shuffle(free)
    dims = (0, *free)
    assert np.array_equal(
        _seen(shape, lambda tensor: tensor.permute(dims)), _numbers(shape).transpose(dims)
    )


@PROPERTY
@given(data=st.data())
def test_reshape_without_a_copy_equals_numpy_or_is_refused(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    array = _numbers(shape).transpose(order)
    size = array.size
    factors = [size]
    for divisor in (2, 3):
        if factors[-1] % divisor == 0:
            factors = [*factors[:-1], factors[-1] // divisor, divisor]
    new_shape = tuple(data.draw(st.permutations(factors)))
    strides = tuple(stride // array.itemsize for stride in array.strides)
    found = reshaped_strides(array.shape, strides, new_shape)
    if found is None:
        # numpy agrees that only a copy could do it.
        assert not np.shares_memory(array.reshape(new_shape), array)
        return
    view = np.lib.stride_tricks.as_strided(
        array, new_shape, tuple(stride * array.itemsize for stride in found)
    )
    assert np.array_equal(view, array.reshape(new_shape))


@pytest.mark.parametrize(
    ("strides", "dense"),
    [((4, 1), True), ((1, 3), True), ((4, 2), False), ((0, 1), False), ((1, 1), False)],
)
def test_is_dense(strides: tuple[int, int], dense: bool) -> None:
    assert is_dense((3, 4), strides) is dense


def test_contiguous_strides() -> None:
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)


_CHAINS: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("expand", lambda t: t.expand_dim(1), lambda a: a[:, None]),
    ("squeeze", lambda t: t[:, 0:1].squeeze_dim(1), lambda a: a[:, 0]),
    ("split", lambda t: t.reshape_dim(2, (2, -1)), lambda a: a.reshape(8, 4, 2, 3)),
    ("join", lambda t: t.flatten_dims(1, 2), lambda a: a.reshape(8, 24)),
    ("reshape", lambda t: t.reshape((8, 2, 12)), lambda a: a.reshape(8, 2, 12)),
    ("slice", lambda t: t.slice(2, 1, 6, 2), lambda a: a[:, :, 1:6:2]),
    ("select", lambda t: t.select(1, 3), lambda a: a[:, 3]),
    (
        "broadcast",
        lambda t: t[:, 0:1].broadcast(1, 5),
        lambda a: np.broadcast_to(a[:, 0:1], (8, 5, 6)),
    ),
    (
        "rearrange",
        lambda t: t.rearrange(("p", "a", ("b", "c")), ("p", ("a", "b"), "c"), {"b": 3}),
        lambda a: a.reshape(8, 12, 2),
    ),
    (
        "rearrange text",
        lambda t: t.rearrange("p a (b c)", "p b a c", {"c": 2}),
        lambda a: a.reshape(8, 4, 3, 2).transpose(0, 2, 1, 3),
    ),
    (
        "ap",
        lambda t: t.ap(pattern=[[24, 8], [1, 6], [6, 4]]),
        lambda a: a.transpose(0, 2, 1),
    ),
    (
        "ap offset",
        lambda t: t.ap(pattern=[[24, 8], [0, 3], [2, 5]], offset=7),
        lambda a: np.repeat(a.reshape(8, 24)[:, None, 7:17:2], 3, axis=1),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), [c[1:] for c in _CHAINS], ids=[c[0] for c in _CHAINS])
def test_view_equals_numpy(ours: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> None:
    try:
        got = _seen((8, 4, 6), ours)
    except NkiValidationError as error:
        pytest.fail(str(error))
    assert np.array_equal(got, theirs(_numbers((8, 4, 6))))


def test_ap_of_a_reshaped_hbm_tensor_with_negative_and_zero_strides() -> None:
    got = _seen(
        (4, 6),
        lambda t: t.ap(pattern=[[0, 2], [-6, 4], [1, 6]], offset=18),
        nl.shared_hbm,
    )
    assert np.array_equal(got, np.stack([_numbers((4, 6))[::-1]] * 2))


def test_view_of_another_dtype_shares_the_bytes() -> None:
    values = np.arange(1, 33, dtype=np.float32).reshape(4, 8)
    seen = []

    @nki.jit
    def kernel(x: Any) -> None:
        tile = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        halves = tile.view(nl.uint16)
        seen.append(np.array(halves.array))
        nisa.memset(dst=halves, value=0)
        seen.append(np.array(tile.array))

    kernel(values)
    assert np.array_equal(seen[0], values.view(np.uint16))
    assert (seen[1] == 0).all()


def test_get_pattern_and_properties() -> None:
    @nki.jit
    def kernel() -> None:
        tile = nl.ndarray((4, 8, 2), dtype=nl.float32, buffer=nl.sbuf, name="t")
        part = tile[:, 2:6]
        assert part.get_pattern() == [[16, 4], [2, 4], [1, 2]]
        assert (part.shape, part.ndim, part.size, part.offset) == ((4, 4, 2), 3, 32, 4)
        assert part.is_contiguous()
        assert not tile[:, :, 0].is_contiguous()
        assert not part.is_indirect()
        assert (part.name, part.dtype, part.buffer) == ("t", nl.float32, nl.sbuf)

    kernel()


def test_vector_select_equals_ap_with_a_vector_offset() -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    index = np.array([[3], [3], [8]], np.uint32)

    @nki.jit
    def kernel(table: Any, index: Any) -> Any:
        idx = nl.ndarray((3, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=index)
        out = nl.ndarray((3, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=table.vector_select(0, idx))
        return out

    assert np.array_equal(kernel(table, index), table[[3, 3, 8]])


def test_dynamic_slice_by_a_register_on_chip() -> None:
    values = np.arange(32, dtype=np.float32).reshape(4, 8)

    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        out = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        copy = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)

        def body(i: Any) -> None:
            nisa.tensor_scalar(
                dst=copy[:, nl.ds(i, 2)],
                data=tile[:, nl.ds(i, 2)],
                op0=nl.multiply,
                operand0=2.0,
            )

        nl.fori_loop(0, 8, body, step=2)
        nisa.dma_copy(dst=out, src=copy)
        return out

    assert np.array_equal(kernel(values), 2 * values)
