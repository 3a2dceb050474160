"""setup_trn2.sh over a host made of this environment and the stand-in, without any network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.fakes_neuron import SITE

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "setup_trn2.sh"


def _host(root: Path, *sites: Path) -> Path:
    """A Neuron environment whose packages are those of `sites`."""
    host = root / "host"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(host)], check=True)
    (site,) = host.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in sites))
    return host


def _setup(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
    }
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={
            **inherited,
            "OVERLAY": str(root / "overlay"),
            "NEURON_HARNESS_ANY_PYTHON": "1",
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as: no isolation
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def _our_site() -> Path:
    return Path(sysconfig.get_path("purelib"))


def test_without_a_neuron_environment_it_says_how_to_name_one(tmp_path: Path) -> None:
    if list(Path("/opt").glob("aws_neuronx_venv_pytorch*")):
        pytest.skip("this host has a Neuron environment")
    done = _setup(tmp_path)
    assert done.returncode == 3
    assert "no Neuron environment found" in done.stderr
    assert not (tmp_path / "overlay").exists()


def test_an_environment_without_torch_neuronx_is_refused(tmp_path: Path) -> None:
    done = _setup(tmp_path, str(_host(tmp_path, _our_site())))
    assert done.returncode == 3
    assert "no torch-neuronx" in done.stderr
    assert not (tmp_path / "overlay").exists()


def test_an_xla_torch_neuronx_is_told_from_the_native_one(tmp_path: Path) -> None:
    host = _host(tmp_path, _our_site(), SITE)
    done = _setup(tmp_path, str(host), FAKE_NEURON_NO_DEVICE="1")
    assert done.returncode == 3
    assert "is the XLA product" in done.stderr


def test_a_directory_that_is_no_environment_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "mine").write_text("kept")
    done = _setup(tmp_path, str(_host(tmp_path, _our_site(), SITE)))
    assert done.returncode == 2
    assert (tmp_path / "overlay" / "mine").read_text() == "kept"


@pytest.mark.slow
def test_it_prepares_once_keeps_the_host_s_torch_and_ends_in_the_doctor(tmp_path: Path) -> None:
    host = _host(tmp_path, _our_site(), SITE)
    first = _setup(tmp_path, str(host))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "registered, 64 logical cores" in first.stdout
    (site,) = (tmp_path / "overlay").glob("lib/python*/site-packages")
    assert not (site / "torch").exists()
    second = _setup(tmp_path, str(host))
    assert "is prepared" in second.stdout
    assert "preparing" not in second.stdout
    (tmp_path / "overlay" / ".neuron-harness-ready").unlink()  # as after an interruption
    assert "preparing" in _setup(tmp_path, str(host)).stdout
