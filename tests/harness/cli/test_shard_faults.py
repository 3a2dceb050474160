"""A flipped bit in the data of any shard ends every command that opens an engine, by name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import ExitCode
from harness.core.shard_sums import SUMS_FILE
from tests.harness.cli.conftest import TOKEN_SUITE, Command

_SHARDS = [f"model-{number:05d}-of-00017.safetensors" for number in range(1, 18)]


@pytest.fixture
def own(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy whose shards are links, so that one of them can be replaced cheaply."""
    copy = tmp_path / "tiny-A"
    shutil.copytree(checkpoint, copy, copy_function=os.link)
    return copy


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """The one line on standard error."""

    def line() -> str:
        (found,) = capsys.readouterr().err.splitlines()
        return found

    return line


def _damage(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    content[8 + header_bytes + (len(content) - 8 - header_bytes) // 2] ^= 0x10
    shard.unlink()
    shard.write_bytes(content)


@pytest.mark.parametrize("name", _SHARDS)
def test_generate_refuses_a_bit_in_any_shard(
    name: str, own: Path, command: Command, said: Callable[[], str]
) -> None:
    _damage(own / name)
    code = command("generate", "--checkpoint", own, "--ids", "5,6", "--max-tokens", 1)
    assert code == ExitCode.USAGE
    assert re.match(
        rf"error: {own / name}: sha256 is '\w{{64}}': SHA256SUMS has \w{{64}}, so its bytes have "
        rf"changed: `neuron-harness checkpoint verify {own}` says more",
        said(),
    )


def test_every_shard_of_the_checkpoint_was_asked(own: Path) -> None:
    assert sorted(path.name for path in own.glob("*.safetensors")) == _SHARDS


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--ids", "5,6", "--cp", 2),
        ("serve", "--port", 0),
        ("serve", "--port", 0, "--cp", 2),
    ],
)
def test_other_commands_and_several_ranks_refuse_it_too(
    arguments: tuple[object, ...], own: Path, command: Command, said: Callable[[], str]
) -> None:
    _damage(own / _SHARDS[4])
    name, *options = arguments
    assert command(name, "--checkpoint", own, *options) == ExitCode.USAGE
    assert said().startswith(f"error: {own / _SHARDS[4]}: sha256 is ")


def test_a_token_suite_refuses_it(
    own: Path, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _damage(own / _SHARDS[9])
    suite = tmp_path / "suite.toml"
    suite.write_text(TOKEN_SUITE)
    code = command("tokens", "--suite", suite, "--checkpoint", own, "--out", tmp_path / "runs")
    assert code == ExitCode.USAGE
    assert f"{_SHARDS[9]}: sha256 is " in capsys.readouterr().err


def test_hashes_that_are_damaged_end_the_command_by_name(
    own: Path, command: Command, said: Callable[[], str]
) -> None:
    sums = own / SUMS_FILE
    lines = sums.read_text().splitlines()
    sums.unlink()
    sums.write_text("\n".join([*lines[:2], lines[2][:40]]))
    assert command("generate", "--checkpoint", own, "--ids", "5,6") == ExitCode.USAGE
    assert said().startswith(f"error: {sums}: line 3 is '{lines[2][:40]}': 64 hexadecimal")


def test_verify_tells_which_tensor_of_the_shard_it_is(
    own: Path, command: Command, said: Callable[[], str]
) -> None:
    _damage(own / _SHARDS[4])
    assert command("checkpoint", "verify", own) == ExitCode.USAGE
    assert re.match(rf"error: {own / _SHARDS[4]}: tensor layers\.3\.", said())
