"""activation: op(data * scale + bias) and the shared accumulators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.bench import FLOATS, PROPERTY, nearest, run_instruction, tile_values


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


# Python's math library, one number at a time.
DEFINITIONS: dict[str, Callable[[float], float]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": _sigmoid,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * _cdf(x),
    "gelu_dx": lambda x: _cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: (
        _sigmoid(1.702 * x) + 1.702 * x * _sigmoid(1.702 * x) * (1 - _sigmoid(1.702 * x))
    ),
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "tanh": math.tanh,
    "softplus": _softplus,
    "mish": lambda x: x * math.tanh(_softplus(x)),
    "erf": math.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "exp": math.exp,
    "log": lambda x: math.log(abs(x) + 0.25),
    "sin": lambda x: math.sin(x / 3),
    "arctan": math.atan,
    "sqrt": lambda x: math.sqrt(abs(x)),
    "rsqrt": lambda x: 1 / math.sqrt(abs(x) + 0.25),
    "reciprocal": lambda x: 1 / (abs(x) + 0.25),
    "sign": lambda x: (x > 0) - (x < 0),
    "abs": abs,
}
_SHIFTED = ("log", "rsqrt", "reciprocal")


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_function_equals_the_math_library(name: str) -> None:
    x = np.linspace(-9, 9, 32 * 33, dtype=np.float32).reshape(32, 33)
    data = x
    if name in _SHIFTED:
        data = (np.abs(x.astype(np.float64)) + 0.25).astype(np.float32)
    elif name == "sin":
        data = (x.astype(np.float64) / 3).astype(np.float32)
    elif name == "sqrt":
        data = np.abs(x)
    got = run_instruction(
        lambda dst, t: nisa.activation(dst=dst, op=getattr(nl, name), data=t),
        [data],
        (32, 33),
        "float32",
    )
    expected = np.vectorize(DEFINITIONS[name], otypes=[np.float64])(x.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


@PROPERTY
@given(
    source=st.sampled_from(FLOATS),
    target=st.sampled_from(FLOATS),
    bias_dtype=st.sampled_from(["float32", "bfloat16"]),
    scale_is_tile=st.booleans(),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_scale_then_bias_then_function_in_fp32(
    source: str,
    target: str,
    bias_dtype: str,
    scale_is_tile: bool,
    with_bias: bool,
    seed: int,
) -> None:
    data = tile_values(seed, (64, 9), source)
    scale = tile_values(seed + 1, (64, 1), "float32", special=False)
    bias = tile_values(seed + 2, (64, 1), bias_dtype, special=False)

    def issue(dst: Any, x: Any, s: Any, b: Any) -> None:
        nisa.activation(
            dst=dst,
            op=nl.square,
            data=x,
            bias=b if with_bias else None,
            scale=s if scale_is_tile else -1.25,
        )

    got = run_instruction(issue, [data, scale, bias], (64, 9), target)
    with np.errstate(all="ignore"):
        inner = data.astype(np.float32) * (scale if scale_is_tile else np.float32(-1.25))
        if with_bias:
            inner = inner + bias.astype(np.float32)
        expected = nearest((inner.astype(np.float64) ** 2).astype(np.float32), target)
    both = np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    assert (both | (got == expected)).all()


def test_accumulators_are_shared_by_calls_until_they_are_reset() -> None:
    data = np.arange(12, dtype=np.float32).reshape(4, 3)

    def issue(dst: Any, x: Any) -> None:
        scrap = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.sbuf)
        commands = (nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce, nisa.reduce_cmd.reduce)
        for column, command in enumerate(commands):
            nisa.activation(
                dst=scrap,
                op=nl.copy,
                data=x,
                reduce_op=nl.add,
                reduce_res=dst[:, column : column + 1],
                reduce_cmd=command,
            )

    got = run_instruction(issue, [data], (4, 3), "float32")
    sums = data.sum(axis=1)
    assert np.array_equal(got, np.stack([sums, 2 * sums, 3 * sums], axis=1))


def test_activation_reduce_gives_the_row_sums_of_the_unrounded_result() -> None:
    data = tile_values(11, (16, 64), "float32", special=False)

    def issue(dst: Any, x: Any) -> None:
        narrow = nl.ndarray((16, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=narrow, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=dst, scale=0.01
        )

    got = run_instruction(issue, [data], (16, 1), "float32")
    expected = np.exp(0.01 * data.astype(np.float64)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
