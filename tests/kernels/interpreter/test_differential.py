"""The interpreter against AWS's own simulator on random programs, where that is installed.

Without it, the same programs run against a numpy transcription, so that the programs themselves
are known to be valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.sdk import find_nki
from tests.kernels.interpreter.programs import ROWS, WIDTH, program_steps, random_program

_SEEDS = range(12)
_BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_FUNCTIONS = {
    "copy": lambda x: x,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "sign": np.sign,
}


def _inputs(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, ROWS, WIDTH)).astype(np.float32)


def _transcribed(seed: int) -> np.ndarray:
    import ml_dtypes

    tiles = [tile.copy() for tile in _inputs(seed)]
    half = WIDTH // 2
    for kind, first, second, target, op, function, number, start in program_steps(seed):
        a, b, dst = tiles[first], tiles[second], tiles[target]
        n = np.float32(number)
        if kind == "binary":
            dst[...] = _BINARY[op](a, b)
        elif kind == "scalar":
            dst[...] = _BINARY[op](a, n)
        elif kind == "fused":
            dst[...] = _BINARY[op](a * n, b)
        elif kind == "function":
            dst[...] = _FUNCTIONS[function](a * np.float32(0.5))
        elif kind == "reduce":
            dst[...] = b + a.max(axis=1, keepdims=True)
        elif kind == "matmul":
            dst[0:WIDTH] = (a.T.astype(np.float64) @ b) * 2.0**-7
        elif kind == "transpose":
            dst[0:WIDTH] = a.T.copy()[:, 0:WIDTH]
        elif kind == "cast":
            dst[...] = a.astype(ml_dtypes.bfloat16).astype(np.float32)
        else:
            dst[:, start : start + half] = a[:, 0:half].copy()
        np.clip(dst, -64, 64, out=dst)
    return np.stack(tiles)


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_programs_agree_with_a_numpy_transcription(seed: int) -> None:
    got = nki.jit(random_program(seed, nl, nisa))(_inputs(seed))
    # Sums of 128 products differ in order; a later bfloat16 rounding can turn that into half a
    # step of 2**-8.
    np.testing.assert_allclose(got, _transcribed(seed), rtol=2**-7, atol=2**-7)


@pytest.mark.sdk
@pytest.mark.skipif(find_nki().kind != "real", reason=find_nki().reason or "nki is installed")
@pytest.mark.parametrize("seed", _SEEDS)
def test_random_programs_agree_with_the_official_simulator(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    real: Any = importlib.import_module("nki")
    real_nl, real_nisa = (importlib.import_module(f"nki.{m}") for m in ("language", "isa"))
    theirs = real.simulate(real.jit(random_program(seed, real_nl, real_nisa)))(_inputs(seed))
    ours = nki.jit(random_program(seed, nl, nisa))(_inputs(seed))
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=2**-7, atol=2**-7)
