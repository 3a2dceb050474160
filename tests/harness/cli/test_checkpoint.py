"""`checkpoint make` and `checkpoint verify` with their exit codes and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.errors import ExitCode

ORACLE = Path(__file__).parents[2] / "data" / "oracle"


def _exit_code(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in ("checkpoint", *arguments)])
    return int(ended.value.code or 0)


def test_making_verifying_and_damaging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "deep" / "tiny-A"
    assert _exit_code("make", "tiny-A", place) == ExitCode.PASS
    assert "equal to the manifest" in capsys.readouterr().out
    assert _exit_code("verify", place) == ExitCode.PASS
    out = capsys.readouterr().out
    assert "990 tensors, 15.43 M parameters, 12.94 MiB" in out
    assert "equal to the manifest of tiny-A" in out
    shard = place / "model-00005-of-00017.safetensors"
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    for arguments in (("verify", place), ("make", "tiny-A", place)):
        assert _exit_code(*arguments) == ExitCode.USAGE
        message = capsys.readouterr().err
        assert "model-00005-of-00017.safetensors: tensor layers.3.ffn.shared_experts.w3" in message
        assert "delete the directory" in message
        assert "Traceback" not in message
    assert _exit_code("verify", "--headers-only", place) == ExitCode.PASS
    assert "hashes not compared" in capsys.readouterr().out


def test_a_foreign_checkpoint_is_verified_without_hashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _exit_code("verify", ORACLE / "long") == ExitCode.PASS
    assert "no hashes to compare with" in capsys.readouterr().out


def test_unknown_variants_and_unwritable_places_are_user_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("make", "tiny-Q", tmp_path / "x") == ExitCode.USAGE
    assert "did you mean tiny-" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert _exit_code("make", "tiny-A", tmp_path / "file" / "x") == ExitCode.USAGE
    assert "cannot be written" in capsys.readouterr().err
    assert _exit_code("verify", tmp_path / "none") == ExitCode.USAGE
    assert "config.json: file is 'absent'" in capsys.readouterr().err


def test_a_file_in_the_way_is_not_called_an_absent_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert _exit_code("make", "tiny-A", tmp_path / "file") == ExitCode.USAGE
    message = capsys.readouterr().err
    assert "directory is 'a file'" in message
    assert "absent" not in message
    assert (tmp_path / "file").read_text() == "mine"
