"""`neuron-harness doctor`: findings with remedies, for people and scripts."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

import harness.run.doctor as doctor
from harness.run.doctor import Finding, Level, examine
from harness.run.environment import SdkState


def findings_of(capsys):
    body = json.loads(capsys.readouterr().out)
    return body, {one["name"]: one for one in body["findings"]}


def test_json_names_every_part_of_the_machine(command, capsys):
    code = command("doctor", "--json")
    body, found = findings_of(capsys)
    assert code == (0 if body["healthy"] else 3)
    assert found["torch"]["value"] == importlib.metadata.version("torch")
    assert {"python", "nki", "torch-neuronx", "cuda stack", "cores", "/dev/shm"} <= set(found)
    assert {"compile cache", "memory", "neuron devices"} <= set(found)


def test_text_shows_remedies_and_the_conclusion(command, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "sdk_state", lambda name: (SdkState.PLACEHOLDER, "0.0.1"))
    assert command("doctor") == 0
    printed = capsys.readouterr().out
    assert "placeholder 0.0.1" in printed
    assert "-> `pip uninstall nki`" in printed
    assert "nothing stands in the way" in printed


def test_a_real_sdk_is_told_from_an_absent_one(monkeypatch):
    states = {"nki": (SdkState.REAL, "0.6"), "torch-neuronx": (SdkState.ABSENT, "")}
    monkeypatch.setattr(doctor, "sdk_state", lambda name: states.get(name, (SdkState.ABSENT, "")))
    found = {one.name: one for one in examine()}
    assert (found["nki"].value, found["nki"].level) == ("real, 0.6", Level.OK)
    assert found["torch-neuronx"].value == "absent"
    assert found["torch-neuronx"].remedy


def test_a_problem_ends_with_3(command, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "no-such-package-of-ours"))
    assert command("doctor", "--json") == 3
    body, found = findings_of(capsys)
    assert body["healthy"] is False
    assert found["no-such-package-of-ours"]["remedy"] == "run `make setup`"


def test_a_problem_needs_a_remedy():
    with pytest.raises(ValueError, match="without a remedy"):
        Finding("x", "broken", Level.PROBLEM)
