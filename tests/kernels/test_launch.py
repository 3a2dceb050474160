"""The adapter to a runtime: which one serves, statuses, poison, counters, LNC."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.errors import KernelError, MissingEvidenceError, UsageError
from kernels import launch as adapter
from kernels.launch import (
    BACKEND_VARIABLE,
    LNC_VARIABLE,
    active_backend,
    active_lnc,
    backend_selected,
    counters,
    launch,
    launch_many,
    lnc_selected,
    missing_backends,
    nisa,
    nki,
    nl,
    poisoned,
    reset_counters,
)
from kernels.sdk import find_nki

bundled = pytest.mark.skipif(
    find_nki().kind == "real", reason="AWS's nki is installed: this is about its absence"
)


@nki.jit
def copy_kernel(x_hbm: Any) -> Any:
    y_hbm = nl.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x_hbm)
    nisa.dma_copy(dst=y_hbm, src=x_sb)
    return y_hbm


@nki.jit
def half_written_kernel(x_hbm: Any) -> Any:
    y_hbm = nl.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=nl.shared_hbm)
    half = x_hbm.shape[1] // 2
    x_sb = nl.ndarray((x_hbm.shape[0], half), dtype=x_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x_hbm[:, 0:half])
    nisa.dma_copy(dst=y_hbm[:, 0:half], src=x_sb)
    return y_hbm


@nki.jit
def unwritten_read_kernel(x_hbm: Any) -> Any:
    y_hbm = nl.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=y_hbm, src=x_sb)
    return y_hbm


@nki.jit
def too_many_partitions_kernel(x_hbm: Any) -> Any:
    nl.ndarray((129, 4), dtype=x_hbm.dtype, buffer=nl.sbuf)
    return x_hbm


@nki.jit
def broken_kernel(x_hbm: Any) -> Any:
    raise ZeroDivisionError("a bug in the kernel")


@nki.jit
def two_outputs_kernel(x_hbm: Any) -> Any:
    return copy_kernel(x_hbm), copy_kernel(x_hbm)


def test_a_kernel_takes_and_returns_cpu_tensors() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    y = launch(copy_kernel, x.t())
    assert torch.equal(y, x.t())
    assert y.data_ptr() != x.data_ptr()
    first, second = launch_many(two_outputs_kernel, x)
    assert torch.equal(first, x)
    assert torch.equal(second, x)


def test_counters_tell_what_ran_since_the_reset() -> None:
    reset_counters()
    launch(copy_kernel, torch.ones(4, 8))
    launch(copy_kernel, torch.ones(4, 8))
    found = counters()
    assert found.launches == {"copy_kernel": 2}
    assert found.backends == {"interpret": 2}
    assert found.instructions == 4
    assert found.dma_bytes == 2 * 2 * 4 * 8 * 4
    assert found.sbuf_peak_bytes == 8 * 4
    assert found.as_mapping()["launches"] == 2
    reset_counters()
    assert counters().num_launches == 0
    assert found.num_launches == 2


@pytest.mark.parametrize(
    ("kernel", "status", "words"),
    [
        (half_written_kernel, "UNWRITTEN", "8 elements that no instruction wrote"),
        (unwritten_read_kernel, "RUN_ERROR", "never written"),
        (too_many_partitions_kernel, "COMPILE_ERROR", "128 partitions"),
        (broken_kernel, "RUN_ERROR", "a bug in the kernel"),
    ],
)
def test_what_a_runtime_raises_becomes_a_status(kernel: Any, status: str, words: str) -> None:
    with pytest.raises(KernelError, match=words) as found:
        launch(kernel, torch.ones(4, 4))
    assert found.value.status == status
    assert kernel.__name__ in str(found.value)


def test_poison_shows_in_what_a_kernel_leaves_unwritten() -> None:
    for poison in (math.nan, 1e30):
        with poisoned(poison) as effective, pytest.raises(KernelError) as found:
            launch(half_written_kernel, torch.ones(4, 4))
        assert effective
        assert found.value.status == "UNWRITTEN"


@bundled
def test_without_the_sdk_the_interpreter_serves_and_the_others_are_missing() -> None:
    assert active_backend() == "interpret"
    assert set(missing_backends()) == {"simulate", "device"}
    assert "AWS's package index" in missing_backends()["device"]
    for name in ("simulate", "device"):
        with pytest.raises(MissingEvidenceError, match="nki"), backend_selected(name):
            pass
    with backend_selected("interpret") as backend:
        assert backend == "interpret"


def test_an_unknown_backend_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="choose auto"), backend_selected("gpu"):
        pass
    monkeypatch.setenv(BACKEND_VARIABLE, "gpu")
    with pytest.raises(UsageError, match=BACKEND_VARIABLE):
        active_backend()


def test_the_lnc_degree_comes_from_the_environment_or_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LNC_VARIABLE, raising=False)
    assert active_lnc() == 1
    monkeypatch.setenv(LNC_VARIABLE, "2")
    assert active_lnc() == 2
    with lnc_selected(1):
        assert active_lnc() == 1
    monkeypatch.setenv(LNC_VARIABLE, "3")
    with pytest.raises(UsageError, match="1 or 2 cores"):
        active_lnc()
    with pytest.raises(UsageError, match="1 or 2 cores"), lnc_selected(4):
        pass


def run_python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(folder), str(Path(__file__).parents[2])))
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )


_SAY = "from kernels.sdk import find_nki; print(find_nki().kind)"


def test_the_empty_placeholder_is_not_taken_for_the_sdk(tmp_path: Path) -> None:
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert run_python(_SAY, tmp_path).stdout.strip() == "placeholder"
    code = "import kernels.launch as a; print(a.active_backend(), a.nl.__name__)"
    done = run_python(code, tmp_path)
    assert done.stdout.split() == ["interpret", "kernels.interpreter.language"], done.stderr
    forced = run_python("import kernels.launch", tmp_path, **{BACKEND_VARIABLE: "simulate"})
    assert forced.returncode != 0
    assert "empty placeholder" in forced.stderr


def test_a_package_with_isa_and_language_is_taken_and_simulates(tmp_path: Path) -> None:
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def jit(fn):\n    return fn\n\n\ndef simulate(kernel):\n    return kernel\n"
    )
    (package / "isa.py").write_text("")
    (package / "language.py").write_text("")
    assert run_python(_SAY, tmp_path).stdout.strip() == "real"
    code = (
        "import torch, kernels.launch as a; "
        "y = a.launch(a.nki.jit(lambda x: x + 1), torch.ones(2)); "
        "print(a.active_backend(), a.nisa.__name__, y.tolist(), a.counters().backends)"
    )
    done = run_python(code, tmp_path)
    assert done.stdout.strip() == "simulate nki.isa [2.0, 2.0] {'simulate': 1}", done.stderr
    named = "import kernels.launch as a; print(a.active_backend(), a.nisa.__name__)"
    again = run_python(named, tmp_path, **{BACKEND_VARIABLE: "interpret"})
    assert again.stdout.strip() == "interpret kernels.interpreter.isa", again.stderr


def test_the_adapter_offers_what_it_says() -> None:
    assert set(adapter.__all__) <= set(dir(adapter))


@pytest.mark.sdk
def test_the_official_simulator_agrees_with_the_interpreter() -> None:
    from kernels.rms_norm_nki import rms_norm
    from tests.kernels.formulas import NUMERICS, normal

    x, weight = normal(130, 256), normal(256, seed=1)
    with backend_selected("simulate"):
        simulated = rms_norm(x, weight, 1e-6, numerics=NUMERICS)
    want = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert torch.allclose(simulated.double(), want * weight.double(), rtol=2**-8, atol=1e-30)
