"""Each kind of stage of a bring-up ends red on what it is there to find, with the real commands."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from harness.cli.bringup import BringupPlan, stages_of
from harness.core.shard_sums import SUMS_FILE
from harness.run.bringup import StageOutcome, carry_out, run_logged
from harness.run.store import new_run
from tests.fakes_neuron import stand_in_environment

_NAN_BF16 = b"\xc0\x7f"


def _carried_out(
    name: str, checkpoint: Path, root: Path, *, backend: str = "interpret", limit_s: float = 60.0
) -> StageOutcome:
    """One stage alone, as a bring-up would run it."""
    plan = BringupPlan(checkpoint, root / "work", 2, 0, backend, time_limit_s=limit_s)
    stages = [stage for stage in stages_of(plan) if stage.name == name]
    environment = {"origin": "test"}
    with new_run(root, command=["x"], environment=environment, run_id="b") as store:
        (ran,) = carry_out(stages, store, "id", run_logged)
        (kept,) = store.read("stage").records
    assert ran.outcome is not None
    assert (kept.payload["status"], kept.payload["green_key"]) == (ran.outcome.status, "")
    return ran.outcome


def _with_nan(checkpoint: Path, copy: Path, tensor: str) -> Path:
    """A copy in which the first element of a bf16 tensor is NaN, and always was: without hashes."""
    shutil.copytree(checkpoint, copy)
    (copy / SUMS_FILE).unlink()
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    file = copy / index["weight_map"][tensor]
    content = bytearray(file.read_bytes())
    (header_bytes,) = struct.unpack("<Q", content[:8])
    entry = json.loads(content[8 : 8 + header_bytes])[tensor]
    assert entry["dtype"] == "BF16"
    at = 8 + header_bytes + entry["data_offsets"][0]
    content[at : at + 2] = _NAN_BF16
    file.write_bytes(content)
    return copy


def test_the_host_is_red_where_no_core_is_visible(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stand_in_environment(FAKE_NEURON_DEVICES="0").items():
        monkeypatch.setenv(name, value)
    outcome = _carried_out("doctor", checkpoint, tmp_path, backend="device")
    assert outcome.status == "CANNOT_JUDGE"
    assert "NEURON_RT_VISIBLE_CORES" in outcome.message


def test_an_op_is_red_where_the_runtime_has_another_lnc(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stand_in_environment(FAKE_NEURON_RUNTIME_LNC="1").items():
        monkeypatch.setenv(name, value)
    outcome = _carried_out("one-op", checkpoint, tmp_path, backend="device")
    assert outcome.exit_code != 0
    assert "NEURON_LOGICAL_NC_CONFIG" in Path(outcome.log).read_text()


def test_ranks_that_give_no_answer_in_time_are_red(checkpoint: Path, tmp_path: Path) -> None:
    outcome = _carried_out("ranks-2", checkpoint, tmp_path, limit_s=0.05)
    assert outcome.status == "RANK"
    assert outcome.message.startswith("neuron-harness tokens --suite")
    assert "HANG" in outcome.message


def test_a_slice_is_red_on_a_weight_that_is_no_number(checkpoint: Path, tmp_path: Path) -> None:
    damaged = _with_nan(checkpoint, tmp_path / "damaged", "layers.2.attn_norm.weight")
    outcome = _carried_out("slice", damaged, tmp_path)
    assert outcome.status == "USAGE"
    assert outcome.message.startswith("neuron-harness checkpoint slice")
    assert "layers.2.attn_norm.weight" in outcome.message
    assert not list((tmp_path / "work").glob("slice-*/config.json"))


def test_a_slice_is_red_on_a_cut_shard(checkpoint: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(checkpoint, cut)
    index = json.loads((cut / "model.safetensors.index.json").read_text())
    shard = cut / index["weight_map"]["layers.2.attn_norm.weight"]
    shard.write_bytes(shard.read_bytes()[:-7])
    outcome = _carried_out("slice", cut, tmp_path)
    assert outcome.status == "USAGE"
    assert shard.name in outcome.message


def test_the_real_checkpoint_is_red_on_logits_that_are_no_numbers(
    checkpoint: Path, tmp_path: Path
) -> None:
    damaged = _with_nan(checkpoint, tmp_path / "damaged", "norm.weight")
    outcome = _carried_out("real", damaged, tmp_path)
    assert outcome.status == "USAGE"
    assert "logits not finite at position" in outcome.message
