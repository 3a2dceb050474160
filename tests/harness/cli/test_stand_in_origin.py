"""A record that doubles of the device's modules made never stands for a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.run.environment import ResultOrigin, SdkState, origin_of
from reports.ledger import read_run
from reports.origin import Origin
from reports.origin import origin_of as origin_of_entry
from tests.fakes_neuron.running import run_command, run_here, run_python

_CASE = ("parity", "--op", "swiglu", "--tier", "device")
_ASK = (
    "from harness.run.environment import origin_of, sdk_state\n"
    "print(*(origin_of(b).value for b in ('interpret', 'simulate', 'device')))\n"
    "print(*(sdk_state(n)[0].value for n in ('nki', 'torch-neuronx')))"
)


def test_on_the_stand_in_host_neither_device_nor_simulator_is_an_origin() -> None:
    said = run_python(_ASK).stdout.splitlines()
    assert said == ["cpu-interpreter stand-in stand-in", "stand-in stand-in"]


def test_without_a_device_node_even_unmarked_modules_are_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.run.environment.sdk_state", lambda name: (SdkState.REAL, "2.13"))
    monkeypatch.setattr("harness.run.environment.has_device_node", lambda: False)
    assert origin_of("device") is ResultOrigin.STAND_IN
    assert origin_of("simulate") is ResultOrigin.OFFICIAL_SIMULATOR
    monkeypatch.setattr("harness.run.environment.has_device_node", lambda: True)
    assert origin_of("device") is ResultOrigin.DEVICE


def test_a_stand_in_run_and_its_report_name_the_double(tmp_path: Path) -> None:
    done = run_command(*_CASE, "--backend", "device", "--out", tmp_path)
    assert done.returncode == 0, done.stdout
    (run,) = (path.parent for path in tmp_path.glob("*/run.json"))
    ledger = read_run(run)
    entries = ledger.of_kind("parity")
    assert entries
    assert ledger.environment["origin"] == "stand-in"
    assert {entry.payload["backend"] for entry in entries} == {"device"}
    assert {origin_of_entry(entry) for entry in entries} == {Origin.STAND_IN}
    # Rendered elsewhere, without the doubles: what was recorded decides.
    shown = run_here("report", run, "--format", "md,csv", "--out", tmp_path / "report")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    (file,) = (tmp_path / "report").rglob("*.md")
    lines = file.read_text().splitlines()
    head = next(line for line in lines if line.startswith("| evidence"))
    row = next(line for line in lines[lines.index(head) :] if "kernel parity" in line)
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    cells = dict(zip(columns, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
    assert cells["device"] == cells["official simulator"] == "not shown"
    assert f"{len(entries)} of {len(entries)}" in cells["stand-in (module doubles)"]
