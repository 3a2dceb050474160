"""A checkpoint with a weight that is no number gives no tokens."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from engine import LLM
from harness.core.errors import ExitCode
from tests.engine.oracle import copied_checkpoint, settings
from tests.harness.cli.conftest import Command

_NAN_BF16 = b"\xc0\x7f"


def with_nan(target: Path, tensor: str, element: int = 0) -> Path:
    """A copy of a checkpoint in which one element of a bf16 tensor is NaN."""
    copy = copied_checkpoint("steady_mtp", target)
    file = copy / "model.safetensors"
    content = bytearray(file.read_bytes())
    (header_bytes,) = struct.unpack("<Q", content[:8])
    entry = json.loads(content[8 : 8 + header_bytes])[tensor]
    assert entry["dtype"] == "BF16"
    at = 8 + header_bytes + entry["data_offsets"][0] + 2 * element
    content[at : at + 2] = _NAN_BF16
    file.write_bytes(content)
    return copy


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("name", ["logits", "generate"])
def test_a_nan_weight_ends_the_command_and_names_the_position(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, cp: int
) -> None:
    # The last row of the head lies on the last rank.
    damaged = with_nan(tmp_path, "head.weight", 511 * 256)
    out = tmp_path / "logits.npz"
    more = ("--out", out) if name == "logits" else ("--max-tokens", 2)
    code = command(name, "--checkpoint", damaged, "--ids", "5,6,7", "--cp", cp, *more)
    assert code == ExitCode.USAGE
    position = 0 if name == "logits" else 2
    said = capsys.readouterr()
    assert f"logits not finite at position {position}" in said.err
    assert f"neuron-harness checkpoint verify {damaged}" in said.err
    assert said.out == ""
    assert not out.exists()


def test_the_engine_reports_the_position_and_leaves_the_verdict_to_its_judge(
    tmp_path: Path,
) -> None:
    damaged = with_nan(tmp_path, "norm.weight")
    with LLM(settings(checkpoint=str(damaged))) as llm:
        (one,) = llm.generate([[5, 6, 7, 8]], max_tokens=2, want_logits=True)
    assert one.counters["nonfinite_position"] == 3
    assert one.logits is not None
    assert np.isnan(one.logits).all()


def test_a_sound_checkpoint_reports_no_position() -> None:
    with LLM(settings()) as llm:
        (one,) = llm.generate([[5, 6, 7, 8]], max_tokens=2)
    assert "nonfinite_position" not in one.counters
