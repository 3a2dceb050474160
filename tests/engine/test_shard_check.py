"""An engine opens only shards that are what their hashes say, looked at once for all ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine import LLM
from engine.weights.shard_check import check_shards
from harness.core import shard_sums
from harness.core.errors import InputError
from harness.core.shard_sums import SUMS_FILE, write_sums
from tests.engine.oracle import copied_checkpoint, settings


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A checkpoint with one shard and its hash."""
    copy = copied_checkpoint("steady_mtp", tmp_path)
    write_sums(copy)
    return copy


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that this process hashed."""
    names: list[str] = []
    hash_of = shard_sums._hash

    def noted(path: Path) -> str:
        names.append(path.name)
        return hash_of(path)

    monkeypatch.setattr(shard_sums, "_hash", noted)
    return names


def _flip(shard: Path, at: int = -1) -> None:
    content = bytearray(shard.read_bytes())
    content[at] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize("cp", [1, 2])
def test_a_flipped_bit_in_the_data_ends_the_start(own: Path, cp: int) -> None:
    shard = own / "model.safetensors"
    _flip(shard)
    with pytest.raises(InputError, match="so its bytes have changed") as caught:
        LLM(settings(checkpoint=str(own), cp=cp))
    assert caught.value.file == str(shard)


def test_the_parent_hashes_every_shard_once_whatever_the_number_of_ranks(
    own: Path, hashed: list[str]
) -> None:
    with LLM.in_one_process(settings(checkpoint=str(own), cp=4)):
        assert hashed == ["model.safetensors"]


def test_a_checkpoint_without_hashes_opens_unread(own: Path, hashed: list[str]) -> None:
    (own / SUMS_FILE).unlink()
    _flip(own / "model.safetensors")  # of a scale or code: nothing else can see it
    with LLM(settings(checkpoint=str(own))) as llm:
        llm.generate([[5, 6]], max_tokens=1)
    assert hashed == []


@pytest.mark.parametrize("damage", ["", "no hash of anything\n"])
def test_hashes_that_are_damaged_are_refused_by_name(own: Path, damage: str) -> None:
    (own / SUMS_FILE).write_text(damage)
    with pytest.raises(InputError, match=SUMS_FILE) as caught:
        LLM(settings(checkpoint=str(own)))
    assert caught.value.file == str(own / SUMS_FILE)


def test_files_no_index_names_are_not_read(own: Path) -> None:
    """As where a checkpoint is moved with what lay beside it."""
    shutil.copyfile(own / "model.safetensors", own / "old.bin")
    with (own / SUMS_FILE).open("a") as file:
        file.write("0" * 64 + "  old.bin\n")
    check_shards(own)
