"""Exhaustive casts through the command line: who is covered, how fast, and a wrong one."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from harness.cli.cast_subjects import cast_subjects
from harness.cli.main import main
from harness.run.store import read_ledger


def test_every_format_is_judged_both_ways_by_who_implements_it() -> None:
    covered = {(s.format, s.direction, s.who) for s in cast_subjects()}
    for name in ("e4m3fn", "e4m3-240", "e5m2", "e2m1", "ue8m0"):
        assert {direction for form, direction, _ in covered if form == name} == {"encode", "decode"}
    assert {who for _, _, who in covered} == {
        "interpreter",
        "references",
        "tiny_checkpoints",
        "kernels",
    }
    sizes = {(s.format, s.who): s.inputs.size for s in cast_subjects() if s.direction == "encode"}
    assert sizes["e4m3fn", "references"] == sizes["e5m2", "interpreter"] == 65536


def test_all_casts_agree_within_ten_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.perf_counter()
    with pytest.raises(SystemExit) as ended:
        main(["parity", "--casts", "--out", str(tmp_path)])
    assert not ended.value.code
    assert time.perf_counter() - start < 10
    (run,) = tmp_path.iterdir()
    records = read_ledger(run / "metric.jsonl").records
    assert len(records) == len(list(cast_subjects()))
    assert all(record.payload["values"] == [0.0] for record in records)
    assert "casts in" in capsys.readouterr().out


def test_a_wrong_encoder_ends_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_checkpoints import encode

    right = encode.e4m3_bytes

    def saturates_at_240(values: np.ndarray) -> np.ndarray:
        return right(np.clip(values, -240, 240))

    monkeypatch.setattr(encode, "e4m3_bytes", saturates_at_240)
    with pytest.raises(SystemExit) as ended:
        main(["parity", "--casts", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert "WRONG  parity.casts.e4m3fn.encode.tiny_checkpoints" in capsys.readouterr().out
