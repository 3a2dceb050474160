"""What the doctor says of a Trainium host in each half state, with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InputError
from harness.run import doctor_device
from harness.run.compile_cache import CompileCache, compile_caches, compiler_versions
from harness.run.doctor_device import engram_bytes, examine_device
from harness.run.finding import Finding, Level
from tests.fakes_neuron.running import run_command


def _by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {one.name: one for one in findings}


def _on_stand_in(**variables: str) -> dict[str, dict[str, Any]]:
    done = run_command("doctor", "--json", **variables)
    return {one["name"]: one for one in json.loads(done.stdout)["findings"]}


def _neuron_ls(folder: Path, processes: list[dict[str, Any]]) -> None:
    tool = folder / "neuron-ls"
    body = json.dumps([{"neuron_device": 0, "neuron_processes": processes}])
    tool.write_text(f"#!/bin/sh\necho '{body}'\n")
    tool.chmod(0o755)


def _config(folder: Path, rows: int) -> Path:
    text = {"engram_num_embeddings": [rows, rows], "engram_head_dim": 256}
    (folder / "config.json").write_text(json.dumps({"text_config": text}))
    return folder


def test_the_stand_in_host_is_healthy() -> None:
    found = _on_stand_in()
    assert found["neuron device"]["value"] == "registered, 64 logical cores"
    assert found["LNC"]["level"] == "ok"
    assert found["nki"]["value"] == "a double for tests"
    assert found["torch-neuronx"]["value"] == "a double for tests"


@pytest.mark.parametrize(
    ("variables", "name", "said", "remedy"),
    [
        ({"FAKE_NEURON_RUNTIME_LNC": "1"}, "LNC", "kernels 2, runtime 1", "CONFIG=1"),
        ({"FAKE_NEURON_DEVICES": "0"}, "neuron device", "no core", "VISIBLE_CORES"),
        ({"FAKE_NEURON_NO_DEVICE": "1"}, "neuron device", "privateuseone", "XLA"),
    ],
)
def test_a_half_installed_device_is_a_problem(
    variables: dict[str, str], name: str, said: str, remedy: str
) -> None:
    finding = _on_stand_in(**variables)[name]
    assert finding["level"] == "problem"
    assert said in finding["value"]
    assert remedy in finding["remedy"]


def test_without_torch_neuronx_the_device_is_a_note() -> None:
    found = _by_name(examine_device())
    assert found["neuron device"].level is Level.NOTE
    assert "setup_trn2.sh" in found["neuron device"].remedy


def test_processes_that_hold_cores_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _neuron_ls(tmp_path, [{"pid": os.getpid(), "command": "python serve.py"}])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = _by_name(examine_device())["neuron cores"]
    assert found.level is Level.PROBLEM
    assert f"{os.getpid()} (python serve.py)" in found.value


def test_an_orphan_with_cores_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _neuron_ls(tmp_path, [{"pid": 4242, "command": "x"}])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor_device, "_is_orphan", lambda pid: pid == 4242)
    found = _by_name(examine_device())
    assert "kill 4242" in found["stale processes"].remedy
    assert "neuron cores" not in found


def test_orphans_are_told_from_children() -> None:
    code = "import os, time\npid = os.fork()\nprint(pid, flush=True) if pid else time.sleep(20)"
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    pid = int(done.stdout.readline())
    done.wait()
    done.stdout.close()
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    try:
        assert doctor_device._is_orphan(pid) is (parent == "1")
        assert doctor_device._is_orphan(os.getpid()) is False
    finally:
        os.kill(pid, 9)


def test_free_cores_are_said_to_be_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _neuron_ls(tmp_path, [])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert _by_name(examine_device())["neuron cores"].value == "all free"


def test_engram_bytes_are_codes_and_scales(tmp_path: Path) -> None:
    assert engram_bytes(_config(tmp_path, 1000)) == 2 * 1000 * (256 + 8)
    with pytest.raises(InputError, match=r"config\.json"):
        engram_bytes(tmp_path / "nowhere")


def test_too_little_shared_memory_says_how_to_get_more(tmp_path: Path) -> None:
    finding = _by_name(examine_device(_config(tmp_path, 384_006_168)))["engram memory"]
    assert finding.level is Level.PROBLEM
    assert "Engram needs 188.8 GiB" in finding.value
    assert "remount,size=197G /dev/shm" in finding.remedy
    small = _by_name(examine_device(_config(tmp_path, 10)))["engram memory"]
    assert small.level is Level.OK


def test_a_cache_filled_by_another_version_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    (cache, _) = compile_caches()
    cache.stamp()
    assert dict(cache.stamped() or {}) == compiler_versions()
    assert cache.num_entries == 0
    assert _by_name(examine_device())["neff cache"].level is Level.OK
    stamp = tmp_path / "neuron-harness-compiled.json"
    stamp.write_text(json.dumps({**compiler_versions(), "neuronx-cc": "2.1"}))
    finding = _by_name(examine_device())["neff cache"]
    assert "neuronx-cc 2.1 -> absent" in finding.value
    assert "neuron-harness compile" in finding.remedy


def test_a_torn_stamp_counts_as_none(tmp_path: Path) -> None:
    cache = CompileCache("neff cache", "X", str(tmp_path))
    (tmp_path / "neuron-harness-compiled.json").write_text('{"nki": ')
    assert cache.stamped() is None


def test_a_cache_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "file" / "cache"))
    finding = _by_name(examine_device())["compile cache"]
    assert finding.level is Level.PROBLEM
    assert "NEURON_COMPILE_CACHE_URL" in finding.remedy


def test_a_cache_elsewhere_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "s3://bucket/cache")
    assert _by_name(examine_device())["compile cache"].value == "s3://bucket/cache"


def test_another_distribution_with_our_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"kernels": ["kernels"], "engine": ["neuron-harness"]}
    monkeypatch.setattr(doctor_device.importlib.metadata, "packages_distributions", lambda: owners)
    found = _by_name(examine_device())
    assert found["package kernels"].remedy.startswith("`pip uninstall kernels`")
    assert "package engine" not in found
