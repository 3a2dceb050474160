"""Launching: arguments and results of numpy and torch, and the switches of the environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.options import launch_options
from kernels.interpreter.report import summary_text, trace_lines


@nki.jit
def double(x: Any, factor: float = 2.0) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nl.store(out, tile)
    return out


_TORCH = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.int16]


@pytest.mark.parametrize("dtype", _TORCH, ids=str)
def test_torch_tensors_come_and_go(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype)
    got = double(x)
    assert got.dtype == dtype
    assert torch.equal(got, x * 2)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_tensors_carry_their_bytes(dtype: torch.dtype) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    x = torch.arange(250, dtype=torch.uint8).reshape(10, 25).view(dtype)
    got = kernel(x)
    assert got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), x.view(torch.uint8))


def test_numpy_results_for_numpy_arguments_and_keywords() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert isinstance(double(x=x, factor=3.0), np.ndarray)
    assert np.array_equal(double(x=x, factor=3.0), 3 * x)


def test_read_only_and_strided_arguments() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    x.flags.writeable = False
    assert np.array_equal(double(x), 2 * x)
    assert np.array_equal(double(x[:, ::2]), 2 * x[:, ::2])
    assert torch.equal(double(torch.ones(4, 6).t()), torch.full((6, 4), 2.0))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.complex64])
def test_64_bit_arguments_are_refused(dtype: Any) -> None:
    with pytest.raises(NkiValidationError, match=r"argument 0 is dtype .*: NKI has no 64-bit"):
        double(np.ones((2, 2), dtype))


class _Pair(NamedTuple):
    first: Any
    second: Any


@nki.jit
def _pair(values: Any) -> Any:
    return _Pair(double(values.second), {"first": values.first})


def test_structures_of_arguments_and_results_keep_their_type() -> None:
    x, y = np.ones((2, 2), np.float32), np.full((2, 2), 3.0, np.float32)
    got = _pair(_Pair(x, y))
    assert isinstance(got, _Pair)
    assert np.array_equal(got.first, 2 * y)
    assert got.second["first"] is x


class _Weights(nl.NKIObject):
    scale: Any
    name: str = "w"


@nki.jit
def _by_object(x: Any, weights: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=nl.load(weights.scale), op=nl.multiply)
    nl.store(out, tile)
    return out


def test_arrays_inside_nki_objects_become_tensors() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for factor in (1.0, 2.0, 3.0, 4.0):
        weights = _Weights(scale=np.full((2, 3), factor, np.float32))
        assert np.array_equal(_by_object(x, weights), factor * x)
        assert isinstance(weights.scale, np.ndarray)


def test_jit_with_parentheses_and_twice() -> None:
    @nki.jit()
    def kernel() -> Any:
        return nl.ones((2, 2), nl.float32, buffer=nl.shared_hbm)

    assert kernel().sum() == 4
    assert nki.jit(kernel) is kernel
    assert kernel.__name__ == "kernel"


def test_unknown_targets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((2, 2), np.float32)
    for target in ("trn2", "gen3"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        assert double(x).sum() == 8
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    with pytest.raises(NkiValidationError, match="NEURON_PLATFORM_TARGET_OVERRIDE is trn3"):
        double(x)


@nki.jit
def _rounds_twice(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    narrow = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=narrow, src=x)
    nisa.tensor_scalar(dst=narrow, data=narrow, op0=nl.multiply, operand0=1.01)
    nisa.dma_copy(dst=out, src=narrow)
    return out


def test_precise_fp_0_keeps_narrow_floats_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([[1.001, 2.003]], np.float32)
    rounded = (x.astype(ml_dtypes.bfloat16).astype(np.float32) * np.float32(1.01)).astype(
        ml_dtypes.bfloat16
    )
    for _ in range(3):
        monkeypatch.setenv("NKI_PRECISE_FP", "1")
        assert np.array_equal(_rounds_twice(x), rounded.astype(np.float32))
        monkeypatch.setenv("NKI_PRECISE_FP", "0")
        assert np.array_equal(_rounds_twice(x), x * np.float32(1.01))
    # Arguments and results keep their own dtypes.
    narrow = x.astype(ml_dtypes.bfloat16)
    assert double(narrow).dtype == narrow.dtype
    assert np.array_equal(double(narrow), narrow * narrow.dtype.type(2))


def test_precise_fp_0_has_no_bits_to_view() -> None:
    @nki.jit
    def kernel() -> None:
        nl.zeros((2, 4), nl.bfloat16).view(nl.uint16)

    kernel()
    with (
        launch_options(precise=False),
        pytest.raises(NkiValidationError, match="bits do not exist with NKI_PRECISE_FP=0"),
    ):
        kernel()


def test_precise_fp_0_counts_capacity_in_device_bytes() -> None:
    @nki.jit
    def kernel() -> None:
        nl.zeros((128, 100_000), nl.bfloat16)

    with launch_options(precise=False):
        kernel()
    summary = nki.last_launch()
    assert summary is not None
    assert summary.sbuf_peak_bytes == 200_000


def test_summary_counts_instructions_bytes_and_rows() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 600), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out, src=tile)
        nisa.dma_copy(dst=out[:, 0:10], src=tile[:, 0:10])
        return out

    with launch_options(trace=True):
        kernel(np.zeros((128, 600), np.float32))
    summary = nki.last_launch()
    assert summary is not None
    assert summary.instructions == {"dma_copy": 3, "activation": 1}
    nbytes = 128 * 600 * 4
    dma, scalar = summary.engines["dma"], summary.engines["scalar"]
    assert (dma.instructions, dma.write_bytes) == (3, 2 * nbytes + 128 * 40)
    assert (scalar.instructions, scalar.read_bytes, scalar.write_bytes) == (1, nbytes, nbytes)
    assert summary.sbuf_peak_bytes == 2400
    # Rows of 2400 bytes are efficient; the 128 rows of 40 bytes are not.
    assert summary.small_dma_rows == 128
    # 600 elements a partition at 1.2 GHz and one element a cycle, after a start-up of 64 cycles.
    assert scalar.estimated_ns == pytest.approx((600 + 64) / 1.2)
    text = summary_text(summary)
    assert "not device time" in text
    assert "of which 128 below 2 KiB" in text
    assert [row["instruction"] for row in summary.trace] == [
        "dma_copy",
        "activation",
        "dma_copy",
        "dma_copy",
    ]
    assert len(list(trace_lines(summary))) == 4


def test_on_launch_sees_every_launch() -> None:
    seen = []
    with launch_options(on_launch=lambda summary: seen.append(summary.kernel_name)):
        for _ in range(4):
            double(np.ones((2, 2), np.float32))
    assert seen == ["double"] * 4


def test_the_interpreter_never_loads_references_or_torch() -> None:
    import subprocess
    import sys

    script = (
        "import sys\n"
        "import kernels.interpreter.aliases, kernels.interpreter.lint\n"
        "import kernels.interpreter.support as s; s.support_table()\n"
        "bad = [n for n in ('torch', 'references', 'pandas', 'nki') if n in sys.modules]\n"
        "print(bad)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
