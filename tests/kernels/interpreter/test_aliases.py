"""Kernels that import `nki` run in a process without it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels.interpreter import aliases
from kernels.interpreter.aliases import RealNkiPresentError, aliases_installed
from kernels.sdk import SdkState

_KERNEL = """\
import nki
import nki.isa as nisa
import nki.language as nl
from nki.isa.constants import oob_mode


@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x, oob_mode=oob_mode.error)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    if nl.program_id(0) == 0:
        nisa.dma_copy(dst=out, src=tile)
    return out
"""


def test_every_way_to_run_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "third_party_kernel.py").write_text(_KERNEL, encoding="utf-8")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sys.path.insert(0, str(tmp_path))
    try:
        with aliases_installed():
            double = importlib.import_module("third_party_kernel").double
            nki = importlib.import_module("nki")
            simulator = importlib.import_module("nki.simulator")
            older = importlib.import_module("nki_cpu_simulator")
            results = [
                double(x),
                double[2](x),
                nki.simulate(double[2])(x),
                nki.cpu_simulate(double)[1](x=x),
                older.cpu_simulate(double)[2](x=x),
                simulator.simulate_kernel(double, (x,), {}, 2),
            ]
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("third_party_kernel", None)
    for result in results:
        assert np.array_equal(result, 2 * x)


def test_the_modules_from_before_come_back() -> None:
    before = sys.modules.get("nki")
    with aliases_installed():
        assert sys.modules["nki"] is aliases.ALIASES["nki"]
    assert sys.modules.get("nki") is before


def test_it_declines_where_the_real_nki_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "find_nki", lambda: SdkState("real", "0.6.0"))
    with pytest.raises(RealNkiPresentError, match="AWS's nki is installed"), aliases_installed():
        pass
    with aliases_installed(replace_real=True):
        assert sys.modules["nki"] is aliases.ALIASES["nki"]


@pytest.mark.parametrize(("options", "code"), [(["--nki-interpreter"], 0), ([], 2)])
def test_pytest_option(options: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "test_kernel.py").write_text(
        _KERNEL
        + "\n\ndef test_double():\n"
        + "    import numpy as np\n"
        + "    assert (double(np.ones((2, 3), np.float32)) == 2).all()\n",
        encoding="utf-8",
    )
    run = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-p", "kernels.interpreter.pytest_plugin"),
            *("-p", "no:cacheprovider", *options, str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == code, run.stdout + run.stderr
    assert ("1 passed" in run.stdout) is (code == 0)
