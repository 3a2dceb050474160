"""Our files as the official library reads them, and broken files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from harness.core.errors import InputError
from tiny_checkpoints.safetensors_file import Shard, StoredTensor, tensors_digest, write_shard

TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}


def test_the_official_library_reads_the_same_tensors(tiny_a: Path) -> None:
    seen: set[str] = set()
    for path in sorted(tiny_a.glob("*.safetensors")):
        shard = Shard(path)
        with safe_open(path, "pt") as library:
            assert set(library.keys()) == set(shard.entries)
            for name in library.keys():  # noqa: SIM118 - not a dict
                theirs, ours = library.get_tensor(name), shard.read(name)
                assert theirs.dtype is TORCH_DTYPES[ours.dtype]
                assert tuple(theirs.shape) == ours.shape
                raw = theirs.flatten().view(torch.uint8).numpy().tobytes()
                assert raw == ours.data.tobytes()
                seen.add(ours.dtype)
    assert seen == set(TORCH_DTYPES)


def test_the_digest_depends_on_name_dtype_shape_and_bytes_only() -> None:
    def stored(values: list[int], dtype: str = "I8") -> StoredTensor:
        data = np.array(values, dtype=np.uint8)
        return StoredTensor(dtype, data.shape, data)

    one, two = stored([1, 2]), stored([3])
    assert tensors_digest({"a": one, "b": two}) == tensors_digest({"b": two, "a": one})
    digests = [
        tensors_digest({"a": one}),
        tensors_digest({"b": one}),
        tensors_digest({"a": stored([1, 3])}),
        tensors_digest({"a": stored([1, 2], "F8_E8M0")}),
        tensors_digest({"a": StoredTensor("I8", (1, 2), one.data.reshape(1, 2))}),
    ]
    assert len(set(digests)) == 5


def test_wrong_data_for_a_shape_cannot_be_stored() -> None:
    with pytest.raises(ValueError, match="bytes"):
        StoredTensor("BF16", (3,), np.zeros(3, np.uint8))


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    write_shard(path, {"w": StoredTensor("F32", (4,), np.arange(4, dtype=np.float32))})
    return path


def test_a_truncated_file_names_the_tensor(small_file: Path) -> None:
    small_file.write_bytes(small_file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"tensor w .* truncated"):
        Shard(small_file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or not safetensors"),
        (b"\xff" * 16, "truncated or not safetensors"),
        ((5).to_bytes(8, "little") + b"{oops", "header is"),
        ((2).to_bytes(8, "little") + b"[]", "header is 'list'"),
        ((9).to_bytes(8, "little") + b'{"w": {}}', "tensor w is"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Shard(path)


def test_an_absent_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a shard is missing"):
        Shard(tmp_path / "none.safetensors")


def test_a_shape_that_does_not_match_its_bytes_is_refused(small_file: Path) -> None:
    content = small_file.read_bytes()
    small_file.write_bytes(content.replace(b'"shape":[4]', b'"shape":[5]'))
    with pytest.raises(InputError, match=r"16 bytes for F32\[5\]"):
        Shard(small_file)


def test_a_foreign_dtype_is_refused_when_read(small_file: Path) -> None:
    content = small_file.read_bytes()
    small_file.write_bytes(content.replace(b'"dtype":"F32"', b'"dtype":"Q32"'))
    with pytest.raises(InputError, match="tensor w, dtype is 'Q32'"):
        Shard(small_file).read("w")


def test_the_header_is_padded_and_ordered_for_alignment(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    byte = StoredTensor("I8", (3,), np.zeros(3, np.uint8))
    write_shard(path, {"a": byte, "z": StoredTensor("F32", (1,), np.ones(1, np.float32))})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    assert header["z"]["data_offsets"] == [0, 4]
    assert header["a"]["data_offsets"] == [4, 7]
