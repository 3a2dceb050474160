"""Hashes beside shards: what is written, what is compared, what is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from harness.core import shard_sums
from harness.core.errors import InputError
from harness.core.shard_sums import SUMS_FILE, has_sums, verify_sums, write_sums


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes([number]) * 5000)
    (tmp_path / "config.json").write_text("{}")
    write_sums(tmp_path)
    return tmp_path


def _verify(place: Path) -> None:
    verify_sums(place, place.glob("*.safetensors"))


def test_the_file_is_one_that_sha256sum_checks(place: Path) -> None:
    lines = (place / SUMS_FILE).read_text().splitlines()
    assert lines[1] == hashlib.sha256(b"\2" * 5000).hexdigest() + "  model-2.safetensors"
    assert len(lines) == 3
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", SUMS_FILE], cwd=place, check=True
    )
    assert sorted(path.name for path in place.iterdir())[:2] == [SUMS_FILE, "config.json"]


def test_what_sha256sum_writes_is_read(place: Path) -> None:
    names = [f"./model-{number}.safetensors" for number in (1, 2, 3)]
    for options in ([], ["--binary"]):
        out = subprocess.run(
            ["sha256sum", *options, *names, "config.json"],
            cwd=place,
            check=True,
            capture_output=True,
        ).stdout
        (place / SUMS_FILE).write_bytes(out)
        _verify(place)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 2500, 4999])
def test_one_flipped_bit_names_the_shard_both_hashes_and_the_remedy(
    place: Path, number: int, at: int
) -> None:
    shard = place / f"model-{number}.safetensors"
    content = bytearray(shard.read_bytes())
    content[at] ^= 4
    shard.write_bytes(content)
    with pytest.raises(InputError) as caught:
        _verify(place)
    assert (caught.value.file, caught.value.field) == (str(shard), "sha256")
    assert caught.value.value == hashlib.sha256(content).hexdigest()
    assert hashlib.sha256(bytes([number]) * 5000).hexdigest() in caught.value.remedy
    assert f"`neuron-harness checkpoint verify {place}`" in caught.value.remedy


def test_only_the_shards_that_were_asked_for_are_compared(place: Path) -> None:
    (place / "model-3.safetensors").write_bytes(b"another")
    verify_sums(place, [place / "model-1.safetensors", place / "model-2.safetensors"])
    with pytest.raises(InputError, match=r"model-3\.safetensors: sha256"):
        _verify(place)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "hash of model-1.safetensors is 'absent'"),
        (b"\n", "line 1 is ''"),
        (b"12ab  model-1.safetensors\n", "line 1 is '12ab  model-1.safetensors'"),
        (b"0" * 64 + b" model-1.safetensors\n", "64 hexadecimal digits, two blanks"),
        (b"\xff\xfe", "content is .unreadable"),
        (b"0" * 64 + b"  a\n" + b"1" * 64 + b"  a\n", "line 2 is .*: a has two hashes"),
    ],
)
def test_hashes_that_are_damaged_themselves_are_named(
    place: Path, content: bytes, said: str
) -> None:
    (place / SUMS_FILE).write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        _verify(place)
    assert caught.value.file == str(place / SUMS_FILE)
    assert "sha256sum *.safetensors > SHA256SUMS" in caught.value.remedy


def test_a_shard_that_is_gone_is_named(place: Path) -> None:
    chosen = list(place.glob("*.safetensors"))
    (place / "model-2.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-2\.safetensors: shard is 'absent'"):
        verify_sums(place, chosen)


def test_hashes_that_lead_nowhere_are_there_and_refused(tmp_path: Path) -> None:
    assert not has_sums(tmp_path)
    (tmp_path / SUMS_FILE).symlink_to(tmp_path / "nowhere")
    assert has_sums(tmp_path)
    with pytest.raises(InputError, match="unreadable"):
        verify_sums(tmp_path, [])


def test_a_run_that_breaks_leaves_the_hashes_that_were(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (place / SUMS_FILE).read_bytes()
    (place / "model-1.safetensors").write_bytes(b"new")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_sums(place)
    assert (place / SUMS_FILE).read_bytes() == before
    assert len(list(place.iterdir())) == 5


def test_an_unchanged_file_is_read_once_and_a_changed_one_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(file: object, name: str) -> object:
        read.append(Path(file.name).name)  # type: ignore[attr-defined]
        return digest(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", counted)
    _verify(place)
    _verify(place)
    assert len(read) == 6  # so young that their times say nothing
    monkeypatch.setattr(shard_sums, "_SETTLED_NS", 0)
    _verify(place)
    read.clear()
    _verify(place)
    assert read == []
    shard = place / "model-2.safetensors"
    times = shard.stat()
    shard.write_bytes(b"\3" * 5000)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))  # the time of change stays true
    with pytest.raises(InputError, match=r"model-2\.safetensors: sha256"):
        _verify(place)
    assert read == ["model-2.safetensors"]
