"""The fingerprint tells a placeholder from an SDK and is strict JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.record import strict_json
from harness.run.environment import ResultOrigin, SdkState, fingerprint, origin_of, sdk_state


def _install(folder: Path, package: str, files: tuple[str, ...], version: str) -> None:
    """A fake installed distribution of `package`."""
    (folder / package).mkdir(parents=True)
    for name in ("__init__.py", *files):
        (folder / package / name).write_text("raise ImportError('must not be imported')\n")
    meta = folder / f"{package}-{version}.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("files", "state"),
    [((), SdkState.PLACEHOLDER), (("language.py",), SdkState.REAL)],
)
def test_a_package_without_a_language_is_a_placeholder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], state: SdkState
) -> None:
    _install(tmp_path, "nki", files, "0.6.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nki", raising=False)
    assert sdk_state("nki") == (state, "0.6.1")
    assert "nki" not in sys.modules


def test_a_package_that_is_not_there_is_absent() -> None:
    assert sdk_state("torch-neuronx") == (SdkState.ABSENT, "")


def test_the_fingerprint_names_origin_seeds_and_revision() -> None:
    facts = fingerprint({"suite": 7}, backend="interpret")
    assert facts["origin"] == "cpu-interpreter"
    assert facts["seeds"] == {"suite": 7}
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["num_cores"] >= 1
    checkout = Path(__file__).resolve().parents[3]
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    assert (facts["git"] or "").startswith(head)


def test_the_fingerprint_survives_strict_json() -> None:
    facts = fingerprint()
    assert json.loads(strict_json(facts)) == facts
    assert facts["origin"] is None


def test_an_unknown_backend_has_no_origin() -> None:
    assert origin_of("device") is ResultOrigin.DEVICE
    with pytest.raises(UsageError, match="'gpu' is not known; known: device, interpret, simulate"):
        origin_of("gpu")
